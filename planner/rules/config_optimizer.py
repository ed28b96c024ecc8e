"""Optimizer and learning-rate schedule in a configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from planner.errors import near_matches
from planner.rules.config_context import AUTO, Breach, ConfigView, Consumer, Severity
from planner.rules.config_entries import shown
from planner.rules.known_keys import parse_release
from planner.rules.patches import drop, merged, put
from planner.rules.rule import Rule

_REMOVED_OPTIMIZERS = ("onebitadam", "zerooneadam", "onebitlamb")  # in 0.19.7
_DEEPSPEED_OPTIMIZERS = frozenset({"adagrad", "adam", "adamw", "lamb", "muadam", "muadamw", "musgd", "lion", "muon"})
# torch 2.13, torch.optim: what an unknown name is looked up in, exactly as written.
_TORCH_OPTIMIZERS = frozenset(
    {"ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "Muon", "NAdam", "Optimizer"}
    | {"RAdam", "RMSprop", "Rprop", "SGD", "SparseAdam"}
)
_ADAM = frozenset(
    {"lr", "betas", "eps", "weight_decay", "bias_correction", "amsgrad", "adam_w_mode", "torch_adam", "set_grad_none"}
    | {"fp32_optimizer_states", "fused", "foreach", "capturable", "differentiable", "maximize", "legacy_fusion"}
)
_LAMB = frozenset(
    {"lr", "betas", "eps", "weight_decay", "bias_correction", "eps_inside_sqrt", "max_coeff", "min_coeff", "amsgrad"}
)
# ops/adam/fused_adam.py, cpu_adam.py, ops/lamb/fused_lamb.py, ops/lion/, ops/adagrad/; runtime/engine.py takes some off
_PARAMETERS: Mapping[str, frozenset[str]] = {
    "adam": _ADAM,
    "adamw": _ADAM,
    "lamb": _LAMB,
    "lion": frozenset({"lr", "betas", "weight_decay", "set_grad_none"}),
    "adagrad": frozenset({"lr", "eps", "weight_decay", "amsgrad", "fp32_optimizer_states"}),
}
# What other programs call a parameter of these constructors.
_FOREIGN_PARAMETERS: Mapping[str, str] = {
    **dict.fromkeys(("learning_rate", "lrate", "base_lr", "max_lr"), "lr"),
    **dict.fromkeys(("epsilon", "adam_epsilon", "adam_eps"), "eps"),
    **dict.fromkeys(("wd", "decay", "l2", "weight_decay_rate"), "weight_decay"),
    **dict.fromkeys(("beta", "beta1", "beta2", "beta_1", "beta_2", "adam_beta1", "adam_beta2"), "betas"),
}
_DECAY_THAT_MATTERS = 1e-4  # times the rate, per step: less moves no weight within a run
_DEFAULT_PEAK = 0.001
_TESTED_WITH_ZERO = frozenset({"adam", "adamw", "adagrad", "lion", "muon"})
_WARMUP = frozenset({"warmup_num_steps", "warmup_type", "last_batch_iteration"})
# runtime/lr_schedules.py: the constructors' parameters
_SCHEDULES: Mapping[str, frozenset[str]] = {
    "LRRangeTest": frozenset(
        {"lr_range_test_min_lr", "lr_range_test_step_size", "lr_range_test_step_rate", "lr_range_test_staircase"}
        | {"last_batch_iteration"}
    ),
    "OneCycle": frozenset(
        {"cycle_min_lr", "cycle_max_lr", "decay_lr_rate", "cycle_first_step_size", "cycle_second_step_size"}
        | {"cycle_first_stair_count", "cycle_second_stair_count", "decay_step_size", "cycle_momentum"}
        | {"cycle_min_mom", "cycle_max_mom", "decay_mom_rate", "last_batch_iteration"}
    ),
    "WarmupLR": _WARMUP | {"warmup_min_lr", "warmup_max_lr"},
    "WarmupDecayLR": _WARMUP | {"total_num_steps", "warmup_min_lr", "warmup_max_lr"},
    "WarmupCosineLR": _WARMUP | {"total_num_steps", "warmup_min_ratio", "cos_min_ratio"},
}
_NEEDED = {
    "OneCycle": ("cycle_min_lr", "cycle_max_lr"),
    "WarmupDecayLR": ("total_num_steps",),
    "WarmupCosineLR": ("total_num_steps",),
}


def _optimizer_missing(view: ConfigView) -> Iterable[Breach]:
    passes_one = view.context.client_optimizer
    if view.zero_stage not in (1, 2) or view.optimizer_type or view.context.consumer is not Consumer.DEEPSPEED:
        return
    if not passes_one:
        yield Breach(
            key="optimizer",
            message=f"ZeRO stage {view.zero_stage} and no optimizer block",
            fix="write one, or pass an optimizer to deepspeed.initialize",
            severity=Severity.NOTE if passes_one is None else None,
        )


def _optimizer_name(view: ConfigView) -> Iterable[Breach]:
    name = view.get("optimizer.type")
    if not isinstance(name, str) or view.context.client_optimizer or name == AUTO:
        return
    if name.lower() in _REMOVED_OPTIMIZERS:
        yield from _one_bit(view, name)
    elif name.lower() not in _DEEPSPEED_OPTIMIZERS and name not in _TORCH_OPTIMIZERS:
        near = near_matches(name, (*_DEEPSPEED_OPTIMIZERS, *_TORCH_OPTIMIZERS), limit=1)
        yield Breach(
            key="optimizer.type",
            message=f"{shown(name)} is neither an optimizer of DeepSpeed nor, spelled like this, of torch.optim",
            fix=(f"did you mean {near[0]}? else " if near else "")
            + f"write one of {', '.join(sorted(_DEEPSPEED_OPTIMIZERS))}, or a class of torch.optim such as SGD",
        )


def _one_bit(view: ConfigView, name: str) -> Iterable[Breach]:
    if parse_release(view.context.deepspeed_version) >= (0, 19, 7):
        with_zero = f" (and never worked with ZeRO stage {view.zero_stage})" if view.zero_stage > 0 else ""
        yield Breach(
            key="optimizer.type",
            message=f"{name} was removed in DeepSpeed 0.19.7{with_zero}",
            fix="write AdamW or Lamb",
        )
    elif view.zero_stage > 0:
        yield Breach(
            key="optimizer.type",
            message=f"{name} with ZeRO stage {view.zero_stage}: 1-bit optimizers exchange gradients themselves and run "
            "without ZeRO only",
            fix="write AdamW, or stage 0",
        )


def _optimizer_untested(view: ConfigView) -> Iterable[Breach]:
    name = view.optimizer_type
    is_theirs = view.context.client_optimizer or name in _REMOVED_OPTIMIZERS or name == AUTO
    if not name or view.zero_stage == 0 or is_theirs or view.flag("zero_allow_untested_optimizer"):
        return
    if name not in _TESTED_WITH_ZERO:
        yield Breach(
            key="optimizer.type",
            message=f"{shown(view.get('optimizer.type'))} with ZeRO stage {view.zero_stage} is not on DeepSpeed's "
            "tested list",
            fix="write zero_allow_untested_optimizer: true",
            patch=put("zero_allow_untested_optimizer", True),
        )


def _max_grad_norm(view: ConfigView) -> Iterable[Breach]:
    if view.has("optimizer.params.max_grad_norm") and not view.context.client_optimizer:
        value = view.get("optimizer.params.max_grad_norm")
        moved = {} if view.has("gradient_clipping") else put("gradient_clipping", value)
        yield Breach(
            key="optimizer.params.max_grad_norm",
            message="max_grad_norm is refused as an optimizer parameter",
            fix="write gradient_clipping at the top level",
            patch=merged(drop("optimizer.params.max_grad_norm"), moved),
        )


def _optimizer_parameters(view: ConfigView) -> Iterable[Breach]:
    """Parameters that the optimizer's constructor does not take: a TypeError when it is built."""
    known = _PARAMETERS.get(view.optimizer_type)
    if known is None or view.context.client_optimizer:
        return
    for name in [str(name) for name in view.block("optimizer.params") if name not in known | {"max_grad_norm"}][:20]:
        foreign = _FOREIGN_PARAMETERS.get(name.lower(), "")
        near = (foreign,) if foreign in known else near_matches(name, known, limit=1)
        parts = ("optimizer", "params", name)
        renames = foreign in known - {"betas"} and foreign not in view.block("optimizer.params")
        renamed = merged(drop(parts), put((*parts[:-1], foreign), view.block("optimizer.params")[name]))
        yield Breach(
            key=f"optimizer.params.{name}",
            message=f"{view.get('optimizer.type')} takes no parameter {shown(name)}",
            fix=f"write {near[0]!r}" if near else "remove it",
            patch=renamed if renames else None if near else drop(parts),
        )
    amsgrad = view.flag("optimizer.params.amsgrad") and view.offload_optimizer == "none"
    if view.optimizer_type in ("adam", "adamw", "lamb") and amsgrad and not view.flag("optimizer.params.torch_adam"):
        yield Breach(
            key="optimizer.params.amsgrad",
            message="DeepSpeed's fused optimizers have no AMSGrad variant and refuse it",
            fix="remove amsgrad, or write torch_adam: true",
            patch=drop("optimizer.params.amsgrad"),
        )


