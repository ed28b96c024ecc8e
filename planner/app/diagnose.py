"""The use case `diagnose`: read the logs, decide, price what would help, write the change when asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from planner.app.check import check_config_file
from planner.app.check_request import CheckRequest
from planner.app.diagnose_apply import apply_fix
from planner.app.diagnose_request import DiagnoseRequest, DiagnoseResult
from planner.app.diagnose_setting import Given, GivenConfig, gather
from planner.diagnose.decide import decide
from planner.diagnose.document import document_of
from planner.diagnose.head import read_note
from planner.diagnose.merge import merge_facts
from planner.diagnose.pricing import memory_scale, scaled_high_bytes, view_of
from planner.diagnose.records import LogFacts, RunSettings, Verdict
from planner.diagnose.snapshot import DevicePeak, read_snapshot
from planner.diagnose.snapshot_pickle import MAX_FILE_BYTES, read_plain_pickle
from planner.diagnose.sources import find_sources, read_logs
from planner.diagnose.suggest import suggest_fixes
from planner.diagnose.words import size
from planner.errors import InputError


def diagnose_logs(request: DiagnoseRequest) -> DiagnoseResult:
    """Name the cause of the failure in these logs and rank what helps; with `apply`, write the changed configuration.

    Raises InputError for logs, plans, models or configurations that cannot be read, and for a fix that cannot be
    applied.
    """
    logs, snapshot_paths = find_sources(request.paths)
    peaks = tuple(peak for path in snapshot_paths for peak in _read_snapshot(path))
    facts = read_logs(logs) if logs else LogFacts()
    facts = merge_facts((facts, _from_snapshots(peaks), _from_note(request))) if peaks or request.note else facts
    given = gather(request, facts)
    facts = _with_label(facts, given)
    model = view_of(given.setting) if given.setting is not None else None
    verdict = decide(facts, model=model)
    fixes = suggest_fixes(facts, verdict, setting=given.setting, config=given.memory_config, model=model)
    document = document_of(facts, verdict, fixes, snapshots=peaks, model=model)
    document["notes"] = [*document["notes"], *given.notes, *_base_note(facts, verdict, given), *_config_note(request)]
    applied = apply_fix(request, given, fixes) if request.apply else None
    if applied is not None:
        document["applied"] = {
            "path": str(applied.path),
            "fix": applied.number,
            "change": dict(applied.change),
            "left_to_do": dict(applied.left_to_do),
        }
    return DiagnoseResult(document=document, applied=applied)


def _base_note(facts: LogFacts, verdict: Verdict, given: Given) -> tuple[str, ...]:
    """What all fixes are priced against, where the log's figures move it away from what is computed."""
    if given.setting is None or verdict.event is None:
        return ()
    scale = memory_scale(given.setting, facts.events[verdict.event])
    if scale <= 1.0:
        return ()
    base = size(scaled_high_bytes(given.setting, scale=scale))
    return (f"the log shows {scale:.2f} times the computed memory, so all fixes are priced from up to {base} as it is",)


def _config_note(request: DiagnoseRequest) -> tuple[str, ...]:
    """That the file itself is faulty, where `check` would say so."""
    if request.config is None:
        return ()
    try:
        found = check_config_file(CheckRequest(config=str(request.config))).findings
    except InputError:  # what can be diagnosed need not be a file that is checked
        return ()
    count = sum(finding.severity == "error" for finding in found)
    if not count:
        return ()
    errors = "1 error" if count == 1 else f"{count} errors"
    return (f"the config itself has {errors}: planner check {request.config}",)


def _read_snapshot(path: Path) -> tuple[DevicePeak, ...]:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as problem:
        raise InputError(
            f"cannot read {path}", why=problem.strerror or str(problem), fix="name a readable snapshot"
        ) from None
    if len(data) > MAX_FILE_BYTES:
        raise InputError(
            f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB",
            why="a snapshot is read whole",
            fix="record fewer entries: torch.cuda.memory._record_memory_history(max_entries=100000)",
        )
    return read_snapshot(read_plain_pickle(data, label=str(path)), label=str(path))


def _from_snapshots(peaks: tuple[DevicePeak, ...]) -> LogFacts:
    events = tuple(peak.out_of_memory for peak in peaks if peak.out_of_memory is not None)
    return LogFacts(events=events, num_bytes=1 if peaks else 0)


def _from_note(request: DiagnoseRequest) -> LogFacts:
    head = read_note(request.note)
    return LogFacts(hints=head.hints, settings=head.settings, series=head.series)


def _with_label(facts: LogFacts, given: Given) -> LogFacts:
    """The nominal memory of the GPU that the user names, where the log does not tell one."""
    if not given.nominal_bytes or facts.settings.nominal_bytes:
        return facts
    settings: RunSettings = replace(facts.settings, nominal_bytes=given.nominal_bytes)
    return replace(facts, settings=settings)


__all__ = ["GivenConfig", "diagnose_logs"]
