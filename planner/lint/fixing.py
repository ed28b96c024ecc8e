"""The corrected file: every mend that needs no decision, laid over the configuration until nothing more changes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from planner.errors import InputError
from planner.lint.document import Document
from planner.lint.linting import LintResult, lint_document
from planner.lint.reader import read_document
from planner.rules import ConfigContext, Finding, Severity, SyntaxKind, applied
from planner.spec._record import record

_ROUNDS = 8  # a mend may uncover the next fault; two or three rounds are common
# Information whose mend changes nothing of what runs today: it only says out loud what does.
_HARMLESS = frozenset({"default-drifted", "value-quoted-number"})
_LONGEST_VALUE = 80  # characters of a value, where a change is told


@record
class Fixed:
    """`text`: the corrected file. `mended`: the findings whose mends are in it; `changes`: of each of them, what was
    written, as `key: old -> new`. `result`: what the new file shows."""

    text: str
    document: Document
    mended: tuple[Finding, ...]
    changes: tuple[tuple[str, ...], ...]
    result: LintResult
    lost_comments: bool


def fix_document(document: Document, context: ConfigContext) -> Fixed:
    """Apply all plain mends and write strict JSON. InputError for a document that could not be read."""
    if document.unreadable:
        fact = document.syntax[0]
        raise InputError(
            f"line {fact.line} column {fact.column}: {fact.detail}",
            why="a file that cannot be read cannot be corrected",
            fix="mend it there first",
        )
    current, mended, changes = document, [], []
    for _round in range(_ROUNDS):
        result = lint_document(current, context)
        chosen = _compatible([finding for finding in result.findings if _is_mendable(finding)])
        value = current.value
        for finding in chosen:
            value = applied(finding.patch or {}, value)
        if current is not document and value == current.value:
            break
        mended += chosen
        changes += [_changes(finding.patch or {}, current.value) for finding in chosen]
        current = read_document(_render(value))
    return Fixed(
        text="\n".join(current.lines).rstrip("\n") + "\n",
        document=current,
        mended=tuple(mended),
        changes=tuple(changes),
        result=lint_document(current, context),
        lost_comments=any(fact.kind is SyntaxKind.COMMENT for fact in document.syntax),
    )


def _is_mendable(finding: Finding) -> bool:
    if not finding.patch:
        return False
    return finding.severity in (Severity.ERROR, Severity.WARNING) or finding.code in _HARMLESS


def _compatible(findings: list[Finding]) -> list[Finding]:
    """Of mends that touch the same key the first, which stands for the graver fault; the others wait for their turn."""
    taken: set[tuple[str, ...]] = set()
    chosen = []
    for finding in findings:
        paths = set(_paths(finding.patch or {}, ()))
        if not any(mine[: len(other)] == other or other[: len(mine)] == mine for mine in paths for other in taken):
            taken |= paths
            chosen.append(finding)
    return chosen


def _paths(patch: Mapping[str, Any], path: tuple[str, ...]) -> list[tuple[str, ...]]:
    paths = []
    for key, value in patch.items():
        paths += _paths(value, (*path, key)) if isinstance(value, Mapping) and value else [(*path, key)]
    return paths


def _changes(patch: Mapping[str, Any], value: Mapping[str, Any]) -> tuple[str, ...]:
    """What a patch writes, in words: `key: old -> new`, a key that moves with its value as `old key -> new key`."""
    pairs = [(path, _at(value, path), _at(patch, path)) for path in _paths(patch, ())]
    changed = [(path, old, new) for path, old, new in pairs if _text(old) != _text(new)]
    moved = {path: target for path, old, new in changed if new is None and (target := _target(patch, path, old))}
    words = [f"{'.'.join(path)} -> {'.'.join(target)}" for path, target in moved.items()]
    for path, old, new in changed:
        if path not in moved and not any(path[: len(target)] == target for target in moved.values()):
            words.append(f"{'.'.join(path)}: {_text(old) or 'nothing'} -> {_text(new) or 'removed'}")
    return tuple(words)


def _target(patch: Mapping[str, Any], path: tuple[str, ...], old: Any) -> tuple[str, ...]:
    """The key beside a removed one that is given its value; () where there is none."""
    beside = _at(patch, path[:-1])
    names = [name for name, value in beside.items() if name != path[-1] and value is not None and value == old]
    return (*path[:-1], names[0]) if names else ()


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _text(value: Any) -> str:
    """A value on one line; "" for none."""
    if value is None:
        return ""
    text = json.dumps(value, default=str)
    return text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "..."


def _render(value: Mapping[str, Any]) -> str:
    try:
        text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
        text.encode("utf-8")
    except UnicodeEncodeError:  # half a character, written as \ud800: kept as it was
        text = json.dumps(value, indent=2, allow_nan=False)
    return text