def _adam_decay(view: ConfigView) -> Iterable[Breach]:
    decay = view.number("optimizer.params.weight_decay")
    if view.optimizer_type == "adam" and decay >= _DECAY_THAT_MATTERS and not view.has("optimizer.params.adam_w_mode"):
        yield Breach(
            key="optimizer.type",
            message=f"'Adam' with weight_decay {decay:g} runs as AdamW: the decay does not go through the gradient",
            fix='write "AdamW", or adam_w_mode: false in params for the classic L2 form',
            patch=put("optimizer.type", "AdamW"),
        )


def _client_optimizer_offload(view: ConfigView) -> Iterable[Breach]:
    context = view.context
    forced = view.flag("zero_force_ds_cpu_optimizer", True)
    is_own = "DeepSpeedCPU" in context.client_optimizer_name
    offloads = view.offload_optimizer != "none" and view.zero_stage > 0
    if context.client_optimizer and forced and offloads and not is_own:
        name = f" ({context.client_optimizer_name})" if context.client_optimizer_name else ""
        yield Breach(
            key="zero_optimization.offload_optimizer",
            message=f"the script passes its own optimizer{name}, which offload refuses unless it is DeepSpeed's own "
            "for CPUs",
            fix="use deepspeed.ops.adam.DeepSpeedCPUAdam, or write zero_force_ds_cpu_optimizer: false at the top level "
            "of the DeepSpeed file",
            patch=put("zero_force_ds_cpu_optimizer", False),
        )


