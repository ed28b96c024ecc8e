"""A configuration beside the arguments of Hugging Face's Trainer, and beside the model's own config.json.

transformers 5.24, integrations/deepspeed.py: `fill_match` replaces "auto" and collects what is written in both places
with different values; `trainer_config_finalize` refuses to start over any. All are reported here at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from planner.rules.config_batch import data_parallel_world
from planner.rules.config_context import AUTO, Breach, ConfigView, Consumer, Severity
from planner.rules.config_entries import entries, shown
from planner.rules.config_values import RESOLVED_BY_HUGGINGFACE
from planner.rules.patches import put
from planner.rules.rule import Rule

# DeepSpeed's key: (the Trainer's argument, what is compared), for arguments that are one value
_ONE_TO_ONE: Mapping[str, str] = {
    "train_micro_batch_size_per_gpu": "per_device_train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "max_grad_norm",
    "optimizer.params.lr": "learning_rate",
    "optimizer.params.eps": "adam_epsilon",
    "optimizer.params.weight_decay": "weight_decay",
    "scheduler.params.warmup_max_lr": "learning_rate",
}
# transformers 5.24, training_args.py
_DEFAULTS: Mapping[str, Any] = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "max_grad_norm": 1.0,
    "learning_rate": 5e-5,
    "adam_epsilon": 1e-8,
    "weight_decay": 0.0,
}
_DEFAULT_MICRO_BATCH = 8
_MOST_NAMED = 6  # keys that a message lists
_DEFAULT_BETAS = (0.9, 0.999)

# The Trainer's schedule that does what DeepSpeed's does.
_SAME_SCHEDULE = {
    "WarmupLR": frozenset({"constant_with_warmup", "constant"}),
    "WarmupDecayLR": frozenset({"linear"}),
    "WarmupCosineLR": frozenset({"cosine", "cosine_with_min_lr"}),
}
_AFTER_WARMUP = {
    "WarmupLR": "constant after the warm-up: the rate never decays",
    "WarmupDecayLR": "linear decay after the warm-up",
    "WarmupCosineLR": "cosine decay after the warm-up",
}
_ADAM_NAMES = frozenset({"adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw", "adam"})

# transformers 5.24, integrations/deepspeed.py, from hidden size h: h^2, 0.9 h^2, 10 h
_BY_HIDDEN_SIZE = (
    ("reduce_bucket_size", lambda hidden: hidden * hidden),
    ("stage3_prefetch_bucket_size", lambda hidden: int(0.9 * hidden * hidden)),
    ("stage3_param_persistence_threshold", lambda hidden: 10 * hidden),
)


def _expected(view: ConfigView, arguments: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """(DeepSpeed's key, the argument's name, the value that the Trainer wants there) as far as the arguments say."""
    for key, name in _ONE_TO_ONE.items():
        if name in arguments:
            yield key, name, arguments[name]
    micro = arguments.get("per_device_train_batch_size", _DEFAULT_MICRO_BATCH)
    accumulation = arguments.get("gradient_accumulation_steps", 1)
    told = {"per_device_train_batch_size", "gradient_accumulation_steps"} & set(arguments)
    world = data_parallel_world(view)
    if (
        told
        and world
        and all(isinstance(value, int) and not isinstance(value, bool) for value in (micro, accumulation))
    ):
        yield "train_batch_size", "train_batch_size (calculated)", micro * accumulation * world
    if {"adam_beta1", "adam_beta2"} & set(arguments):
        betas = [arguments.get(f"adam_beta{place + 1}", _DEFAULT_BETAS[place]) for place in (0, 1)]
        yield "optimizer.params.betas", "adam_beta1 and adam_beta2", betas
    if {"fp16", "bf16"} & set(arguments) and AUTO not in (arguments.get("fp16"), arguments.get("bf16")):
        for name in ("fp16", "bf16"):
            yield f"{name}.enabled", name, arguments.get(name, False) is True
    steps = arguments.get("warmup_steps")
    if isinstance(steps, int) and not isinstance(steps, bool) and steps > 0:
        yield "scheduler.params.warmup_num_steps", "warmup_steps", steps
    steps = arguments.get("max_steps")
    if isinstance(steps, int) and not isinstance(steps, bool) and steps > 0:
        yield "scheduler.params.total_num_steps", "max_steps", steps


def _mismatches(view: ConfigView) -> Iterable[Breach]:
    arguments = view.context.trainer_args
    if arguments is None:
        return
    for key, name, wanted in _expected(view, arguments):
        value = view.get(key)
        if value is None or value == AUTO or wanted == AUTO or wanted is None or _same(value, wanted):
            continue
        yield Breach(
            key=key,
            message=f"the file says {shown(value)}, the Trainer's {name} is {shown(wanted)}",
            fix=f'write "auto" here, or {shown(wanted)}',
            patch=put(key, AUTO),
        )


def _unsaid(view: ConfigView) -> Iterable[Breach]:
    """Values of the file that differ from a default of the Trainer's, where the given arguments are silent."""
    arguments = view.context.trainer_args
    if arguments is None:
        return
    expected = [(key, name, _DEFAULTS[name]) for key, name in _ONE_TO_ONE.items() if name not in arguments]
    if not {"fp16", "bf16"} & set(arguments):
        expected += [(f"{name}.enabled", name, False) for name in ("fp16", "bf16")]
    for key, name, default in expected:
        value = view.get(key)
        if value is not None and value != AUTO and not _same(value, default):
            yield Breach(
                key=key,
                message=f"the file says {shown(value)}; the arguments given here do not say {name}, whose default is "
                f"{shown(default)}: the Trainer then refuses to start",
                fix=f'write "auto" here, or say {name} in the arguments',
            )


