"""Is every key of a configuration one that DeepSpeed knows, in the right place and in this version?

Owns names. Leaves single values to `config_values` and what keys mean together to the other `config_` modules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from planner.errors import near_matches
from planner.rules.config_context import AUTO, Breach, ConfigView, Consumer, Severity
from planner.rules.config_entries import Entry, entries, shown
from planner.rules.keys import Kind
from planner.rules.known_keys import DRIFTING_DEFAULTS, KnownBlock, key_history, known_keys, parse_version
from planner.rules.rule import Rule


def _place_of(name: str, blocks: Mapping[str, KnownBlock]) -> str:
    """Where else a key of this name is known; "" nowhere."""
    for path, block in blocks.items():
        if name in block.keys and name not in ("enabled", "type", "params"):
            return f"{path}.{name}" if path else name
    return ""


def _meant(entry: Entry, view: ConfigView) -> str:
    near = near_matches(entry.name, entry.block.keys)
    if near:
        return f"write {near[0]!r}" + (f" (or {near[1]!r})" if len(near) > 1 else "")
    place = _place_of(entry.name, known_keys(view.context.deepspeed_version))
    return f"move it to {place}" if place else "remove it"


def _unknown(view: ConfigView) -> Iterator[Entry]:
    for entry in entries(view):
        if entry.known is None and not entry.block.open and key_history(entry.canonical_path) is None:
            yield entry


def _unknown_refused(view: ConfigView) -> Iterable[Breach]:
    for entry in _unknown(view):
        if entry.block.strict:
            yield Breach(
                key=entry.path,
                message=f"DeepSpeed knows no key {entry.name!r} in {entry.block.path}",
                fix=_meant(entry, view),
                severity=Severity.WARNING if entry.value == AUTO else None,  # dropped before the block is read
            )


def _unknown_ignored(view: ConfigView) -> Iterable[Breach]:
    for entry in _unknown(view):
        if not entry.block.strict:
            is_remark = entry.name.startswith(("_", "#", "//")) or "comment" in entry.name.lower()
            yield Breach(
                key=entry.path,
                message=f"{entry.name!r} is no key of DeepSpeed: nothing reads it",
                fix="leave it as a remark" if is_remark else _meant(entry, view),
                severity=Severity.INFO if is_remark else None,
            )


def _removed(view: ConfigView) -> Iterable[Breach]:
    version = parse_version(view.context.deepspeed_version)
    for entry in entries(view):
        past = key_history(entry.canonical_path)
        if entry.known is None and past is not None and past.removed is not None and version >= past.removed:
            yield Breach(
                key=entry.path,
                message=f"DeepSpeed {_dotted(past.removed)} and newer refuse the key {entry.name!r}, even when it is "
                f"false or empty: {past.removed_why}",
                fix="remove it",
            )


def _not_yet(view: ConfigView) -> Iterable[Breach]:
    version = parse_version(view.context.deepspeed_version)
    for entry in entries(view):
        future = key_history(entry.canonical_path)
        if entry.known is None and future is not None and version < future.since:
            yield Breach(
                key=entry.path,
                message=f"{entry.name!r} exists since DeepSpeed {_dotted(future.since)}, this is "
                f"{view.context.deepspeed_version}",
                fix="install a newer DeepSpeed or remove the key",
                severity=None if entry.block.strict else Severity.WARNING,
            )


def _dotted(version: tuple[int, int, int]) -> str:
    return ".".join(str(part) for part in version)


def _deprecated(view: ConfigView) -> Iterable[Breach]:
    for entry in entries(view):
        if entry.known is None or not entry.known.replaced_by:
            continue
        replacement = f"{entry.block.path}.{entry.known.replaced_by}"
        both = view.has(replacement) and entry.name != "cpu_offload_use_pin_memory"
        yield Breach(
            key=entry.path,
            message=f"{entry.name!r} and its replacement {entry.known.replaced_by!r} are both set: DeepSpeed refuses it"
            if both
            else f"{entry.name!r} is deprecated",
            fix=f"use {replacement}" + (" only" if both else ""),
            severity=Severity.ERROR if both else None,
        )


def _not_mapping(view: ConfigView) -> Iterable[Breach]:
    for entry in entries(view):
        key = entry.known
        if key is None or key.kind is not Kind.BLOCK or isinstance(entry.value, Mapping):
            continue
        if entry.value == AUTO or (entry.value is None and (key.nullable or not entry.block.strict)):
            continue
        hint = '{"device": "cpu"}' if entry.name.startswith("offload") else '{"enabled": true}'
        yield Breach(
            key=entry.path,
            message=f"{entry.name!r} must be a mapping, found {shown(entry.value)}",
            fix=f"write a mapping such as {hint}",
        )
    if isinstance(view.config.get("zero_optimization"), (str, int, float, list)) and not isinstance(
        view.config["zero_optimization"], bool
    ):
        yield Breach(
            key="zero_optimization",
            message=f"'zero_optimization' must be a mapping, found {shown(view.config['zero_optimization'])}",
            fix='write {"stage": 1}',
        )


def _zero_boolean(view: ConfigView) -> Iterable[Breach]:
    value = view.config.get("zero_optimization")
    if isinstance(value, bool):
        stage = 1 if value else 0
        yield Breach(
            key="zero_optimization",
            message=f"the old boolean form means ZeRO stage {stage}",
            fix=f'write {{"stage": {stage}}}',
        )


def _drifting(view: ConfigView) -> Iterable[Breach]:
    for default in DRIFTING_DEFAULTS:
        if view.has(default.path) or (default.block and not view.block(default.block)):
            continue
        if (default.needs and not view.flag(default.needs)) or not _drift_matters(default.path, view):
            continue
        yield Breach(
            key=default.path,
            message=f"{default.path!r} is left to its default, which changed: {default.was}",
            fix=f"write {default.path}: {str(default.write).lower()} (or the value you mean)",
        )


def _drift_matters(path: str, view: ConfigView) -> bool:
    if path == "gradient_clipping":
        return view.context.consumer is Consumer.DEEPSPEED  # the Trainer passes its own max_grad_norm
    if path.endswith("pin_memory"):
        return view.get(path.replace("pin_memory", "device"), "none") in ("cpu", "nvme")
    if path.endswith("overlap_comm"):
        return view.zero_stage in (1, 2) and view.context.pipeline_parallel_size == 1
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
        name="key-removed",
        severity=Severity.ERROR,
        summary="the mere presence of a removed key raises DeepSpeedConfigError",
        source="DeepSpeed 0.19.7 and 0.19.8, runtime/config.py: _reject_removed_config_keys",
        check=_removed,
    ),
    Rule(
        name="key-too-new",
        severity=Severity.ERROR,
        summary="the key came with a later version of DeepSpeed",
        source="DeepSpeed 0.19.6 to 0.19.8, compared",
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
        source="DeepSpeed's history of 2026; runtime/constants.py, offload_config.py, precision_config.py",
        check=_drifting,
    ),
)
