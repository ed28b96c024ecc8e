"""A document and its context to findings with lines, over all releases that the file may meet.

Owns the lines, and what it means that a release was not told: the file is then judged for every release that plans are
made for, and what only some of them refuse is a warning that names them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from planner.lint.document import Document
from planner.rules import (
    NEWEST_VERSION,
    OLDEST_VERSION,
    Batch,
    ConfigContext,
    ConfigView,
    Finding,
    Severity,
    check_config,
    data_parallel_world,
    known_releases,
    parse_release,
    solve_batch,
)
from planner.spec._record import record

_ORDER = tuple(Severity)


@record
class LintResult:
    """`findings`: what is wrong or worth knowing, errors first, then by line. `notes`: what the file leaves to others.

    `batch`: how DeepSpeed will split it, where the world is known and it closes. `data_parallel_size`: the ranks over
    which it is split, 0 unknown. `releases`: judged for these.
    """

    findings: tuple[Finding, ...]
    notes: tuple[Finding, ...]
    batch: Batch | None
    data_parallel_size: int
    releases: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is an error."""
        return all(finding.severity is not Severity.ERROR for finding in self.findings)


def lint_document(document: Document, context: ConfigContext) -> LintResult:
    """Check a document. `context.deepspeed_version` counts when `version_stated`; NotExpressible below 0.14."""
    releases = _releases(context)
    found = {
        release: check_config(document.value, replace(context, deepspeed_version=release), syntax=document.syntax)
        for release in releases
    }
    if document.unreadable:
        found = {release: _about_syntax(items) for release, items in found.items()}
    merged = sorted(
        (_located(finding, document) for finding in _over_releases(found)),
        key=lambda finding: (_ORDER.index(finding.severity), finding.line),
    )
    view = ConfigView(config=document.value, context=replace(context, deepspeed_version=releases[-1]))
    return LintResult(
        findings=tuple(finding for finding in merged if finding.severity is not Severity.NOTE),
        notes=tuple(finding for finding in merged if finding.severity is Severity.NOTE),
        batch=None if document.unreadable else solve_batch(view),
        data_parallel_size=data_parallel_world(view),
        releases=releases,
    )


def _releases(context: ConfigContext) -> tuple[str, ...]:
    if context.version_stated:
        parse_release(context.deepspeed_version)
        return (context.deepspeed_version,)
    return tuple(release for release in known_releases() if OLDEST_VERSION <= parse_release(release) <= NEWEST_VERSION)


def _about_syntax(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    return tuple(finding for finding in findings if finding.code.startswith("syntax-"))


def _located(finding: Finding, document: Document) -> Finding:
    return finding if finding.line else replace(finding, line=document.line_of(finding.key))


def _over_releases(found: Mapping[str, tuple[Finding, ...]]) -> Iterable[Finding]:
    """The newest release's findings; an error that not every release has is a warning, if some release takes the file.

    What only older releases refuse is information then. If no release takes the file, errors stay errors.
    """
    if len(found) == 1:
        yield from next(iter(found.values()))
        return
    errors = {release: {_identity(item) for item in items if _is_error(item)} for release, items in found.items()}
    common = set.intersection(*errors.values())
    some_take_it = any(not own - common for own in errors.values())
    newest = tuple(found)[-1]
    said: set[tuple[str, str]] = set()
    for release in reversed(tuple(found)):
        for item in found[release]:
            identity = _identity(item)
            if identity in said or (release != newest and not _is_error(item)):
                continue
            said.add(identity)
            in_some = _is_error(item) and identity not in common
            yield _weakened(item, _who(identity, errors), release == newest) if in_some and some_take_it else item


def _identity(finding: Finding) -> tuple[str, str]:
    return finding.code, finding.key


def _is_error(finding: Finding) -> bool:
    return finding.severity is Severity.ERROR


def _who(identity: tuple[str, str], errors: Mapping[str, set[tuple[str, str]]]) -> str:
    return ", ".join(release for release, own in errors.items() if identity in own)


def _weakened(finding: Finding, releases: str, newest: bool) -> Finding:
    """Without a patch: whether the file must change depends on the release."""
    return replace(
        finding,
        severity=Severity.WARNING if newest else Severity.INFO,
        message=f"{finding.message} (an error with DeepSpeed {releases}; say --deepspeed-version)",
        patch=None,
    )
