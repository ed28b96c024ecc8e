"""Is every key of a configuration one that DeepSpeed knows, in the right place and in this version?

Owns names. Leaves single values to `config_values` and what keys mean together to the other `config_` modules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from planner.rules.config_batch import TRIPLE
from planner.rules.config_context import AUTO, Breach, ConfigView, Consumer, Severity
from planner.rules.config_entries import Entry, entries, shown
from planner.rules.keys import Key, Kind
from planner.rules.known_keys import (
    DRIFTING_DEFAULTS,
    DriftingDefault,
    KeyHistory,
    description_of,
    dotted,
    key_history,
    parse_release,
)
from planner.rules.meant_keys import Meaning, meaning_of
from planner.rules.patches import drop, merged, put
from planner.rules.rule import Rule

_MOST_UNKNOWN = 40  # near matches are looked for; a file with more unknown keys is no DeepSpeed configuration


def _unknown(view: ConfigView) -> list[Entry]:
    return [
        entry
        for entry in entries(view)
        if entry.known is None
        and not entry.block.open
        and key_history(entry.canonical_path) is None
        and entry.name == entry.name.strip()
    ]


def _mend(entry: Entry, meaning: Meaning | None, view: ConfigView) -> dict[str, Any] | None:
    """Write the key where and how it was meant, remove it where nothing reads it; None: that is for people."""
    if meaning is None or not meaning.path:
        return drop(entry.parts)
    if not meaning.certain or view.has(meaning.path):
        return None
    return merged(drop(entry.parts), put(meaning.path, entry.value))


def _unknown_refused(view: ConfigView) -> Iterable[Breach]:
    unknown = [entry for entry in _unknown(view) if entry.block.strict]
    for entry in unknown[:_MOST_UNKNOWN]:
        meaning = meaning_of(entry, view)
        described = description_of(entry.canonical_path)
        yield Breach(
            key=entry.path,
            message=f"DeepSpeed knows no key {shown(entry.name)} in {entry.block.path}",
            fix=meaning.advice if meaning else "remove it",
            severity=Severity.WARNING if entry.value == AUTO else None,  # dropped before the block is read
            why=described.removed_why if described else "",
            patch=_mend(entry, meaning, view),
        )
    yield from _too_many(unknown)


def _unknown_ignored(view: ConfigView) -> Iterable[Breach]:
    unknown = [entry for entry in _unknown(view) if not entry.block.strict]
    for entry in unknown[:_MOST_UNKNOWN]:
        is_remark = entry.name.startswith(("_", "#", "//", "$")) or "comment" in entry.name.lower()
        meaning = None if is_remark else meaning_of(entry, view)
        yield Breach(
            key=entry.path,
            message=f"{shown(entry.name)} is no key of DeepSpeed: nothing reads it",
            fix="leave it as a remark" if is_remark else (meaning.advice if meaning else "remove it"),
            severity=Severity.INFO if is_remark else None,
            patch=None if is_remark else _mend(entry, meaning, view),
        )
    yield from _too_many(unknown)


def _too_many(unknown: list[Entry]) -> Iterator[Breach]:
    left = len(unknown) - _MOST_UNKNOWN
    if left > 0:
        yield Breach(
            key=unknown[_MOST_UNKNOWN].path,
            message=f"and {left} more keys that DeepSpeed does not know",
            fix="see that this is a DeepSpeed configuration",
        )


def _blank_in_name(view: ConfigView) -> Iterable[Breach]:
    yield from islice(_blanks(view.config, ()), _MOST_UNKNOWN)


def _blanks(mapping: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[Breach]:
    for name, value in mapping.items():
        parts = (*path, str(name))
        if str(name) != str(name).strip():
            mended = (*path, str(name).strip())
            yield Breach(
                key=".".join(parts),
                message=f"the key {shown(name)} has a blank at its end or start: it names nothing",
                fix=f"write {shown(str(name).strip())}",
                patch=None if name.strip() in mapping else merged(drop(parts), put(mended, value)),
            )
        if isinstance(value, Mapping):
            yield from _blanks(value, parts)


_RENAMED = {"aio.thread_count": "intra_op_parallelism"}


def _history(entry: Entry) -> KeyHistory | None:
    """When other releases took a key that this one does not know; None for a known key, or one that never was."""
    return key_history(entry.canonical_path) if entry.known is None else None


def _removed(view: ConfigView) -> Iterable[Breach]:
    version = parse_release(view.context.deepspeed_version)
    for entry in entries(view):
        past = _history(entry)
        if past is None or past.removed is None or version < past.removed:
            continue
        rejects = entry.block.strict or entry.block.path == ""
        renamed = _RENAMED.get(entry.canonical_path, "")
        yield Breach(
            key=entry.path,
            message=f"DeepSpeed {dotted(past.removed)} and newer "
            + (
                f"refuse the key {entry.name!r}, even when it is false or empty"
                if rejects
                else f"no longer take {entry.name!r} and ignore it"
            )
            + f": {past.key.removed_why}",
            fix=f"write {renamed!r} in its place" if renamed else "remove it",
            severity=None
            if rejects
            else (Severity.INFO if entry.value == 1 else Severity.WARNING),  # 1: no effect lost
            why=f"{entry.block.path} is read by pydantic, which refuses keys it does not know"
            if entry.block.strict
            else "",
            patch=merged(drop(entry.parts), put((*entry.parts[:-1], renamed), entry.value))
            if renamed and entry.value != 1
            else drop(entry.parts),
        )


def _not_yet(view: ConfigView) -> Iterable[Breach]:
    version = parse_release(view.context.deepspeed_version)
    for entry in entries(view):
        future = _history(entry)
        if future is None or future.since is None or version >= future.since:
            continue
        yield Breach(
            key=entry.path,
            message=f"{entry.name!r} exists since DeepSpeed {dotted(future.since)}; "
            f"{view.context.deepspeed_version} {'refuses' if entry.block.strict else 'ignores'} it",
            fix=f"install DeepSpeed {dotted(future.since)} or newer, or remove the key",
            severity=None if entry.block.strict else Severity.WARNING,
        )


def _deprecated(view: ConfigView) -> Iterable[Breach]:
    for entry in entries(view):
        if entry.known is None or not entry.known.replaced_by:
            continue
        replacement = f"{entry.block.path}.{entry.known.replaced_by}"
        both = view.has(replacement) and entry.name != "cpu_offload_use_pin_memory"
        device = '{"device": "cpu"}' if entry.name in ("cpu_offload", "cpu_offload_param") else ""
        equals = f": {entry.name} {shown(entry.value)} is {entry.known.replaced_by} {device}" if device else ""
        yield Breach(
            key=entry.path,
            message=f"{entry.name!r} and its replacement {entry.known.replaced_by!r} are both set: DeepSpeed refuses it"
            if both
            else f"{entry.name!r} is deprecated" + (equals if entry.value is True else ""),
            fix=f"use {replacement}" + (" only" if both else ""),
            severity=Severity.ERROR if both else None,
            patch=_modern(entry, replacement, both=both),
        )


def _modern(entry: Entry, replacement: str, *, both: bool) -> dict[str, Any] | None:
    if both or entry.value in (False, None):
        return drop(entry.parts)
    if entry.name in ("cpu_offload", "cpu_offload_param"):
        return merged(drop(entry.parts), put(replacement, {"device": "cpu"})) if entry.value is True else None
    if entry.name.startswith("stage3_gather"):
        return merged(drop(entry.parts), put(replacement, entry.value))
    return None


def _not_mapping(view: ConfigView) -> Iterable[Breach]:
    for entry in entries(view):
        key = entry.known
        if key is None or key.kind is not Kind.BLOCK or isinstance(entry.value, Mapping):
            continue
        if entry.value == AUTO or (entry.value is None and _may_be_null(entry, key)):
            continue
        written = _as_mapping(entry)
        hint = '{"device": "cpu"}' if entry.name.startswith("offload") else '{"enabled": true}'
        yield Breach(
            key=entry.path,
            message=f"{entry.name!r} must be a mapping, found {shown(entry.value)}",
            fix=f"write a mapping such as {hint}",
            patch=put(entry.parts, written) if written else None,
        )
    zero = view.config.get("zero_optimization", {})
    if not isinstance(zero, (bool, Mapping)):
        stage = zero if isinstance(zero, int) and 0 <= zero <= 3 else None
        yield Breach(
            key="zero_optimization",
            message=f"'zero_optimization' must be a mapping, found {shown(zero)}",
            fix=f'write {{"stage": {1 if stage is None else stage}}}',
            patch=None if stage is None else put("zero_optimization", {"stage": stage}),
        )


def _may_be_null(entry: Entry, key: Key) -> bool:
    """At the top level most blocks are unpacked as they are; further down null is left out, unless pydantic minds."""
    if entry.block.path in ("", "timers"):
        return key.nullable and entry.name != "bfloat16"
    return key.nullable or not entry.block.strict


def _as_mapping(entry: Entry) -> dict[str, Any]:
    """What a scalar in the place of a block plainly means; empty when it does not."""
    if entry.name.startswith("offload") and entry.value in ("none", "cpu", "nvme"):
        return {"device": entry.value}
    if isinstance(entry.value, bool) and entry.name in ("fp16", "bf16", "bfloat16", "flops_profiler", "torch_autocast"):
        return {"enabled": entry.value}
    return {}


def _zero_boolean(view: ConfigView) -> Iterable[Breach]:
    value = view.config.get("zero_optimization")
    if isinstance(value, bool):
        stage = 1 if value else 0
        yield Breach(
            key="zero_optimization",
            message=f"the old boolean form means ZeRO stage {stage}",
            fix=f'write {{"stage": {stage}}}',
            patch=put("zero_optimization", {"stage": stage}),
        )


def _drifting(view: ConfigView) -> Iterable[Breach]:
    for default in DRIFTING_DEFAULTS:
        if view.has(default.path) or (default.block and not view.block(default.block)):
            continue
        if (default.needs and not view.flag(default.needs)) or not _drift_matters(default.path, view):
            continue
        yield Breach(
            key=default.path,
            message=_drift_message(default, view),
            fix=f"write {default.path}: {str(default.write).lower()} (or the value you mean)",
            severity=_weight(default, view),
            patch=put(default.path, default.write),
        )


def _drift_message(default: DriftingDefault, view: ConfigView) -> str:
    if default.path == "gradient_clipping" and view.resolves_auto:
        return (
            "'gradient_clipping' is left out: the Trainer's max_grad_norm is filled in only where the file says "
            f"'auto', so DeepSpeed's own default counts, which {default.was}"
        )
    return f"{default.path!r} is left to its default, which {default.was}"


def _weight(default: DriftingDefault, view: ConfigView) -> Severity | None:
    """Where a script fills in the batch (its keys are missing, or `auto`) it may fill in the clipping as well."""
    batch = [view.get(key) for key in TRIPLE if view.has(key)]
    is_part = not view.context.consumer_stated and (not batch or AUTO in batch)
    by_others = default.path == "gradient_clipping" and (view.context.consumer is Consumer.HUGGINGFACE or is_part)
    return Severity.NOTE if default.quiet or by_others else None


def _drift_matters(path: str, view: ConfigView) -> bool:
    if path.endswith("pin_memory"):
        return view.get(path.replace("pin_memory", "device"), "none") in ("cpu", "nvme")
    if path.endswith("overlap_comm"):
        return view.zero_stage in (1, 2) and view.context.pipeline_parallel_size == 1
    if path.endswith("check_grad_overflow"):
        return parse_release(view.context.deepspeed_version) >= (0, 17, 1)
    return True


KEY_RULES: tuple[Rule, ...] = (
    Rule(
        name="key-unknown-refused",
        severity=Severity.ERROR,
        summary="blocks read by pydantic refuse keys they do not know",
        source="DeepSpeed 0.19.8, runtime/config_utils.py: extra='forbid' (seen)",
        check=_unknown_refused,
    ),
    Rule(
        name="key-unknown-ignored",
        severity=Severity.WARNING,
        summary="outside those blocks an unknown key is ignored without a word, so what it asks for does not happen",
        source="DeepSpeed 0.19.8, runtime/config.py (seen)",
        check=_unknown_ignored,
    ),
    Rule(
        name="key-with-blank",
        severity=Severity.WARNING,
        summary="names are compared as they are, blanks included",
        source="DeepSpeed 0.19.8, autotuning/autotuner.py: arg_mappings; DeepSpeed issue 5709",
        check=_blank_in_name,
    ),
    Rule(
        name="key-removed",
        severity=Severity.ERROR,
        summary="newer releases take the key no longer; of most of them the mere presence raises DeepSpeedConfigError",
        source="DeepSpeed 0.19.7, 0.19.8, runtime/config.py: _reject_removed_config_keys; 0.14.0 to 0.19.8, compared",
        check=_removed,
    ),
    Rule(
        name="key-too-new",
        severity=Severity.ERROR,
        summary="the key came with a later version of DeepSpeed",
        source="DeepSpeed 0.14.0 to 0.19.8, compared",
        check=_not_yet,
    ),
    Rule(
        name="key-deprecated",
        severity=Severity.WARNING,
        summary="DeepSpeed rewrites the deprecated key to its replacement, and refuses the two together",
        source="DeepSpeed 0.19.8, runtime/config_utils.py: _process_deprecated_field",
        check=_deprecated,
    ),
    Rule(
        name="block-not-mapping",
        severity=Severity.ERROR,
        summary="DeepSpeed unpacks the block's keys and fails on anything but a mapping",
        source="DeepSpeed 0.19.8, runtime/config.py",
        check=_not_mapping,
    ),
    Rule(
        name="zero-as-boolean",
        severity=Severity.WARNING,
        summary="the boolean form of zero_optimization is deprecated; true means stage 1",
        source="DeepSpeed 0.19.8, runtime/zero/config.py: read_zero_config_deprecated (seen)",
        check=_zero_boolean,
    ),
    Rule(
        name="default-drifted",
        severity=Severity.INFO,
        summary="a default that differs between versions of DeepSpeed: the same file trains differently later",
        source="DeepSpeed 0.14.0 to 0.19.8, compared; runtime/constants.py, offload_config.py, precision_config.py",
        check=_drifting,
    ),
)