def _block_beside_client(view: ConfigView) -> Iterable[Breach]:
    if view.context.client_optimizer and view.optimizer_type:
        yield Breach(
            key="optimizer",
            message="the script passes its own optimizer, so the optimizer block is not used"
            + (" (accelerate refuses the two together)" if view.resolves_auto else ""),
            fix="remove the block, or pass no optimizer in the script",
            severity=Severity.ERROR if view.resolves_auto else None,
            patch=drop("optimizer"),
        )


def _slow_offload(view: ConfigView) -> Iterable[Breach]:
    allowed = view.has("zero_force_ds_cpu_optimizer") and not view.flag("zero_force_ds_cpu_optimizer", True)
    if allowed and view.offload_optimizer != "none" and view.zero_stage > 0 and not view.optimizer_type:
        yield Breach(
            key="zero_force_ds_cpu_optimizer",
            message="zero_force_ds_cpu_optimizer false lets the script's own optimizer step on the CPU, several times "
            "slower than DeepSpeedCPUAdam",
            fix="pass deepspeed.ops.adam.DeepSpeedCPUAdam in the script",
        )


def _muon(view: ConfigView) -> Iterable[Breach]:
    if view.optimizer_type != "muon":
        return
    scatters = view.flag("zero_optimization.reduce_scatter", True)
    old = parse_release(view.context.deepspeed_version) < (0, 19, 8)
    offloaded = old and view.zero_stage in (1, 2) and view.offload_optimizer != "none"
    if scatters and (view.zero_stage == 3 or offloaded):
        yield Breach(
            key="zero_optimization.reduce_scatter",
            message="Muon with reduce_scatter "
            + ("at stage 3" if view.zero_stage == 3 else "and an offloaded optimizer, before 0.19.8"),
            fix="write reduce_scatter: false",
            patch=put("zero_optimization.reduce_scatter", False),
        )
    if view.zero_stage == 3 and view.flag("zero_optimization.zero_quantized_gradients"):
        yield Breach(
            key="zero_optimization.zero_quantized_gradients",
            message="Muon with quantized gradients",
            fix="write zero_quantized_gradients: false",
            patch=put("zero_optimization.zero_quantized_gradients", False),
        )


def _schedule_name(view: ConfigView) -> Iterable[Breach]:
    name = view.get("scheduler.type")
    if isinstance(name, str) and name not in _SCHEDULES and name != AUTO:
        near = near_matches(name, _SCHEDULES, limit=1)
        yield Breach(
            key="scheduler.type",
            message=f"{shown(name)} is no schedule of DeepSpeed",
            fix=(f"did you mean {near[0]}? else " if near else "") + f"write one of {', '.join(_SCHEDULES)}",
            patch=put("scheduler.type", near[0]) if near and near[0].lower() == name.lower() else None,
        )


def _schedule_parameters(view: ConfigView) -> Iterable[Breach]:
    schedule = view.get("scheduler.type")
    known = _SCHEDULES.get(schedule) if isinstance(schedule, str) else None
    if known is None:
        return
    given = [str(name) for name in view.block("scheduler.params")]
    for name in [name for name in given if name not in known][:20]:
        near = near_matches(name, known, limit=1)
        yield Breach(
            key=f"scheduler.params.{name}",
            message=f"{schedule} takes no parameter {shown(name)}",
            fix=f"write {near[0]!r}" if near else "remove it",
            patch=drop(("scheduler", "params", name)) if not near else None,
        )
    for name in _NEEDED.get(str(schedule), ()):
        if name not in given:
            yield Breach(
                key=f"scheduler.params.{name}",
                message=f"{schedule} needs {name}",
                fix=f"write {name}" + (": auto" if view.resolves_auto else ""),
            )


