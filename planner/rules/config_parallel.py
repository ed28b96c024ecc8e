"""Tensor parallelism, pipeline, checkpointing, accumulation and compilation in a configuration."""

from __future__ import annotations

from collections.abc import Iterable

from planner.rules.config_context import AUTO, Breach, ConfigView, Severity
from planner.rules.patches import drop, put
from planner.rules.rule import Rule


def _autotp_sizes(view: ConfigView) -> Iterable[Breach]:
    autotp = int(view.number("tensor_parallel.autotp_size"))
    inner = int(view.number("tensor_parallel.tp.tp_size", 1))
    if autotp > 0 and inner not in (1, autotp):
        yield Breach(
            key="tensor_parallel.tp.tp_size",
            message=f"tp_size {inner} and autotp_size {autotp} disagree",
            fix=f"write tp_size: {autotp}, or remove it",
            patch=put("tensor_parallel.tp.tp_size", autotp),
        )


def _autotp_in_pipeline(view: ConfigView) -> Iterable[Breach]:
    if view.number("tensor_parallel.autotp_size") > 1 and view.context.pipeline_parallel_size > 1:
        yield Breach(
            key="tensor_parallel.autotp_size",
            message="AutoTP with pipeline stages: initialize succeeds and the first train_batch hangs",
            fix="remove the tensor_parallel block and split the layers through an mpu, or run without a pipeline",
        )


def _pipeline_unread(view: ConfigView) -> Iterable[Breach]:
    for key, default in (("stages", AUTO), ("partition", "best"), ("seed_layers", False)):
        if view.has(f"pipeline.{key}") and view.get(f"pipeline.{key}") != default:
            yield Breach(
                key=f"pipeline.{key}",
                message=f"nothing reads pipeline.{key}",
                fix="give stages, partition and seed_layers to PipelineModule in code",
                patch=drop(f"pipeline.{key}"),
            )


def _checkpointing_inert(view: ConfigView) -> Iterable[Breach]:
    block = "activation_checkpointing"
    if view.flag(f"{block}.contiguous_memory_optimization"):
        lacks = [
            key
            for key, there in (
                ("partition_activations", view.flag(f"{block}.partition_activations")),
                ("number_checkpoints", view.number(f"{block}.number_checkpoints") > 0),
            )
            if not there
        ]
        if lacks:
            yield Breach(
                key=f"{block}.contiguous_memory_optimization",
                message=f"contiguous_memory_optimization without {' and '.join(lacks)}",
                fix=f"write {' and '.join(lacks)} too",
                severity=Severity.ERROR,
                why="the contiguous buffer is made for partitioned activations of a known number of checkpoints",
            )
    asks = [str(name) for name, value in view.block(block).items() if value not in (False, None, 0, AUTO)]
    if asks:
        yield Breach(
            key=f"{block}.{asks[0]}",
            message="the activation_checkpointing block switches nothing on by itself",
            fix="checkpoint in code (deepspeed.checkpointing.configure, or the Trainer's gradient_checkpointing)",
            severity=Severity.WARNING if view.resolves_auto else None,
            patch=drop(block) if view.resolves_auto else None,
        )


def _unmanaged_accumulation(view: ConfigView) -> Iterable[Breach]:
    if view.flag("managed_gradient_accumulation", True):
        return
    for refused, what in (
        (view.context.pipeline_parallel_size > 1, "pipeline stages"),
        (view.flag("compile.deepcompile"), "DeepCompile"),
        (view.zero_stage < 2 and view.flag("zero_optimization.overlap_comm"), "overlap_comm below stage 2"),
    ):
        if refused:
            yield Breach(
                key="managed_gradient_accumulation",
                message=f"managed_gradient_accumulation false with {what}",
                fix="write true, or remove it",
                patch=drop("managed_gradient_accumulation"),
            )


def _compile_conflicts(view: ConfigView) -> Iterable[Breach]:
    passes = view.get("compile.passes")
    chosen = {item for item in passes if isinstance(item, str)} if isinstance(passes, list) else set()
    if "autotp" in chosen and chosen & {"autosp", "z1", "z3"}:
        yield Breach(
            key="compile.passes",
            message="the autotp pass together with others",
            fix='write passes: ["autotp"], or leave it out',
        )
    if view.flag("compile.offload_opt_states") and (
        view.offload_optimizer != "none" or view.flag("compile.offload_parameters")
    ):
        yield Breach(
            key="compile.offload_opt_states",
            message="compile.offload_opt_states beside another offload of states or parameters",
            fix="keep one of them",
        )
    if view.flag("compile.offload_activation") and (
        view.flag("compile.offload_opt_states") or view.flag("compile.offload_parameters")
    ):
        yield Breach(
            key="compile.offload_activation",
            message="compile.offload_activation beside another offload of DeepCompile",
            fix="keep one of them",
        )


def _compile_unsupported(view: ConfigView) -> Iterable[Breach]:
    if not view.flag("compile.deepcompile") or view.stage_is_open:
        return
    if view.zero_stage == 0:
        yield Breach(
            key="compile.deepcompile",
            message="DeepCompile works with ZeRO only: at stage 0 the torch compiler runs instead",
            fix="write stage 1, 2 or 3, or remove it",
        )
    elif view.zero_stage == 3 and view.offload_param != "none" and view.offload_optimizer != "none":
        yield Breach(
            key="compile.deepcompile",
            message="with parameters and optimizer offloaded, DeepCompile offloads parameters itself "
            "(compile.offload_parameters)",
            fix="write compile.offload_parameters: true, to say so",
            severity=Severity.INFO,
        )


