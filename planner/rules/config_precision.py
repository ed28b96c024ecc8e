"""Precision in a configuration: types that exclude each other, 16-bit masters, accumulation, loss scaling."""

from __future__ import annotations

from collections.abc import Iterable

from planner.rules.config_context import AUTO, Breach, ConfigView, Severity
from planner.rules.known_keys import parse_release
from planner.rules.patches import drop, put
from planner.rules.rule import Rule
from planner.spec import DeviceKind

_LARGE_SCALE_POWER = 24  # 2^24: dozens of first steps overflow before the scale has come down
_SAME_TYPE = {
    **dict.fromkeys(("fp32", "float32", "float", "torch.float32"), "fp32"),
    **dict.fromkeys(("fp16", "float16", "half", "torch.float16"), "fp16"),
    **dict.fromkeys(("bf16", "bfloat16", "torch.bfloat16"), "bf16"),
}


def _bf16_block(view: ConfigView) -> str:
    return "bf16" if view.has("bf16") or not view.has("bfloat16") else "bfloat16"


def _precision(view: ConfigView) -> str:
    if view.flag("fp16.enabled"):
        return "fp16"
    return "bf16" if view.flag(f"{_bf16_block(view)}.enabled") else "fp32"


def _both_precisions(view: ConfigView) -> Iterable[Breach]:
    if view.flag("fp16.enabled") and view.flag(f"{_bf16_block(view)}.enabled"):
        yield Breach(key="fp16.enabled", message="fp16 and bf16 are both enabled", fix="enable one of them")


def _fp16_on_cpu(view: ConfigView) -> Iterable[Breach]:
    if view.context.device is DeviceKind.CPU and view.flag("fp16.enabled"):
        yield Breach(
            key="fp16.enabled",
            message="fp16 on CPU: DeepSpeed refuses it on processors without AVX-512 FP16",
            fix="use bf16 or fp32",
        )


def _gpu_lacks_bf16(view: ConfigView) -> Iterable[Breach]:
    key = f"{_bf16_block(view)}.enabled"
    if view.context.gpu_has_bf16 is False and view.flag(key):
        yield Breach(
            key=key,
            message="this GPU has no bf16 units: DeepSpeed refuses bf16 on it",
            fix="enable fp16 instead",
        )


def _autocast(view: ConfigView) -> Iterable[Breach]:
    if not view.flag("torch_autocast.enabled"):
        return
    if view.flag("zero_optimization.zero_quantized_weights"):
        yield Breach(
            key="zero_optimization.zero_quantized_weights",
            message="torch_autocast with quantized weights of ZeRO++",
            fix="keep one of them",
        )


def _parameter_type(view: ConfigView) -> Iterable[Breach]:
    wanted = view.get("data_types.param_dtype")
    if not isinstance(wanted, str) or AUTO in (view.get("fp16.enabled"), view.get("bf16.enabled")):
        return
    precision = _precision(view)
    if _SAME_TYPE.get(wanted, precision) != precision:
        yield Breach(
            key="data_types.param_dtype",
            message=f"param_dtype {wanted} beside {precision} training",
            fix=f"enable the precision {_SAME_TYPE[wanted]}, or remove param_dtype",
            patch=drop("data_types.param_dtype"),
        )


def _amp(view: ConfigView) -> Iterable[Breach]:
    """Apex AMP, which releases before 0.19.8 still have."""
    if parse_release(view.context.deepspeed_version) >= (0, 19, 8) or not view.flag("amp.enabled"):
        return
    for refused, what in (
        (view.flag("fp16.enabled"), "fp16"),
        (view.flag(f"{_bf16_block(view)}.enabled"), "bf16"),
        (view.zero_stage > 0, f"ZeRO stage {view.zero_stage}"),
    ):
        if refused:
            yield Breach(
                key="amp.enabled",
                message=f"Apex AMP together with {what}",
                fix="remove amp and use fp16 or bf16",
                patch=drop("amp"),
            )


def _low_precision_masters(view: ConfigView) -> Iterable[Breach]:
    sixteen_bit_states = view.flag("bf16.bf16_optimizer_states")
    for key in ("fp16.fp16_master_weights_and_grads", "bf16.bf16_master_weights_and_grads"):
        if not view.flag(key):
            continue
        if view.zero_stage == 0 and not view.stage_is_open:
            yield Breach(key=key, message="16-bit master weights at ZeRO stage 0", fix="write stage 1, 2 or 3")
        elif view.offload_optimizer == "none" and not (key.startswith("bf16") and sixteen_bit_states):
            yield Breach(
                key=key,
                message="16-bit master weights without CPU offload of the optimizer",
                fix='write zero_optimization.offload_optimizer: {"device": "cpu"}'
                + (", or bf16_optimizer_states: true" if key.startswith("bf16") else ""),
            )
    if sixteen_bit_states and not view.flag("bf16.bf16_master_weights_and_grads"):
        yield Breach(
            key="bf16.bf16_optimizer_states",
            message="bf16_optimizer_states without bf16_master_weights_and_grads",
            fix="enable bf16_master_weights_and_grads too",
        )


