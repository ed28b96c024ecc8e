"""ZeRO and offload in a configuration: what is refused, and what is ignored without a word."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from planner.rules.config_context import AUTO, Breach, ConfigView, Severity
from planner.rules.config_entries import shown
from planner.rules.patches import drop, put
from planner.rules.rule import Rule
from planner.spec import DeviceKind

_ZERO = "zero_optimization"


def zero_with_pipeline(view: ConfigView) -> Iterable[Breach]:
    """ZeRO 2 or 3 with pipeline stages."""
    if view.context.pipeline_parallel_size > 1 and view.zero_stage >= 2:
        yield Breach(
            key=f"{_ZERO}.stage",
            message=f"ZeRO stage {view.zero_stage} with {view.context.pipeline_parallel_size} pipeline stages",
            fix="write stage 1 (or 0), or run without a pipeline",
            patch=put(f"{_ZERO}.stage", 1),
        )


def offload_param_below_zero_3(view: ConfigView) -> Iterable[Breach]:
    """offload_param below stage 3 is ignored."""
    if view.offload_param != "none" and view.zero_stage < 3 and not view.stage_is_open:
        yield Breach(
            key=f"{_ZERO}.offload_param",
            message=f"offload_param does nothing at stage {view.zero_stage}",
            fix="write stage 3, or remove offload_param",
            severity=Severity.WARNING,
            patch=drop(f"{_ZERO}.offload_param"),
        )


def offload_optimizer_at_zero_0(view: ConfigView) -> Iterable[Breach]:
    """offload_optimizer at stage 0 is no offload."""
    if view.offload_optimizer != "none" and view.zero_stage == 0 and not view.stage_is_open:
        yield Breach(
            key=f"{_ZERO}.offload_optimizer",
            message="offload_optimizer offloads nothing at stage 0",
            fix="write stage 1, 2 or 3, or remove offload_optimizer",
            severity=Severity.WARNING,
            patch=drop(f"{_ZERO}.offload_optimizer"),
        )


def nvme_below_zero_3(view: ConfigView) -> Iterable[Breach]:
    """NVMe at stages 1 and 2 is host memory."""
    if view.offload_optimizer == "nvme" and view.zero_stage in (1, 2):
        yield Breach(
            key=f"{_ZERO}.offload_optimizer.device",
            message=f"at stage {view.zero_stage} NVMe is treated as host memory",
            fix='write device "cpu", or stage 3',
            severity=Severity.WARNING,
            patch=put(f"{_ZERO}.offload_optimizer.device", "cpu"),
        )


def _nvme_without_path(view: ConfigView) -> Iterable[Breach]:
    for block, device in (("offload_optimizer", view.offload_optimizer), ("offload_param", view.offload_param)):
        if device == "nvme" and view.zero_stage == 3 and not view.get(f"{_ZERO}.{block}.nvme_path"):
            yield Breach(
                key=f"{_ZERO}.{block}.nvme_path",
                message=f"{block} to NVMe without nvme_path",
                fix="write nvme_path: a folder on the local NVMe disk",
            )


def _partial_offload(view: ConfigView) -> Iterable[Breach]:
    ratio = view.number(f"{_ZERO}.offload_optimizer.ratio", 1.0)
    if ratio < 1 and view.zero_stage != 3 and not view.stage_is_open:
        yield Breach(
            key=f"{_ZERO}.offload_optimizer.ratio",
            message=f"ratio {ratio:g} at stage {view.zero_stage}",
            fix="write stage 3, or ratio 1.0",
            patch=put(f"{_ZERO}.offload_optimizer.ratio", 1.0),
        )
    elif ratio < 1 and view.flag("optimizer.params.torch_adam"):
        yield Breach(
            key=f"{_ZERO}.offload_optimizer.ratio",
            message=f"ratio {ratio:g} with torch_adam",
            fix="remove torch_adam: partial offload needs DeepSpeed's own CPU Adam",
            patch=drop("optimizer.params.torch_adam"),
        )


def _legacy_stage_1(view: ConfigView) -> Iterable[Breach]:
    if view.flag(f"{_ZERO}.legacy_stage1") and view.zero_stage > 0:
        key = f"{_ZERO}.legacy_stage1"
        yield Breach(key=key, message="legacy_stage1 raises", fix="remove it", patch=drop(key))


def _gradient_scaling(view: ConfigView) -> Iterable[Breach]:
    if view.zero_stage not in (2, 3) or not view.flag(f"{_ZERO}.reduce_scatter", True):
        return
    if view.zero_stage == 2 and view.get("gradient_allreduce_op") == "sum":
        return  # stage 2 checks only when gradients are averaged
    if view.flag("prescale_gradients"):
        yield Breach(
            key="prescale_gradients",
            message=f"prescale_gradients with reduce_scatter at stage {view.zero_stage}",
            fix=f"write prescale_gradients: false, or {_ZERO}.reduce_scatter: false",
            patch=put("prescale_gradients", False),
        )
    if view.number("gradient_predivide_factor", 1.0) != 1.0:
        yield Breach(
            key="gradient_predivide_factor",
            message=f"gradient_predivide_factor with reduce_scatter at stage {view.zero_stage}",
            fix=f"write gradient_predivide_factor: 1.0, or {_ZERO}.reduce_scatter: false",
            patch=put("gradient_predivide_factor", 1.0),
        )


def _sum_reduce(view: ConfigView) -> Iterable[Breach]:
    op = view.get("gradient_allreduce_op")
    if not isinstance(op, str) or op.lower() != "sum":
        return
    for refused, what in (
        (view.zero_stage == 3, "ZeRO stage 3"),
        (bool(view.block(f"{_ZERO}.zenflow")), "ZenFlow"),
        (view.flag("compile.deepcompile"), "DeepCompile"),
    ):
        if refused:
            yield Breach(
                key="gradient_allreduce_op",
                message=f"gradient_allreduce_op 'sum' with {what}",
                fix="write gradient_allreduce_op: mean",
            )


def _odd_bucket(view: ConfigView) -> Iterable[Breach]:
    size = view.number(f"{_ZERO}.allgather_bucket_size", 2)
    if view.zero_stage in (1, 2) and size % 2:
        yield Breach(
            key=f"{_ZERO}.allgather_bucket_size",
            message=f"allgather_bucket_size {size:g} is odd",
            fix=f"write {int(size) + 1}",
            patch=put(f"{_ZERO}.allgather_bucket_size", int(size) + 1),
        )


def _grad_norm(view: ConfigView) -> Iterable[Breach]:
    if view.flag(f"{_ZERO}.compute_grad_norm", True):
        return
    key = f"{_ZERO}.compute_grad_norm"
    for refused, place, what, fix in (
        (view.zero_stage not in (1, 2), key, f"at stage {view.zero_stage}", "remove it"),
        (
            view.number("gradient_clipping", 1.0) > 0,
            "gradient_clipping",
            "with gradient clipping (whose default is 1.0)",
            "write gradient_clipping: 0",
        ),
        (view.offload_optimizer != "none", key, "with optimizer offload", "remove it"),
        (bool(view.block(f"{_ZERO}.zenflow")), key, "with ZenFlow", "remove it"),
    ):
        if refused:
            yield Breach(key=place, message=f"compute_grad_norm false {what}", fix=fix, patch=drop(key))


def _zenflow(view: ConfigView) -> Iterable[Breach]:
    zenflow = view.block(f"{_ZERO}.zenflow")
    if not zenflow:
        return
    if view.zero_stage in (1, 2) and view.offload_optimizer != "cpu":
        yield Breach(
            key=f"{_ZERO}.zenflow",
            message=f"ZenFlow at stage {view.zero_stage} without CPU offload of the optimizer",
            fix=f'write {_ZERO}.offload_optimizer: {{"device": "cpu"}}',
            patch=put(f"{_ZERO}.offload_optimizer.device", "cpu"),
        )
    if view.flag(f"{_ZERO}.zenflow.offload") and not view.flag(f"{_ZERO}.overlap_comm", view.zero_stage == 3):
        yield Breach(
            key=f"{_ZERO}.overlap_comm",
            message="zenflow.offload without overlap_comm",
            fix="write overlap_comm: true",
            patch=put(f"{_ZERO}.overlap_comm", True),
        )
    yield from _zenflow_intervals(zenflow)


def _zenflow_intervals(zenflow: Mapping[str, Any]) -> Iterable[Breach]:
    key = f"{_ZERO}.zenflow.select_interval"
    select, update = zenflow.get("select_interval", AUTO), zenflow.get("update_interval", AUTO)
    is_auto = zenflow.get("select_strategy", AUTO) == AUTO
    if is_auto and isinstance(select, int) and not isinstance(select, bool):
        yield Breach(
            key=key,
            message=f"select_interval {select} with select_strategy 'auto', which finds its own",
            fix="write select_strategy: step (or epoch), or remove select_interval",
            patch=drop(key),
        )
    elif not is_auto and select == AUTO:
        yield Breach(
            key=key,
            message=f"select_strategy {shown(zenflow.get('select_strategy'))} needs select_interval as a number",
            fix="write select_interval, at least update_interval",
        )
    elif zenflow.get("select_strategy") == "step" and _both_whole(select, update) and 0 < select < update:
        yield Breach(
            key=key,
            message=f"select_interval {select} is less than update_interval {update}",
            fix=f"write select_interval: {update} or more",
        )


def _both_whole(one: Any, other: Any) -> bool:
    return all(isinstance(value, int) and not isinstance(value, bool) for value in (one, other))


def _zenflow_accumulation(view: ConfigView) -> Iterable[Breach]:
    if view.block(f"{_ZERO}.zenflow") and view.number("gradient_accumulation_steps", 1) > 1:
        yield Breach(
            key="gradient_accumulation_steps",
            message="ZenFlow sets gradient accumulation by its own update_interval: the value here is overwritten",
            fix=f"write gradient_accumulation_steps: 1 and {_ZERO}.zenflow.update_interval",
        )


def _direct_storage(view: ConfigView) -> Iterable[Breach]:
    if view.flag("aio.use_gds") and view.context.device is DeviceKind.CPU:
        yield Breach(
            key="aio.use_gds",
            message="GPUDirect storage on a CPU device",
            fix="remove use_gds",
            patch=drop("aio.use_gds"),
        )


def _super_offload(view: ConfigView) -> Iterable[Breach]:
    key = f"{_ZERO}.offload_optimizer.super_offload"
    if view.flag(key) and view.zero_stage != 3 and not view.stage_is_open:
        yield Breach(
            key=key,
            message=f"super_offload at stage {view.zero_stage}",
            fix="write stage 3, or remove super_offload",
            patch=drop(key),
        )


_STAGE_3_ONLY = frozenset(
    {"prefetch_bucket_size", "param_persistence_threshold", "model_persistence_threshold", "max_live_parameters"}
    | {"max_reuse_distance", "module_granularity_threshold", "use_all_reduce_for_fetch_params", "sub_group_size"}
    | {"allgather_sequential", "gather_16bit_weights_on_model_save", "memory_efficient_linear", "leaf_module"}
)
_PLUS_PLUS = frozenset(
    {"zero_quantized_weights", "zero_quantized_nontrainable_weights", "zero_quantized_gradients"}
    | {"zero_hpz_partition_size"}
)


def _below_stage_3(view: ConfigView) -> Iterable[Breach]:
    if view.zero_stage == 3 or view.get(f"{_ZERO}.stage") == AUTO or view.context.from_accelerate:
        return  # of keys in accelerate's own file `accelerate-zero3-only` speaks by their names there
    for name, value in view.block(_ZERO).items():
        asks = value not in (False, None, AUTO) and not (name == "zero_hpz_partition_size" and value == 1)
        if asks and (str(name).startswith("stage3_") or name in _PLUS_PLUS or name in _STAGE_3_ONLY):
            yield Breach(
                key=f"{_ZERO}.{name}",
                message=f"{name!r} has no effect at stage {view.zero_stage}",
                fix="remove it, or write stage 3",
                severity=Severity.WARNING if name in _PLUS_PLUS else None,
                patch=drop((_ZERO, str(name))),
            )


def _hpz(view: ConfigView) -> Iterable[Breach]:
    size = int(view.number(f"{_ZERO}.zero_hpz_partition_size", 1))
    world = view.context.world_size
    if view.zero_stage == 3 and size > 1 and world and world % size:
        yield Breach(
            key=f"{_ZERO}.zero_hpz_partition_size",
            message=f"{world} ranks are not a multiple of zero_hpz_partition_size {size}",
            fix="write the number of GPUs of a node",
        )


def _quantized_gradients(view: ConfigView) -> Iterable[Breach]:
    quantized = view.zero_stage == 3 and view.flag(f"{_ZERO}.zero_quantized_gradients")
    if quantized and not view.flag(f"{_ZERO}.reduce_scatter", True):
        yield Breach(
            key=f"{_ZERO}.reduce_scatter",
            message="zero_quantized_gradients without reduce_scatter",
            fix="write reduce_scatter: true",
            patch=put(f"{_ZERO}.reduce_scatter", True),
        )


def _contiguous_forced(view: ConfigView) -> Iterable[Breach]:
    off = view.has(f"{_ZERO}.contiguous_gradients") and not view.flag(f"{_ZERO}.contiguous_gradients", True)
    if off and view.offload_optimizer != "none" and view.zero_stage in (1, 2):
        yield Breach(
            key=f"{_ZERO}.contiguous_gradients",
            message="contiguous_gradients false is overruled: CPU offload forces it to true",
            fix="write true",
            patch=put(f"{_ZERO}.contiguous_gradients", True),
        )


def _overlap_in_pipeline(view: ConfigView) -> Iterable[Breach]:
    if view.context.pipeline_parallel_size > 1 and view.flag(f"{_ZERO}.overlap_comm") and view.zero_stage == 1:
        yield Breach(
            key=f"{_ZERO}.overlap_comm",
            message="overlap_comm is switched off in a pipeline",
            fix="write overlap_comm: false",
            patch=put(f"{_ZERO}.overlap_comm", False),
        )


ZERO_CONFIG_RULES: tuple[Rule, ...] = (
    Rule(
        name="offload-nvme-without-path",
        severity=Severity.ERROR,
        summary="NVMe offload at stage 3 needs nvme_path; nothing checks it until a TypeError",
        source="DeepSpeed 0.19.8, runtime/zero/stage3.py (seen)",
        check=_nvme_without_path,
    ),
    Rule(
        name="offload-ratio-needs-zero-3",
        severity=Severity.ERROR,
        summary="partial optimizer offload (ratio below 1) exists at stage 3 only, with DeepSpeed's own CPU Adam",
        source="DeepSpeed 0.19.8, runtime/zero/config.py: offload_ratio_check; stage3.py (seen)",
        check=_partial_offload,
    ),
    Rule(
        name="legacy-stage-1",
        severity=Severity.ERROR,
        summary="the old implementation of ZeRO 1 is gone",
        source="DeepSpeed 0.19.8, runtime/engine.py: _configure_zero_optimizer (seen)",
        check=_legacy_stage_1,
    ),
    Rule(
        name="reduce-scatter-scaling",
        severity=Severity.ERROR,
        summary="reduce-scatter averages gradients itself: no prescaling and no predivide factor beside it",
        source="DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py and stage3.py (seen)",
        check=_gradient_scaling,
    ),
    Rule(
        name="sum-reduce-unsupported",
        severity=Severity.ERROR,
        summary="summed (not averaged) gradients are not supported there",
        source="DeepSpeed 0.19.8, runtime/config.py: _do_error_check",
        check=_sum_reduce,
    ),
    Rule(
        name="allgather-bucket-odd",
        severity=Severity.ERROR,
        summary="allgather_bucket_size must be even (NCCL's start alignment)",
        source="DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py (seen)",
        check=_odd_bucket,
    ),
    Rule(
        name="grad-norm-off",
        severity=Severity.ERROR,
        summary="compute_grad_norm=false runs at stages 1 and 2 without clipping, optimizer offload or ZenFlow",
        source="DeepSpeed 0.19.8, runtime/zero/config.py and stage_1_and_2.py (seen)",
        check=_grad_norm,
    ),
    Rule(
        name="zenflow-needs-offload",
        severity=Severity.ERROR,
        summary="ZenFlow at stages 1 and 2 works on an optimizer offloaded to the CPU",
        source="DeepSpeed 0.19.8, runtime/zenflow/zenflow_stage_1_and_2.py (seen)",
        check=_zenflow,
    ),
    Rule(
        name="zenflow-overwrites-accumulation",
        severity=Severity.WARNING,
        summary="with ZenFlow the engine takes the update interval for the number of accumulation steps",
        source="DeepSpeed 0.19.8, runtime/zenflow/engine.py: configure_zenflow",
        check=_zenflow_accumulation,
    ),
    Rule(
        name="gds-needs-cuda",
        severity=Severity.ERROR,
        summary="GPUDirect storage moves data between NVMe and CUDA devices",
        source="DeepSpeed 0.19.8, runtime/swap_tensor/aio_config.py",
        check=_direct_storage,
    ),
    Rule(
        name="super-offload-needs-zero-3",
        severity=Severity.ERROR,
        summary="SuperOffload is an optimizer of ZeRO 3 on CUDA",
        source="DeepSpeed 0.19.8, runtime/engine.py: _configure_zero_optimizer; runtime/superoffload/",
        check=_super_offload,
    ),
    Rule(
        name="stage-3-key-unused",
        severity=Severity.INFO,
        summary="the key is read at stage 3 only",
        source="DeepSpeed 0.19.8, runtime/engine.py: _configure_zero_optimizer (seen for ZeRO++ keys at stage 2)",
        check=_below_stage_3,
    ),
    Rule(
        name="hpz-divides-world",
        severity=Severity.ERROR,
        summary="the secondary partition of ZeRO++ must divide the number of ranks",
        source="DeepSpeed 0.19.8, utils/groups.py (seen)",
        check=_hpz,
    ),
    Rule(
        name="quantized-gradients-need-reduce-scatter",
        severity=Severity.ERROR,
        summary="ZeRO++ quantized gradients replace the reduce-scatter, which must be on",
        source="DeepSpeed 0.19.8, runtime/zero/stage3.py",
        check=_quantized_gradients,
    ),
    Rule(
        name="contiguous-gradients-forced",
        severity=Severity.INFO,
        summary="CPU offload needs contiguous gradients and turns them on",
        source="DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py",
        check=_contiguous_forced,
    ),
    Rule(
        name="overlap-in-pipeline",
        severity=Severity.INFO,
        summary="the pipeline engine schedules its own reductions",
        source="DeepSpeed 0.19.8, runtime/engine.py: _configure_zero_optimizer",
        check=_overlap_in_pipeline,
    ),
)