def _compile_in_code(view: ConfigView) -> Iterable[Breach]:
    if view.flag("compile.deepcompile"):
        yield Breach(
            key="compile.deepcompile",
            message="DeepCompile acts once the script calls engine.compile(); without it the model runs eagerly",
            fix="see that the script calls engine.compile()",
        )


def _sequence_heads(view: ConfigView) -> Iterable[Breach]:
    size = max(view.context.sequence_parallel_size, int(view.number("sequence_parallel_size", 1)))
    model = view.context.model
    if model is not None and size > 1 and model.num_heads and model.num_heads % size:
        yield Breach(
            key="sequence_parallel_size",
            message=f"{model.num_heads} attention heads are not a multiple of {size} sequence-parallel ranks",
            fix="use a number of ranks that divides the heads",
        )


def _vocab_parallel_loss(view: ConfigView) -> Iterable[Breach]:
    backend = view.get("tensor_parallel.vocab_parallel_ce_backend")
    if backend == "liger" and not view.flag("tensor_parallel.vocab_parallel_lm_head"):
        yield Breach(
            key="tensor_parallel.vocab_parallel_ce_backend",
            message="the Liger loss without a vocabulary-parallel head",
            fix="write vocab_parallel_lm_head: true, or backend torch",
            patch=put("tensor_parallel.vocab_parallel_lm_head", True),
        )


def _autotp_heads(view: ConfigView) -> Iterable[Breach]:
    size = int(view.number("tensor_parallel.autotp_size"))
    model = view.context.model
    if model is None or size <= 1:
        return
    if model.num_heads and model.num_heads % size:
        yield Breach(
            key="tensor_parallel.autotp_size",
            message=f"{model.num_heads} attention heads on {size} tensor-parallel ranks: some get more than others",
            fix="write a size that divides the number of heads",
            severity=Severity.WARNING,
        )
    elif 0 < model.num_kv_heads < size:
        yield Breach(
            key="tensor_parallel.autotp_size",
            message=f"{size} tensor-parallel ranks and {model.num_kv_heads} key-value heads: ranks are unbalanced",
            fix=f"write autotp_size: {model.num_kv_heads} or less",
            severity=Severity.INFO,
        )


PARALLEL_CONFIG_RULES: tuple[Rule, ...] = (
    Rule(
        name="autotp-sizes-differ",
        severity=Severity.ERROR,
        summary="the two names of the tensor-parallel size must agree",
        source="DeepSpeed 0.19.8, runtime/engine.py (seen)",
        check=_autotp_sizes,
    ),
    Rule(
        name="autotp-in-pipeline",
        severity=Severity.ERROR,
        summary="DeepSpeed does not refuse this combination; it hangs",
        source="DeepSpeed 0.19.8 (seen: 4 ranks, ZeRO 0 and 1)",
        check=_autotp_in_pipeline,
    ),
    Rule(
        name="pipeline-key-unread",
        severity=Severity.WARNING,
        summary="of the pipeline block only activation_checkpoint_interval, pipe_partitioned, grad_partitioned and "
        "use_reentrant are read; the number of stages comes from PipelineModule",
        source="DeepSpeed 0.19.8, runtime/pipe/engine.py (seen: stays data-parallel)",
        check=_pipeline_unread,
    ),
    Rule(
        name="checkpointing-block-inert",
        severity=Severity.INFO,
        summary="it configures deepspeed.checkpointing, which only acts where code calls it",
        source="DeepSpeed 0.19.8, runtime/activation_checkpointing/checkpointing.py",
        check=_checkpointing_inert,
    ),
    Rule(
        name="accumulation-unmanaged",
        severity=Severity.ERROR,
        summary="accumulation left to the caller does not go with it",
        source="DeepSpeed 0.19.8, runtime/engine.py: _do_sanity_check",
        check=_unmanaged_accumulation,
    ),
    Rule(
        name="autotp-heads",
        severity=Severity.WARNING,
        summary="attention is split by heads",
        source="DeepSpeed 0.19.8, runtime/engine.py: _configure_tensor_parallel_states; module_inject/tp_shard.py",
        check=_autotp_heads,
    ),
    Rule(
        name="sequence-parallel-heads",
        severity=Severity.ERROR,
        summary="Ulysses trades the sequence for heads in attention",
        source="DeepSpeed 0.19.8, runtime/sequence_parallel/ulysses_sp.py",
        check=_sequence_heads,
    ),
    Rule(
        name="autotp-vocab-parallel-loss",
        severity=Severity.ERROR,
        summary="the fused Liger loss works on a head that is split by vocabulary",
        source="DeepSpeed 0.19.8, runtime/tensor_parallel/config.py",
        check=_vocab_parallel_loss,
    ),
    Rule(
        name="compile-stage",
        severity=Severity.WARNING,
        summary="for a stage that it has no passes for, DeepCompile logs a line and steps back",
        source="DeepSpeed 0.19.8, runtime/engine.py: get_deepcompile_schedule and compile",
        check=_compile_unsupported,
    ),
    Rule(
        name="compile-in-code",
        severity=Severity.NOTE,
        summary="the file only prepares DeepCompile",
        source="DeepSpeed 0.19.8, runtime/engine.py: forward (seen: runs eagerly)",
        check=_compile_in_code,
    ),
    Rule(
        name="compile-conflict",
        severity=Severity.ERROR,
        summary="these parts of DeepCompile exclude each other",
        source="DeepSpeed 0.19.8, compile/config.py, compile/init_z3.py, runtime/engine.py",
        check=_compile_conflicts,
    ),
)