def _same(value: Any, wanted: Any) -> bool:
    if isinstance(value, list) and isinstance(wanted, list):
        return len(value) == len(wanted) and all(_same(mine, other) for mine, other in zip(value, wanted))
    numbers = all(isinstance(item, (int, float)) and not isinstance(item, bool) for item in (value, wanted))
    if numbers:
        return abs(value) < 1e300 and abs(wanted) < 1e300 and math.isclose(value, wanted, rel_tol=1e-12)
    return bool(value == wanted)


def _schedule_wins(view: ConfigView) -> Iterable[Breach]:
    arguments = view.context.trainer_args or {}
    asked = arguments.get("lr_scheduler_type", arguments.get("lr_scheduler"))
    schedule = view.get("scheduler.type")
    if not isinstance(asked, str) or not isinstance(schedule, str):
        return
    if asked not in _SAME_SCHEDULE.get(schedule, frozenset()):
        yield Breach(
            key="scheduler.type",
            message=f"the scheduler block wins over lr_scheduler_type {shown(asked)}: {schedule} is "
            + _AFTER_WARMUP.get(schedule, "what will run"),
            fix="remove the scheduler block, and the Trainer's own schedule runs",
            patch=put("scheduler", None),
        )


def _optimizer_wins(view: ConfigView) -> Iterable[Breach]:
    asked = (view.context.trainer_args or {}).get("optim")
    if not isinstance(asked, str) or not view.optimizer_type:
        return
    if not (asked in _ADAM_NAMES and view.optimizer_type in ("adam", "adamw", AUTO)):
        yield Breach(
            key="optimizer.type",
            message=f"the optimizer block wins over the Trainer's optim {shown(asked)}: "
            f"{shown(view.get('optimizer.type'))} will run",
            fix="remove the optimizer block; zero_allow_untested_optimizer: true, where DeepSpeed asks for it",
        )


def _batch_search(view: ConfigView) -> Iterable[Breach]:
    arguments = view.context.trainer_args or {}
    if arguments.get("auto_find_batch_size") is True and view.zero_stage == 3:
        yield Breach(
            key="zero_optimization.stage",
            message="auto_find_batch_size with ZeRO stage 3: the Trainer refuses it",
            fix="set the batch size yourself, or use stage 2",
        )


def _hidden_size(view: ConfigView) -> Iterable[Breach]:
    """Bucket sizes left to `auto` for a model whose config does not say its hidden size where Trainers look."""
    model = view.context.model
    left = [name for name, _of in _BY_HIDDEN_SIZE if view.get(f"zero_optimization.{name}") == AUTO]
    if model is None or model.hidden_size or not left or view.context.consumer is not Consumer.HUGGINGFACE:
        return
    inner = model.inner_hidden_size
    values = {name: of(inner) for name, of in _BY_HIDDEN_SIZE if name in left} if inner else {}
    yield Breach(
        key=f"zero_optimization.{left[0]}",
        message=f"{', '.join(left)} are left to 'auto', but the model's config has no hidden_size"
        + (": only newer transformers look into text_config, accelerate does not" if inner else ""),
        fix="write numbers: " + ", ".join(f"{name} {value}" for name, value in values.items())
        if inner
        else "write numbers, from the model's hidden size h: h*h, 0.9*h*h, 10*h",
        severity=Severity.WARNING if inner else None,
        patch={"zero_optimization": values} if values else None,
    )


