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


@record
class Fixed:
    """`text`: the corrected file. `mended`: the findings whose mends are in it. `result`: what the new file shows."""

    text: str
    document: Document
    mended: tuple[Finding, ...]
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
    current, mended = document, []
    for _round in range(_ROUNDS):
        result = lint_document(current, context)
        chosen = _compatible([finding for finding in result.findings if _is_mendable(finding)])
        value = current.value
        for finding in chosen:
            value = applied(finding.patch or {}, value)
        if current is not document and value == current.value:
            break
        mended += chosen
        current = read_document(_render(value))
    return Fixed(
        text="\n".join(current.lines).rstrip("\n") + "\n",
        document=current,
        mended=tuple(mended),
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


def _render(value: Mapping[str, Any]) -> str:
    try:
        text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
        text.encode("utf-8")
    except UnicodeEncodeError:  # half a character, written as \ud800: kept as it was
        text = json.dumps(value, indent=2, allow_nan=False)
    return text