def _accumulation_type(view: ConfigView) -> Iterable[Breach]:
    wanted = view.get("data_types.grad_accum_dtype")
    if not isinstance(wanted, str) or wanted == AUTO or view.get("zero_optimization.stage") == AUTO:
        return
    is_wrapped = view.zero_stage == 1 and view.offload_optimizer == "none" and _precision(view) == "bf16"
    if is_wrapped and _SAME_TYPE.get(wanted) == "fp32":
        yield Breach(
            key="data_types.grad_accum_dtype",
            message="bf16 with fp32 accumulation at stage 1 selects BF16_Optimizer, which keeps whole fp32 gradients",
            fix="write grad_accum_dtype: bf16, or stage 2, where memory counts",
            severity=Severity.NOTE,
        )
    if view.zero_stage > 0 or view.get("fp16.enabled") == AUTO or view.get("bf16.enabled") == AUTO:
        return
    precision = _precision(view)
    if _SAME_TYPE.get(wanted, precision) != precision:
        yield Breach(
            key="data_types.grad_accum_dtype",
            message=f"gradients accumulated in {wanted} beside {precision} training at ZeRO stage 0",
            fix=f"write grad_accum_dtype: {precision}, or a ZeRO stage of 1 or more",
            patch=put("data_types.grad_accum_dtype", precision),
        )


def _loss_scale(view: ConfigView) -> Iterable[Breach]:
    if not view.flag("fp16.enabled") and view.get("fp16.enabled") != AUTO:
        return
    static = view.number("fp16.loss_scale")
    if static > 0 and view.optimizer_type == "lamb":
        yield Breach(
            key="fp16.loss_scale",
            message=f"static loss_scale {static:g} with Lamb, which DeepSpeed refuses",
            fix="write loss_scale: 0 (dynamic)",
            severity=Severity.ERROR,
            patch=put("fp16.loss_scale", 0),
        )
    elif static > 0:
        yield Breach(
            key="fp16.loss_scale",
            message=f"static loss_scale {static:g}: small gradients are lost, or steps overflow for good",
            fix="write loss_scale: 0 (dynamic)",
        )
    elif view.number("fp16.initial_scale_power", 16) > _LARGE_SCALE_POWER:
        yield Breach(
            key="fp16.initial_scale_power",
            message=f"a first loss scale of 2^{view.number('fp16.initial_scale_power'):g} overflows in first steps, "
            "which are then skipped: a short trial may see skipped steps only",
            fix="write initial_scale_power: 16",
            patch=put("fp16.initial_scale_power", 16),
        )
    for key in ("loss_scale_window", "min_loss_scale"):
        if static == 0 and view.flag("fp16.enabled") and view.has(f"fp16.{key}") and view.number(f"fp16.{key}", 1) <= 0:
            yield Breach(
                key=f"fp16.{key}",
                message=f"{key} must be positive with dynamic loss scaling",
                fix="write 1 or more",
                severity=Severity.ERROR,
                patch=put(f"fp16.{key}", 1),
            )


PRECISION_CONFIG_RULES: tuple[Rule, ...] = (
    Rule(
        name="precision-both",
        severity=Severity.ERROR,
        summary="fp16 and bf16 exclude each other",
        source="DeepSpeed 0.19.8, runtime/config.py: assertion in _initialize_params",
        check=_both_precisions,
    ),
    Rule(
        name="precision-fp16-on-cpu",
        severity=Severity.WARNING,
        summary="the CPU accelerator has fp16 only where oneDNN has it",
        source="DeepSpeed 0.19.8, runtime/engine.py: _do_sanity_check (seen)",
        check=_fp16_on_cpu,
    ),
    Rule(
        name="precision-bf16-on-gpu",
        severity=Severity.ERROR,
        summary="bf16 needs a GPU that computes in it",
        source="DeepSpeed 0.19.8, runtime/engine.py: _do_sanity_check; the catalog's peak rates",
        check=_gpu_lacks_bf16,
    ),
    Rule(
        name="precision-autocast",
        severity=Severity.ERROR,
        summary="autocast and the quantized weights of ZeRO++ both own the type in which parameters travel",
        source="DeepSpeed 0.19.8, runtime/torch_autocast.py",
        check=_autocast,
    ),
    Rule(
        name="precision-parameter-type",
        severity=Severity.ERROR,
        summary="the type of the parameters follows from fp16 and bf16, and may only be repeated",
        source="DeepSpeed 0.19.8, runtime/engine.py: _assert_valid_mixed_precision_config",
        check=_parameter_type,
    ),
    Rule(
        name="precision-amp",
        severity=Severity.ERROR,
        summary="Apex AMP excludes DeepSpeed's own precisions and ZeRO",
        source="DeepSpeed 0.19.6, runtime/engine.py: _configure_optimizer, _do_args_sanity_check",
        check=_amp,
    ),
    Rule(
        name="precision-16-bit-masters",
        severity=Severity.ERROR,
        summary="16-bit master weights need ZeRO 1 to 3 and CPU offload (bf16: or 16-bit optimizer states)",
        source="DeepSpeed 0.19.8, runtime/config.py: _do_error_check; runtime/base_optimizer.py (seen)",
        check=_low_precision_masters,
    ),
    Rule(
        name="precision-accumulation-type",
        severity=Severity.ERROR,
        summary="without ZeRO, gradients accumulate in the training precision; anything else is NotImplementedError",
        source="DeepSpeed 0.19.8, runtime/engine.py: _do_optimizer_sanity_check (seen for bf16 and fp16)",
        check=_accumulation_type,
    ),
    Rule(
        name="loss-scale",
        severity=Severity.INFO,
        summary="fp16 trains with a loss scale, which is best left dynamic and started low enough",
        source="DeepSpeed 0.19.8, runtime/precision_config.py and runtime/fp16/loss_scaler.py",
        check=_loss_scale,
    ),
)
