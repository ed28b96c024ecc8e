"""Optimizer and learning-rate schedule in a configuration."""

from __future__ import annotations

from collections.abc import Iterable

from planner.rules.config_context import Breach, ConfigView, Consumer, Severity
from planner.rules.known_keys import parse_version
from planner.rules.rule import Rule

_REMOVED_OPTIMIZERS = ("onebitadam", "zerooneadam", "onebitlamb")  # in 0.19.7
_DEEPSPEED_OPTIMIZERS = frozenset({"adagrad", "adam", "adamw", "lamb", "muadam", "muadamw", "musgd", "lion", "muon"})
# torch 2.13, torch.optim: what an unknown name is looked up in, exactly as written.
_TORCH_OPTIMIZERS = frozenset(
    {"ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "Muon", "NAdam", "Optimizer"}
    | {"RAdam", "RMSprop", "Rprop", "SGD", "SparseAdam"}
)
_TESTED_WITH_ZERO = frozenset({"adam", "adamw", "adagrad", "lion", "muon"})
_SCHEDULES = ("LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR")


def _optimizer_missing(view: ConfigView) -> Iterable[Breach]:
    passes_one = view.context.client_optimizer
    if view.zero_stage not in (1, 2) or view.optimizer_type or view.context.consumer is not Consumer.DEEPSPEED:
        return
    if not passes_one:
        yield Breach(
            key="optimizer",
            message=f"ZeRO stage {view.zero_stage} and no optimizer block",
            fix="write one, or pass an optimizer to deepspeed.initialize",
            severity=Severity.INFO if passes_one is None else None,
        )


def _optimizer_name(view: ConfigView) -> Iterable[Breach]:
    name = view.get("optimizer.type")
    if not isinstance(name, str) or view.context.client_optimizer:
        return
    if name.lower() in _REMOVED_OPTIMIZERS:
        if parse_version(view.context.deepspeed_version) >= (0, 19, 7):
            yield Breach(
                key="optimizer.type", message=f"{name} was removed in DeepSpeed 0.19.7", fix="write AdamW or Lamb"
            )
        elif view.zero_stage > 0:
            yield Breach(
                key="optimizer.type", message=f"{name} with ZeRO stage {view.zero_stage}", fix="write AdamW, or stage 0"
            )
    elif name.lower() not in _DEEPSPEED_OPTIMIZERS and name not in _TORCH_OPTIMIZERS:
        yield Breach(
            key="optimizer.type",
            message=f"{name!r} is neither an optimizer of DeepSpeed nor, spelled like this, of torch.optim",
            fix=f"write one of {', '.join(sorted(_DEEPSPEED_OPTIMIZERS))}, or a class of torch.optim such as SGD",
        )


def _optimizer_untested(view: ConfigView) -> Iterable[Breach]:
    name = view.optimizer_type
    if not name or view.zero_stage == 0 or view.context.client_optimizer or name in _REMOVED_OPTIMIZERS:
        return
    if name not in _TESTED_WITH_ZERO and not view.flag("zero_allow_untested_optimizer"):
        yield Breach(
            key="optimizer.type",
            message=f"{view.get('optimizer.type')} with ZeRO stage {view.zero_stage} is not on DeepSpeed's tested list",
            fix="write zero_allow_untested_optimizer: true",
        )


def _max_grad_norm(view: ConfigView) -> Iterable[Breach]:
    if view.has("optimizer.params.max_grad_norm") and not view.context.client_optimizer:
        yield Breach(
            key="optimizer.params.max_grad_norm",
            message="max_grad_norm is refused as an optimizer parameter",
            fix="write gradient_clipping at the top level",
        )


def _client_optimizer_offload(view: ConfigView) -> Iterable[Breach]:
    forced = view.flag("zero_force_ds_cpu_optimizer", True)
    if view.context.client_optimizer and forced and view.offload_optimizer != "none" and view.zero_stage > 0:
        yield Breach(
            key="zero_optimization.offload_optimizer",
            message="the script passes its own optimizer, which offload refuses unless it is DeepSpeed's own for CPUs",
            fix="use deepspeed.ops.adam.DeepSpeedCPUAdam, or write zero_force_ds_cpu_optimizer: false at the top level",
        )


def _muon(view: ConfigView) -> Iterable[Breach]:
    if view.optimizer_type == "muon" and view.zero_stage == 3:
        if view.flag("zero_optimization.reduce_scatter", True):
            yield Breach(
                key="zero_optimization.reduce_scatter",
                message="Muon with reduce_scatter at stage 3",
                fix="write reduce_scatter: false",
            )
        if view.flag("zero_optimization.zero_quantized_gradients"):
            yield Breach(
                key="zero_optimization.zero_quantized_gradients",
                message="Muon with quantized gradients",
                fix="write zero_quantized_gradients: false",
            )


def _schedule_name(view: ConfigView) -> Iterable[Breach]:
    name = view.get("scheduler.type")
    if isinstance(name, str) and name not in _SCHEDULES:
        yield Breach(
            key="scheduler.type",
            message=f"{name!r} is no schedule of DeepSpeed",
            fix=f"write one of {', '.join(_SCHEDULES)}",
        )


def _schedule_overrules(view: ConfigView) -> Iterable[Breach]:
    if view.get("scheduler.type") not in ("WarmupLR", "WarmupDecayLR"):
        return
    rate = view.get("optimizer.params.lr")
    if view.has("optimizer.params.lr") and not view.has("scheduler.params.warmup_max_lr") and rate != 0.001:
        yield Breach(
            key="scheduler.params.warmup_max_lr",
            message=f"without warmup_max_lr the schedule climbs to its default 0.001, not to optimizer lr {rate}",
            fix="write warmup_max_lr: the optimizer's lr",
        )


OPTIMIZER_CONFIG_RULES: tuple[Rule, ...] = (
    Rule(
        name="optimizer-missing",
        severity=Severity.ERROR,
        summary="ZeRO 1 and 2 partition an optimizer's states and need one",
        source="DeepSpeed 0.19.8, runtime/engine.py: _configure_zero_optimizer (seen)",
        check=_optimizer_missing,
    ),
    Rule(
        name="optimizer-unknown",
        severity=Severity.ERROR,
        summary="DeepSpeed takes its own optimizers and the classes of torch.optim",
        source="DeepSpeed 0.19.8, runtime/engine.py: _is_supported_optimizer (seen)",
        check=_optimizer_name,
    ),
    Rule(
        name="optimizer-untested",
        severity=Severity.ERROR,
        summary="ZeRO refuses optimizers it was not tested with unless told otherwise",
        source="DeepSpeed 0.19.8, runtime/zero/utils.py: ZERO_SUPPORTED_OPTIMIZERS (seen for SGD)",
        check=_optimizer_untested,
    ),
    Rule(
        name="optimizer-max-grad-norm",
        severity=Severity.ERROR,
        summary="clipping is DeepSpeed's own business: gradient_clipping",
        source="DeepSpeed 0.19.8, runtime/engine.py: _configure_basic_optimizer (seen)",
        check=_max_grad_norm,
    ),
    Rule(
        name="optimizer-client-offload",
        severity=Severity.ERROR,
        summary="offloaded states are stepped on the CPU, which DeepSpeed entrusts to its own optimizers",
        source="DeepSpeed 0.19.8, runtime/engine.py: _configure_optimizer (seen)",
        check=_client_optimizer_offload,
    ),
    Rule(
        name="muon-reduce-scatter",
        severity=Severity.ERROR,
        summary="Muon needs whole gradients at ZeRO 3",
        source="DeepSpeed 0.19.8, runtime/zero/stage3.py (seen)",
        check=_muon,
    ),
    Rule(
        name="schedule-unknown",
        severity=Severity.ERROR,
        summary="DeepSpeed has five learning-rate schedules",
        source="DeepSpeed 0.19.8, runtime/lr_schedules.py",
        check=_schedule_name,
    ),
    Rule(
        name="schedule-overrules-lr",
        severity=Severity.WARNING,
        summary="the schedule sets the learning rate and does not look at the optimizer's",
        source="DeepSpeed 0.19.8, runtime/lr_schedules.py: WarmupLR",
        check=_schedule_overrules,
    ),
)
