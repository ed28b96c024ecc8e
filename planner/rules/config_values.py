"""Is each value of a configuration of the kind that its key takes?

Owns single values: `auto`, quotes, kinds and bounds. Leaves names to `config_keys` and combinations to the others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from planner.rules.config_context import AUTO, Breach, ConfigContext, ConfigView, Severity
from planner.rules.config_entries import entries, shown
from planner.rules.keys import Key, Kind
from planner.rules.known_keys import parse_release
from planner.rules.patches import drop, put
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
        *("amp.enabled", "amp.opt_level"),  # by transformers 4
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

_TRUE_WORDS = frozenset({"true", "1", "yes", "on", "t", "y"})
_BOOLEAN_WORDS = _TRUE_WORDS | {"false", "0", "no", "off", "f", "n"}
_FIRST_TO_REFUSE_FRACTIONS = (0, 15, 0)  # pydantic 2; pydantic 1 dropped them
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d{1,4})?")
_LONGEST_NUMBER = 40
_LONGEST_LIST = 16
_SLOT = re.compile(r"(\$\{?\w+\}?|\{\{.*\}\}|\{\w+\}|<[\w ./-]+>|%\(?\w+\)?[%s]|@@?\{?\w+\}?@?),?", re.DOTALL)
_SHOUTED = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+,?")
_LONGEST_PLACEHOLDER = 100
_MOST_SHOWN = 40
# Dropped without a word, these leave another training run than the one written: no ZeRO, fp32.
_AUTO_CHANGES_THE_RUN = frozenset({"zero_optimization.stage", "fp16.enabled", "bf16.enabled", "bfloat16.enabled"})
_LARGEST = 2**63  # sys.maxsize is a value in use (stage3_model_persistence_threshold)
_NEVER_TEXT = frozenset({"wall_clock_breakdown", "flops_profiler.enabled"})
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
    return islice(_autos(view), _MOST_SHOWN)


def mentions_auto(config: Mapping[str, Any]) -> bool:
    """Whether a file holds Hugging Face's "auto", and is taken for one of theirs; DeepSpeed's own uses do not count."""
    view = ConfigView(config=config, context=ConfigContext())
    tuned = view.flag("autotuning.enabled")
    return any(
        entry.value == AUTO
        and entry.path not in _TAKES_AUTO
        and not entry.path.startswith(("expert_parallel.", "autotuning."))
        and not (tuned and entry.path == "train_micro_batch_size_per_gpu")
        for entry in entries(view)
    )


def _autos(view: ConfigView) -> Iterator[Breach]:
    resolves = view.resolves_auto
    tuned = view.flag("autotuning.enabled")
    for entry in entries(view):
        path, strict = entry.path, entry.block.strict
        if entry.value != AUTO or path in _TAKES_AUTO or path.startswith(("expert_parallel.", "autotuning.")):
            continue
        if (resolves and path in RESOLVED_BY_HUGGINGFACE) or (tuned and path == "train_micro_batch_size_per_gpu"):
            continue
        if entry.known is None and not entry.block.open:
            continue  # `config_keys` has said all there is to say
        guessed = resolves and not view.context.consumer_stated
        dropped = strict and path not in _AUTO_CHANGES_THE_RUN and (guessed or not resolves)
        yield Breach(
            key=path,
            message=f"'auto' is a Hugging Face placeholder: {_who_resolves(view, path=path, strict=strict)}",
            fix="write the value" if dropped else _auto_mend(path),
            severity=Severity.WARNING if dropped else None,
            patch=drop(entry.parts) if dropped else None,
        )


def _who_resolves(view: ConfigView, *, path: str, strict: bool) -> str:
    if view.resolves_auto:
        return "neither the Trainer nor accelerate fills this key, and accelerate then refuses the file" + (
            " (DeepSpeed itself drops the key)" if strict else ""
        )
    who = "only Hugging Face resolves it" if path in RESOLVED_BY_HUGGINGFACE else "nobody resolves it here"
    if strict:
        return f"{who}; DeepSpeed drops the key without a word and uses its default"
    return f"{who}; DeepSpeed takes it for the value and fails"


def _auto_mend(path: str) -> str:
    if path in RESOLVED_BY_HUGGINGFACE:
        return "write the value (or say --consumer huggingface, if the Trainer or accelerate reads this file)"
    return "write the value"


def _wrong_kind(view: ConfigView) -> Iterable[Breach]:
    truncates = parse_release(view.context.deepspeed_version) < _FIRST_TO_REFUSE_FRACTIONS
    for entry in entries(view):
        if entry.known is None or entry.value == AUTO or is_placeholder(entry.value, entry.known):
            continue
        problem = _problem(entry.known, entry.value, strict=entry.block.strict)
        if problem:
            is_number = entry.known.kind in (Kind.INTEGER, Kind.NUMBER) and not entry.known.refuses_boolean
            as_one = isinstance(entry.value, bool) and is_number and entry.block.strict
            truthy = entry.known.kind is Kind.BOOLEAN and not entry.block.strict and entry.path not in _NEVER_TEXT
            cut = truncates and entry.block.strict and _has_fraction(entry.value)
            note = ", which is read as a number" if as_one else (", of which the fraction is dropped" if cut else "")
            note = f", which counts as {str(bool(entry.value)).lower()}" if truthy else note
            plain = _as_number(entry.known, entry.value) or _as_choice(entry.known, entry.value)
            yield Breach(
                key=entry.path,
                message=f"{entry.name!r} {problem}{note}",
                fix=f"write {plain}" if plain is not None else _wanted(entry.known),
                severity=Severity.WARNING if as_one or cut or truthy else None,
                patch=put(entry.parts, plain) if plain is not None else None,
            )


def _as_choice(key: Key, value: Any) -> str | None:
    """The choice that a word in other letters means: `CPU` is cpu."""
    return value.lower() if isinstance(value, str) and value.lower() in key.choices else None


def _has_fraction(value: Any) -> bool:
    return isinstance(value, float) and math.isfinite(value) and value != int(value)


def _as_number(key: Key, value: Any) -> int | float | None:
    """The number that a quoted number, or an integer with a fraction, plainly means; None when it is out of bounds."""
    if key.kind not in (Kind.INTEGER, Kind.NUMBER) or isinstance(value, bool):
        return None
    number = plain_number(value) if isinstance(value, str) else value
    if not isinstance(number, (int, float)) or not abs(number) < _LARGEST:
        return None
    number = int(number) if key.kind is Kind.INTEGER else number
    return None if _bound_problem(key, number) else number


def plain_number(text: str) -> int | float | None:
    """The finite number that a string spells, as JSON would; None for any other string."""
    if len(text) > _LONGEST_NUMBER or not _NUMBER.fullmatch(text.strip()):
        return None
    value = float(text)
    if not math.isfinite(value):
        return None
    return int(value) if value == int(value) and abs(value) < 1e15 and "." not in text else value


def is_placeholder(value: Any, key: Key | None) -> bool:
    """Whether a value is a slot of a template that nobody filled: `${SIZE}`, `{{size}}`, `<size>`, `CONFIG_SIZE`."""
    if not isinstance(value, str) or len(value) > _LONGEST_PLACEHOLDER:
        return False
    if _SLOT.fullmatch(value.strip()):
        return True
    takes_words = key is None or key.kind in (Kind.TEXT, Kind.ANY)
    return not takes_words and bool(_SHOUTED.fullmatch(value.strip()))


def _placeholder(view: ConfigView) -> Iterable[Breach]:
    for entry in entries(view):
        if is_placeholder(entry.value, entry.known):
            word = entry.value.strip().rstrip(",")
            yield Breach(
                key=entry.path,
                message=f"{shown(word)} is a template's placeholder that nobody has filled in",
                fix=f"fill in the template: {_wanted(entry.known) if entry.known else 'write the value'}",
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
        return _text_problem(key, value, strict=strict)
    if key.kind in (Kind.INTEGER, Kind.NUMBER):
        return _number_problem(key, value, strict=strict)
    if key.kind is Kind.UNWRITABLE:
        return "is a Python object that a file cannot hold"
    if key.kind is Kind.LIST and not isinstance(value, list):
        return f"must be a list, found {shown(value)}"
    return ""


def _text_problem(key: Key, value: Any, *, strict: bool) -> str:
    if not isinstance(value, str):
        return f"must be a string, found {shown(value)}"
    if key.choices and value not in key.choices and (strict or value.lower() not in key.choices):
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
            is_true = entry.value.lower() in _TRUE_WORDS
            yield Breach(
                key=entry.path,
                message=f"{entry.value!r} is a string, not a boolean: "
                + (
                    f"this DeepSpeed reads it as {str(is_true).lower()}, older releases take any string for true"
                    if entry.block.strict
                    else "any string counts as true"
                ),
                fix=f"write {str(is_true).lower()}, without quotes",
                severity=Severity.ERROR if entry.path in _NEVER_TEXT else None,  # combined with | when it is parsed
                patch=put(entry.parts, is_true),
            )


def _quoted_number(view: ConfigView) -> Iterable[Breach]:
    for entry in entries(view):
        key = entry.known
        if key is None or key.kind not in (Kind.INTEGER, Kind.NUMBER) or not isinstance(entry.value, str):
            continue
        number = plain_number(entry.value)
        if number is not None and not _problem(key, entry.value, strict=entry.block.strict):
            yield Breach(
                key=entry.path,
                message=f"{entry.value!r} is a string; DeepSpeed reads it as a number, other programs may not",
                fix=f"write {number}, without quotes",
                patch=put(entry.parts, number),
            )


def _quoted_parameter(view: ConfigView) -> Iterable[Breach]:
    return islice(_quoted_parameters(view), _MOST_SHOWN)


def _quoted_parameters(view: ConfigView) -> Iterator[Breach]:
    for block in ("optimizer.params", "scheduler.params"):
        for name, value in view.block(block).items():
            parts = (*block.split("."), str(name))
            number = plain_number(value) if isinstance(value, str) else _plain_list(value)
            if number is not None:
                yield Breach(
                    key=".".join(parts),
                    message=f"{name!r} is {shown(value)}, a string, which nothing can compute with",
                    fix=f"write {number}, without quotes",
                    patch=put(parts, number),
                )


def _plain_list(value: Any) -> list[int | float] | None:
    """The numbers of a short list in which some are quoted; None for any other value."""
    if not isinstance(value, list) or not 0 < len(value) <= _LONGEST_LIST:
        return None
    if not any(isinstance(item, str) for item in value):
        return None
    numbers = [plain_number(item) if isinstance(item, str) else item for item in value]
    good = [item for item in numbers if isinstance(item, (int, float)) and not isinstance(item, bool)]
    return good if len(good) == len(value) else None


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
        name="value-placeholder",
        severity=Severity.ERROR,
        summary="a template's slot is text like any other to whoever reads the file",
        source="Megatron-DeepSpeed's templates, filled in by sed",
        check=_placeholder,
    ),
    Rule(
        name="value-quoted-number",
        severity=Severity.INFO,
        summary="pydantic reads a quoted whole number as the number; accelerate and scripts compare it as text",
        source="DeepSpeed 0.19.8, pydantic's lax mode (seen)",
        check=_quoted_number,
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
        summary="parameters of optimizer and scheduler are passed on as they are",
        source="DeepSpeed 0.19.8, runtime/engine.py: _configure_basic_optimizer, _scheduler_from_config",
        check=_quoted_parameter,
    ),
)
