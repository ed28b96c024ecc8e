"""A diagnosis for people: the cause, its evidence in numbers, the failures that were found, and the fixes in order."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from planner.app.diagnose_request import DiagnoseResult
from planner.cli.tables import new_table
from planner.report.units import format_bytes, format_count, format_fraction, one_line, plural

_SHOWN_EVENTS = 12
_SHOWN_HOLDERS = 10
_LONGEST_TEXT = 110


def diagnosis_view(result: DiagnoseResult) -> Iterator[RenderableType]:
    """Everything that is printed for people, from the document of `--json`."""
    document = result.document
    yield Text(diagnosis_verdict(document), style=_style(document))
    for line in document["evidence"]:
        yield Text(f"  - {one_line(line)}")
    if document["grows"]:
        yield Text(f"  - what grows: {one_line(document['grows'])}")
    yield from _events(document)
    yield from _snapshots(document)
    yield from _fixes(document)
    yield from _notes(result)


def diagnosis_verdict(document: Mapping[str, Any]) -> str:
    """`cause: fragmentation (confidence 78%), also capacity`, in one line."""
    also = f", also {', '.join(document['also'])}" if document["also"] else ""
    return f"cause: {document['cause']} (confidence {format_fraction(document['confidence'])}){also}"


def _style(document: Mapping[str, Any]) -> str:
    return "bold yellow" if document["cause"] in ("not-oom", "unknown-not-capacity") else "bold red"


def _events(document: Mapping[str, Any]) -> Iterator[RenderableType]:
    events = document["events"]
    if not events:
        return
    yield Text()
    table = new_table("failure", "where", "phase", "asked", "free", "live", "idle", "total", "times")
    for column in (1, 2):
        table.columns[column].justify = "left"
    for index, event in enumerate(events[:_SHOWN_EVENTS]):
        style = "bold" if index == document["event"] else ""
        table.add_row(*(Text(one_line(cell), style=style) for cell in _cells(event)))
    yield table
    if len(events) > _SHOWN_EVENTS:
        yield Text(f"and {len(events) - _SHOWN_EVENTS} more", style="dim")
    cause = events[document["event"]] if document["event"] is not None else None
    if cause is not None:
        place = f" {cause['log']}:{cause['log_line']}" if cause["log"] else ""
        yield Text(f"the cause is reported at{place}: {one_line(cause['text'])[:_LONGEST_TEXT]}", style="dim")
        if cause["file"]:
            line = f":{cause['line']}" if cause["line"] else ""
            yield Text(f"in {one_line(cause['file'])}{line} {cause['function'] or ''}", style="dim")


def _cells(event: Mapping[str, Any]) -> tuple[str, ...]:
    where = [f"rank {event['rank']}"] if event["rank"] is not None else []
    if event["gpu"] is not None:
        physical = f" (device {event['physical_gpu']})" if event["physical_gpu"] is not None else ""
        where.append(f"gpu {event['gpu']}{physical}")
    if event["exit_code"] is not None:
        where.append(f"exit {event['exit_code']}")
    sizes = (event[f"{name}_bytes"] for name in ("requested", "free", "allocated", "unallocated", "total"))
    return (
        event["kind"],
        ", ".join(where),
        "" if event["phase"] == "unknown" else event["phase"],
        *("" if size is None else format_bytes(size) for size in sizes),
        "" if event["count"] == 1 else format_count(event["count"]),
    )


def _snapshots(document: Mapping[str, Any]) -> Iterator[RenderableType]:
    for peak in document.get("snapshots", ()):
        yield Text()
        when = "at the peak" if peak["has_history"] else "at the dump (nothing was recorded before)"
        yield Text(
            f"device {peak['device']}: {format_bytes(peak['peak_bytes'])} live {when}, "
            f"{format_bytes(peak['reserved_bytes'])} reserved, "
            f"largest idle block {format_bytes(peak['largest_idle_block_bytes'])}",
            style="bold",
        )
        table = new_table("held by", "phase", "memory", "share", "blocks")
        table.columns[1].justify = "left"
        for holder in peak["holders"][:_SHOWN_HOLDERS]:
            part = holder["size_bytes"] / peak["peak_bytes"] if peak["peak_bytes"] else 0.0
            cells = (
                holder["place"],
                holder["phase"],
                format_bytes(holder["size_bytes"]),
                format_fraction(part),
                format_count(holder["num_blocks"]),
            )
            table.add_row(*(Text(one_line(cell)) for cell in cells))
        yield table
        if peak["unattributed_bytes"]:
            yield Text(f"{format_bytes(peak['unattributed_bytes'])} were held by blocks without a stack", style="dim")


def _fixes(document: Mapping[str, Any]) -> Iterator[RenderableType]:
    if not document["fixes"]:
        return
    yield Text()
    yield Text("what helps, best first:", style="bold")
    for number, fix in enumerate(document["fixes"], start=1):
        yield Text.assemble((f"{number}. ", "bold"), (one_line(compact(fix["change"])), "cyan"))
        yield Padding(
            Text(_price(fix) + one_line(fix["why"]), style="" if fix["fits"] is not False else "dim"), (0, 0, 0, 3)
        )


def _price(fix: Mapping[str, Any]) -> str:
    parts = []
    if fix["frees_bytes"] is not None:
        parts.append(f"frees {format_bytes(fix['frees_bytes'])}")
    slower = fix["slows_fraction"]
    if slower is not None:
        parts.append(f"{format_fraction(abs(slower))} {'slower' if slower >= 0 else 'faster'}")
    return f"[{', '.join(parts)}] " if parts else ""


def compact(change: Mapping[str, Any]) -> str:
    """The change on one line, as JSON without its outer braces."""
    return json.dumps(change, ensure_ascii=False)[1:-1]


def _notes(result: DiagnoseResult) -> Iterator[RenderableType]:
    document = result.document
    yield Text()
    applied = result.applied
    if applied is not None:
        lost = ", without the comments of the old one" if applied.lost_comments else ""
        yield Text(f"wrote fix {applied.number} to {applied.path}{lost}", style="bold green")
        if applied.left_to_do:
            yield Text(f"left to do by hand: {one_line(compact(applied.left_to_do))}", style="bold yellow")
    for note in document["notes"]:
        yield Text(one_line(note), style="dim")
    scanned = document["scanned"]
    yield Text(f"read {plural(scanned['lines'], 'line')} ({format_bytes(scanned['bytes'])})", style="dim")
