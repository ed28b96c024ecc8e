"""ZeRO and offload in a configuration: what is refused, and what is ignored without a word."""

from __future__ import annotations

from collections.abc import Iterable

from planner.rules.config_context import Breach, ConfigView, Severity
from planner.rules.rule import Rule

_ZERO = "zero_optimization"


def zero_with_pipeline(view: ConfigView) -> Iterable[Breach]:
    """ZeRO 2 or 3 with pipeline stages."""
    if view.context.pipeline_parallel_size > 1 and view.zero_stage >= 2:
        yield Breach(
            key=f"{_ZERO}.stage",
            message=f"ZeRO stage {view.zero_stage} with {view.context.pipeline_parallel_size} pipeline stages",
            fix="write stage 1 (or 0), or run without a pipeline",
        )


def offload_param_below_zero_3(view: ConfigView) -> Iterable[Breach]:
    """offload_param below stage 3 is ignored."""
    if view.offload_param != "none" and view.zero_stage < 3:
        yield Breach(
            key=f"{_ZERO}.offload_param",
            message=f"offload_param does nothing at stage {view.zero_stage}",
            fix="write stage 3, or remove offload_param",
            severity=Severity.WARNING,
        )


def offload_optimizer_at_zero_0(view: ConfigView) -> Iterable[Breach]:
    """offload_optimizer at stage 0 is no offload."""
    if view.offload_optimizer != "none" and view.zero_stage == 0:
        yield Breach(
            key=f"{_ZERO}.offload_optimizer",
            message="offload_optimizer offloads nothing at stage 0",
            fix="write stage 1, 2 or 3, or remove offload_optimizer",
            severity=Severity.WARNING,
        )


def nvme_below_zero_3(view: ConfigView) -> Iterable[Breach]:
    """NVMe at stages 1 and 2 is host memory."""
    if view.offload_optimizer == "nvme" and view.zero_stage in (1, 2):
        yield Breach(
            key=f"{_ZERO}.offload_optimizer.device",
            message=f"at stage {view.zero_stage} NVMe is treated as host memory",
            fix='write device "cpu", or stage 3',
            severity=Severity.WARNING,
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
    if ratio < 1 and view.zero_stage != 3:
        yield Breach(
            key=f"{_ZERO}.offload_optimizer.ratio",
            message=f"ratio {ratio:g} at stage {view.zero_stage}",
            fix="write stage 3, or ratio 1.0",
        )
    elif ratio < 1 and view.flag("optimizer.params.torch_adam"):
        yield Breach(
            key=f"{_ZERO}.offload_optimizer.ratio",
            message=f"ratio {ratio:g} with torch_adam",
            fix="remove torch_adam: partial offload needs DeepSpeed's own CPU Adam",
        )


def _legacy_stage_1(view: ConfigView) -> Iterable[Breach]:
    if view.flag(f"{_ZERO}.legacy_stage1") and view.zero_stage > 0:
        yield Breach(key=f"{_ZERO}.legacy_stage1", message="legacy_stage1 raises", fix="remove it")


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
        )
    if view.number("gradient_predivide_factor", 1.0) != 1.0:
        yield Breach(
            key="gradient_predivide_factor",
            message=f"gradient_predivide_factor with reduce_scatter at stage {view.zero_stage}",
            fix=f"write gradient_predivide_factor: 1.0, or {_ZERO}.reduce_scatter: false",
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
        )


def _grad_norm(view: ConfigView) -> Iterable[Breach]:
    if view.flag(f"{_ZERO}.compute_grad_norm", True):
        return
    key = f"{_ZERO}.compute_grad_norm"
    if view.zero_stage not in (1, 2):
        yield Breach(key=key, message=f"compute_grad_norm false at stage {view.zero_stage}", fix="remove it")
    if view.number("gradient_clipping", 1.0) > 0:
        yield Breach(
            key="gradient_clipping",
            message="compute_grad_norm false with gradient clipping (whose default is 1.0)",
            fix="write gradient_clipping: 0",
        )
    if view.offload_optimizer != "none":
        yield Breach(key=key, message="compute_grad_norm false with optimizer offload", fix="remove it")
    if view.block(f"{_ZERO}.zenflow"):
        yield Breach(key=key, message="compute_grad_norm false with ZenFlow", fix="remove it")


def _zenflow(view: ConfigView) -> Iterable[Breach]:
    if not view.block(f"{_ZERO}.zenflow"):
        return
    if view.zero_stage in (1, 2) and view.offload_optimizer != "cpu":
        yield Breach(
            key=f"{_ZERO}.zenflow",
            message=f"ZenFlow at stage {view.zero_stage} without CPU offload of the optimizer",
            fix=f'write {_ZERO}.offload_optimizer: {{"device": "cpu"}}',
        )


def _below_stage_3(view: ConfigView) -> Iterable[Breach]:
    if view.zero_stage == 3 or view.get(f"{_ZERO}.stage") == "auto":
        return
    plus_plus = {
        "zero_quantized_weights",
        "zero_quantized_nontrainable_weights",
        "zero_quantized_gradients",
        "zero_hpz_partition_size",
    }
    for name, value in view.block(_ZERO).items():
        asks = value not in (False, None, "auto") and not (name == "zero_hpz_partition_size" and value == 1)
        if asks and (str(name).startswith("stage3_") or name in plus_plus or name == "sub_group_size"):
            yield Breach(
                key=f"{_ZERO}.{name}",
                message=f"{name!r} has no effect at stage {view.zero_stage}",
                fix="remove it, or write stage 3",
                severity=Severity.WARNING if name in plus_plus else None,
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
        )


def _contiguous_forced(view: ConfigView) -> Iterable[Breach]:
    off = view.has(f"{_ZERO}.contiguous_gradients") and not view.flag(f"{_ZERO}.contiguous_gradients", True)
    if off and view.offload_optimizer != "none" and view.zero_stage in (1, 2):
        yield Breach(
            key=f"{_ZERO}.contiguous_gradients",
            message="contiguous_gradients false is overruled: CPU offload forces it to true",
            fix="write true",
        )


def _overlap_in_pipeline(view: ConfigView) -> Iterable[Breach]:
    if view.context.pipeline_parallel_size > 1 and view.flag(f"{_ZERO}.overlap_comm") and view.zero_stage == 1:
        yield Breach(
            key=f"{_ZERO}.overlap_comm",
            message="overlap_comm is switched off in a pipeline",
            fix="write overlap_comm: false",
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
