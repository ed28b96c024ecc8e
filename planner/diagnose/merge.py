"""The facts of several logs as one run's: ranks, first failure, series. Pure."""

from __future__ import annotations

from dataclasses import fields, replace

from planner.diagnose.records import HintSeen, LogFacts, RunSettings

MAX_EVENTS = 1024


def merge_facts(parts: tuple[LogFacts, ...]) -> LogFacts:
    """One record of all; events keep the order of the logs and of their lines."""
    if len(parts) == 1:
        return parts[0]
    events = [event for part in parts for event in part.events]
    notes = [note for part in parts for note in part.notes]
    if len(events) > MAX_EVENTS:
        notes.append(f"{len(events) - MAX_EVENTS} further events were left out")
    return LogFacts(
        events=tuple(events[:MAX_EVENTS]),
        series=tuple(series for part in parts for series in part.series)[:MAX_EVENTS],
        processes=tuple(process for part in parts for process in part.processes)[:MAX_EVENTS],
        host_processes=max((part.host_processes for part in parts), key=len, default=()),
        device_use=tuple(use for part in parts for use in part.device_use)[:MAX_EVENTS],
        host_use=next((part.host_use for part in parts if part.host_use), ()),
        hints=_unique(tuple(hint for part in parts for hint in part.hints)),
        settings=merge_settings(tuple(part.settings for part in parts)),
        ranks=tuple(sorted({rank for part in parts for rank in part.ranks})),
        num_lines=sum(part.num_lines for part in parts),
        num_bytes=sum(part.num_bytes for part in parts),
        notes=tuple(notes),
    )


def merge_settings(parts: tuple[RunSettings, ...]) -> RunSettings:
    """The first log that names a setting gives it."""
    merged = RunSettings()
    for part in reversed(parts):
        named = {
            field.name: getattr(part, field.name)
            for field in fields(RunSettings)
            if getattr(part, field.name) not in (0, "", False)
            or (field.name == "zero_stage" and part.zero_stage is not None)
        }
        merged = replace(merged, **{name: value for name, value in named.items() if value is not None})
    return merged


def _unique(hints: tuple[HintSeen, ...]) -> tuple[HintSeen, ...]:
    return tuple({seen.hint: seen for seen in reversed(hints)}.values())
