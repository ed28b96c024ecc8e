"""Is each value of a configuration of the kind that its key takes?

Owns single values: `auto`, quotes, kinds and bounds. Leaves names to `config_keys` and combinations to the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from planner.rules.config_context import AUTO, Breach, ConfigView, Consumer, Severity
from planner.rules.config_entries import entries, shown
from planner.rules.keys import Key, Kind
from planner.rules.rule import Rule

# What transformers' HfTrainerDeepSpeedConfig and accelerate's DeepSpeedPlugin replace before DeepSpeed reads the file
# (transformers 5.24, integrations/deepspeed.py: fill_match and fill_only; accelerate 1.x, utils/dataclasses.py).
RESOLVED_BY_HUGGINGFACE = frozenset(
    {
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "gradient_clipping",
        "fp16.enabled",
        "bf16.enabled",
        "bfloat16.enabled",
        *(f"optimizer.params.{name}" for name in ("lr", "betas", "eps", "weight_decay")),
        *(f"scheduler.params.{name}" for name in ("warmup_min_lr", "warmup_max_lr", "warmup_num_steps")),
        "scheduler.params.total_num_steps",
        "zero_optimization.stage",
        "zero_optimization.reduce_bucket_size",
        "zero_optimization.stage3_prefetch_bucket_size",
        "zero_optimization.stage3_param_persistence_threshold",
        "zero_optimization.stage3_gather_16bit_weights_on_model_save",
        "zero_optimization.offload_optimizer.device",
        "zero_optimization.offload_optimizer.nvme_path",
        "zero_optimization.offload_param.device",
        "zero_optimization.offload_param.nvme_path",
    }
)

_BOOLEAN_WORDS = frozenset({"true", "false", "1", "0", "yes", "no", "on", "off", "t", "f", "y", "n"})
# Dropped without a word, these leave another training run than the one written: no ZeRO, fp32.
_AUTO_CHANGES_THE_RUN = frozenset({"zero_optimization.stage", "fp16.enabled", "bf16.enabled", "bfloat16.enabled"})
_LARGEST = 2**63  # sys.maxsize is a value in use (stage3_model_persistence_threshold)
_TAKES_AUTO = frozenset(
    {
        "pipeline.stages",
        "data_types.keep_in_fp32_modules",
        "zero_optimization.zenflow.select_strategy",
        "zero_optimization.zenflow.select_interval",
        "zero_optimization.zenflow.update_interval",
    }
)


def _auto(view: ConfigView) -> Iterable[Breach]:
    resolves = view.context.consumer is Consumer.HUGGINGFACE
    tuned = view.flag("autotuning.enabled")
    for entry in entries(view):
        path, strict = entry.path, entry.block.strict
        if entry.value != AUTO or path in _TAKES_AUTO or path.startswith(("expert_parallel.", "autotuning.")):
            continue
        if (resolves and path in RESOLVED_BY_HUGGINGFACE) or (tuned and path == "train_micro_batch_size_per_gpu"):
            continue
        if entry.known is None and not entry.block.open:
            continue  # `config_keys` has said all there is to say
        who = "only Hugging Face resolves it" if path in RESOLVED_BY_HUGGINGFACE else "nobody resolves it here"
        yield Breach(
            key=path,
            message=f"'auto' is a placeholder: {who}; DeepSpeed "
            + ("drops the key without a word and uses its default" if strict else "takes it for the value and fails"),
            fix="write the value",
            severity=Severity.WARNING if strict and path not in _AUTO_CHANGES_THE_RUN else None,
        )


def _wrong_kind(view: ConfigView) -> Iterable[Breach]:
    for entry in entries(view):
        if entry.known is None or entry.value == AUTO:
            continue
        problem = _problem(entry.known, entry.value, strict=entry.block.strict)
        if problem:
            is_number = entry.known.kind in (Kind.INTEGER, Kind.NUMBER) and not entry.known.refuses_boolean
            as_one = isinstance(entry.value, bool) and is_number and entry.block.strict
            yield Breach(
                key=entry.path,
                message=f"{entry.name!r} {problem}" + (", which is read as a number" if as_one else ""),
                fix=_wanted(entry.known),
                severity=Severity.WARNING if as_one else None,
            )


def _problem(key: Key, value: Any, *, strict: bool) -> str:
    """What is wrong with a value; "" nothing."""
    if value is None:
        return "" if key.nullable or not strict or key.kind in (Kind.ANY, Kind.BLOCK) else "must not be null"
    if key.kind is Kind.BOOLEAN:
        good = (
            isinstance(value, bool) or value in (0, 1) or (isinstance(value, str) and value.lower() in _BOOLEAN_WORDS)
        )
        return "" if good else f"must be true or false, found {shown(value)}"
    if key.kind is Kind.TEXT:
        return _text_problem(key, value)
    if key.kind in (Kind.INTEGER, Kind.NUMBER):
        return _number_problem(key, value, strict=strict)
    if key.kind is Kind.UNWRITABLE:
        return "is a Python object that a file cannot hold"
    if key.kind is Kind.LIST and not isinstance(value, list):
        return f"must be a list, found {shown(value)}"
    return ""


def _text_problem(key: Key, value: Any) -> str:
    if not isinstance(value, str):
        return f"must be a string, found {shown(value)}"
    if key.choices and value not in key.choices and value.lower() not in key.choices:
        return f"must be one of {', '.join(key.choices)}, found {shown(value)}"
    return ""


def _number_problem(key: Key, value: Any, *, strict: bool) -> str:
    what = "a whole number" if key.kind is Kind.INTEGER else "a number"
    if isinstance(value, str):
        value = _parsed(value, key.kind) if strict else None
        if value is None:
            return f"must be {what}, not a string"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return f"must be {what}, found {shown(value)}"
    if abs(value) > _LARGEST or not math.isfinite(value) or (key.kind is Kind.INTEGER and value != int(value)):
        return f"must be {what}, found {shown(value)}"
    return _bound_problem(key, value)


def _bound_problem(key: Key, value: float) -> str:
    more, less = ("more than", "less than") if key.exclusive else ("at least", "at most")
    if key.lowest is not None and (value < key.lowest or (key.exclusive and value == key.lowest)):
        return f"must be {more} {key.lowest:g}, found {shown(value)}"
    if key.highest is not None and (value > key.highest or (key.exclusive and value == key.highest)):
        return f"must be {less} {key.highest:g}, found {shown(value)}"
    return ""


def _parsed(text: str, kind: Kind) -> float | None:
    """A quoted number as pydantic reads it: "5" is a whole number, "5e8" is not."""
    try:
        return int(text) if kind is Kind.INTEGER else float(text)
    except ValueError:
        return None


def _wanted(key: Key) -> str:
    if key.kind is Kind.UNWRITABLE:
        return "remove it"
    if key.choices:
        return f"write one of {', '.join(key.choices)}"
    bounds = [f"at least {key.lowest:g}"] if key.lowest is not None else []
    bounds += [f"at most {key.highest:g}"] if key.highest is not None else []
    kind = {Kind.BOOLEAN: "true or false", Kind.INTEGER: "a whole number", Kind.NUMBER: "a number"}.get(
        key.kind, f"a {key.kind}"
    )
    return f"write {kind}" + (f", {' and '.join(bounds)}" if bounds else "")


def _quoted_boolean(view: ConfigView) -> Iterable[Breach]:
    for entry in entries(view):
        if entry.known is None or entry.known.kind is not Kind.BOOLEAN or not isinstance(entry.value, str):
            continue
        if entry.value.lower() in _BOOLEAN_WORDS:
            yield Breach(
                key=entry.path,
                message=f"{entry.value!r} is a string, not a boolean: "
                + ("older DeepSpeed takes any string for true" if entry.block.strict else "any string counts as true"),
                fix="write it without quotes",
            )


def _quoted_parameter(view: ConfigView) -> Iterable[Breach]:
    if view.context.client_optimizer:
        return
    for name in ("lr", "eps", "weight_decay", "momentum"):
        value = view.get(f"optimizer.params.{name}")
        if isinstance(value, str) and value != AUTO:
            yield Breach(
                key=f"optimizer.params.{name}",
                message=f"{name!r} is the string {value!r}, which the optimizer cannot compute with",
                fix="write the number without quotes",
            )


VALUE_RULES: tuple[Rule, ...] = (
    Rule(
        name="value-auto",
        severity=Severity.ERROR,
        summary="'auto' belongs to Hugging Face's files; DeepSpeed itself does not resolve it",
        source="DeepSpeed 0.19.8, runtime/config_utils.py (seen: stage 'auto' is stage 0, bf16 'auto' is fp32)",
        check=_auto,
    ),
    Rule(
        name="value-wrong-kind",
        severity=Severity.ERROR,
        summary="the value is not of the kind that DeepSpeed takes here",
        source="DeepSpeed 0.19.8, the block's pydantic model or its use in runtime/engine.py",
        check=_wrong_kind,
    ),
    Rule(
        name="value-quoted-boolean",
        severity=Severity.WARNING,
        summary="a boolean in quotes is a string, and whether it counts as true depends on who reads it",
        source="DeepSpeed 0.19.8, runtime/config_utils.py: get_scalar_param",
        check=_quoted_boolean,
    ),
    Rule(
        name="optimizer-parameter-quoted",
        severity=Severity.ERROR,
        summary="optimizer parameters are passed to the optimizer as they are",
        source="DeepSpeed 0.19.8, runtime/engine.py: _configure_basic_optimizer",
        check=_quoted_parameter,
    ),
)
