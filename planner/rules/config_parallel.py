"""Tensor parallelism, pipeline, checkpointing, accumulation and compilation in a configuration."""

from __future__ import annotations

from collections.abc import Iterable

from planner.rules.config_context import AUTO, Breach, ConfigView, Severity
from planner.rules.rule import Rule


def _autotp_sizes(view: ConfigView) -> Iterable[Breach]:
    autotp = int(view.number("tensor_parallel.autotp_size"))
    inner = int(view.number("tensor_parallel.tp.tp_size", 1))
    if autotp > 0 and inner not in (1, autotp):
        yield Breach(
            key="tensor_parallel.tp.tp_size",
            message=f"tp_size {inner} and autotp_size {autotp} disagree",
            fix=f"write tp_size: {autotp}, or remove it",
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
    if view.block(block):
        yield Breach(
            key=block,
            message="the activation_checkpointing block switches nothing on by itself",
            fix="checkpoint in code (deepspeed.checkpointing.configure, or the Trainer's gradient_checkpointing)",
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
        name="compile-conflict",
        severity=Severity.ERROR,
        summary="these parts of DeepCompile exclude each other",
        source="DeepSpeed 0.19.8, compile/config.py, compile/init_z3.py, runtime/engine.py",
        check=_compile_conflicts,
    ),
)