def _guessed(view: ConfigView) -> Iterable[Breach]:
    """What the file would be to DeepSpeed itself, where "auto" alone made it Hugging Face's."""
    context = view.context
    if not view.resolves_auto or context.consumer_stated or context.accelerate or context.trainer_args:
        return
    left = [entry.path for entry in entries(view) if entry.value == AUTO and entry.path in RESOLVED_BY_HUGGINGFACE]
    if left:
        more = f" and {len(left) - _MOST_NAMED} more" if len(left) > _MOST_NAMED else ""
        yield Breach(
            key=left[0],
            message="the file holds 'auto' and is taken for Hugging Face's; DeepSpeed itself fails on these "
            "or drops them: " + ", ".join(left[:_MOST_NAMED]) + more,
            fix="say --consumer deepspeed, if no Trainer or accelerate reads the file first",
        )


def _without_zero(view: ConfigView) -> Iterable[Breach]:
    if view.resolves_auto and not view.has("zero_optimization") and not view.flag("autotuning.enabled"):
        yield Breach(
            key="zero_optimization",
            message="accelerate refuses a DeepSpeed file without zero_optimization",
            fix='write {"stage": 0} or the stage you mean',
        )


def _fraction_of_old(view: ConfigView) -> Iterable[Breach]:
    key = "zero_optimization.stage3_prefetch_bucket_size"
    if view.resolves_auto and view.get(key) == AUTO and view.zero_stage == 3 and view.context.model is None:
        yield Breach(
            key=key,
            message="older transformers and accelerate fill 'auto' with 0.9 x hidden^2, a fraction that DeepSpeed 0.15 "
            "and newer refuse",
            fix="use versions of 2025 or newer, or write a whole number",
        )


HUGGINGFACE_CONFIG_RULES: tuple[Rule, ...] = (
    Rule(
        name="trainer-mismatch",
        severity=Severity.ERROR,
        summary="what is written in the file and in the Trainer's arguments must agree; the Trainer refuses to start "
        "over a difference",
        source="transformers 5.24, integrations/deepspeed.py: fill_match, trainer_config_finalize",
        check=_mismatches,
    ),
    Rule(
        name="trainer-default",
        severity=Severity.INFO,
        summary="arguments that are not given have defaults, which must agree with the file as well",
        source="transformers 5.24, training_args.py; integrations/deepspeed.py: fill_match",
        check=_unsaid,
    ),
    Rule(
        name="trainer-schedule-overruled",
        severity=Severity.WARNING,
        summary="a scheduler block takes the place of the Trainer's own schedule",
        source="transformers 5.24, integrations/deepspeed.py: deepspeed_optim_sched",
        check=_schedule_wins,
    ),
    Rule(
        name="trainer-optimizer-overruled",
        severity=Severity.WARNING,
        summary="an optimizer block takes the place of the Trainer's own optimizer",
        source="transformers 5.24, integrations/deepspeed.py: deepspeed_optim_sched",
        check=_optimizer_wins,
    ),
    Rule(
        name="trainer-batch-search",
        severity=Severity.ERROR,
        summary="an engine cannot be built twice in a process, which the search for a batch size does",
        source="transformers 5.24, trainer.py",
        check=_batch_search,
    ),
    Rule(
        name="auto-needs-hidden-size",
        severity=Severity.ERROR,
        summary="bucket sizes left to 'auto' are computed from the model's hidden_size",
        source="transformers 5.24, integrations/deepspeed.py: trainer_config_finalize; accelerate 1.15, accelerator.py",
        check=_hidden_size,
    ),
    Rule(
        name="consumer-guessed",
        severity=Severity.NOTE,
        summary="a file with 'auto' is taken for one that Hugging Face reads first, unless told otherwise",
        source="DeepSpeed 0.19.8, runtime/config.py; transformers 5.24, integrations/deepspeed.py",
        check=_guessed,
    ),
    Rule(
        name="accelerate-needs-zero",
        severity=Severity.NOTE,
        summary="accelerate and the Trainer ask for a zero_optimization block in the file",
        source="accelerate 1.15, utils/dataclasses.py: DeepSpeedPlugin",
        check=_without_zero,
    ),
    Rule(
        name="auto-prefetch-fraction",
        severity=Severity.NOTE,
        summary="0.9 x hidden^2 is seldom a whole number",
        source="DeepSpeed issue 6525; transformers and accelerate before their int()",
        check=_fraction_of_old,
    ),
)