def _warmup_steps(view: ConfigView) -> Iterable[Breach]:
    key = "scheduler.params.warmup_num_steps"
    value = view.get(key)
    if (
        not isinstance(value, (int, float))
        or isinstance(value, bool)
        or not str(view.get("scheduler.type")).startswith("Warmup")
    ):
        return
    if value <= 0 or value != int(value):
        refuses = parse_release(view.context.deepspeed_version) >= (0, 19, 3)
        yield Breach(
            key=key,
            message=f"warmup_num_steps {value} "
            + ("is refused: it must be a positive whole number" if refuses else "is read as 2"),
            fix="write 1 or more",
            severity=Severity.ERROR if refuses else Severity.INFO,
            patch=put(key, max(1, int(value))) if abs(value) < 1e15 else None,
        )
    elif value == 1:
        yield Breach(
            key=key,
            message="a warm-up of 1 step is read as 2; releases before 0.14 divided by zero",
            fix="write 2 or more",
            severity=Severity.INFO,
        )


def _schedule_overrules(view: ConfigView) -> Iterable[Breach]:
    schedule = view.get("scheduler.type")
    rate = view.get("optimizer.params.lr")
    if schedule not in ("WarmupLR", "WarmupDecayLR") or view.has("scheduler.params.warmup_max_lr") or rate is None:
        return
    if rate == _DEFAULT_PEAK:
        return
    follows = schedule == "WarmupLR" and parse_release(view.context.deepspeed_version) >= (0, 17, 2)
    times = f", {_DEFAULT_PEAK / rate:.4g} times the optimizer's" if _is_rate(rate) else ""
    yield Breach(
        key="scheduler.params.warmup_max_lr",
        message=f"without warmup_max_lr the schedule climbs to its default {_DEFAULT_PEAK}{times}, not to optimizer lr "
        f"{shown(rate)}" + ("; only WarmupLR of 0.17.2 and newer takes the optimizer's" if follows else ""),
        fix="write warmup_max_lr: the optimizer's lr",
        severity=Severity.INFO if follows and view.context.version_stated else None,
        patch=put("scheduler.params.warmup_max_lr", rate),
    )


def _is_rate(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e6


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
        name="optimizer-parameter-unknown",
        severity=Severity.ERROR,
        summary="parameters are handed to the optimizer's constructor by name",
        source="DeepSpeed 0.19.8, runtime/engine.py: _configure_basic_optimizer; ops/adam, lamb, lion, adagrad",
        check=_optimizer_parameters,
    ),
    Rule(
        name="optimizer-adam-is-adamw",
        severity=Severity.INFO,
        summary="adam_w_mode is true by default, for 'Adam' too",
        source="DeepSpeed 0.19.8, runtime/config.py: ADAM_W_MODE_DEFAULT",
        check=_adam_decay,
    ),
    Rule(
        name="optimizer-block-unused",
        severity=Severity.WARNING,
        summary="an optimizer object that is passed to deepspeed.initialize wins over the file",
        source="DeepSpeed 0.19.8, runtime/engine.py: _configure_optimizer; accelerate 1.15, accelerator.py",
        check=_block_beside_client,
    ),
    Rule(
        name="optimizer-slow-on-cpu",
        severity=Severity.INFO,
        summary="only DeepSpeed's own CPU optimizers are vectorised for the processor",
        source="DeepSpeed 0.19.8, runtime/engine.py: zero_force_ds_cpu_optimizer",
        check=_slow_offload,
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
        name="schedule-parameter",
        severity=Severity.ERROR,
        summary="parameters are handed to the schedule's constructor by name",
        source="DeepSpeed 0.19.8, runtime/lr_schedules.py",
        check=_schedule_parameters,
    ),
    Rule(
        name="schedule-warmup-steps",
        severity=Severity.ERROR,
        summary="a warm-up has a positive, whole number of steps",
        source="DeepSpeed 0.19.3 and newer, runtime/lr_schedules.py: WarmupLR",
        check=_warmup_steps,
    ),
    Rule(
        name="schedule-overrules-lr",
        severity=Severity.WARNING,
        summary="the schedule sets the learning rate and does not look at the optimizer's",
        source="DeepSpeed 0.19.8, runtime/lr_schedules.py: WarmupLR",
        check=_schedule_overrules,
    ),
)
