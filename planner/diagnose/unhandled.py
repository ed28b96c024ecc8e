"""A traceback that is not about memory, to the exception that ended it: what else a run may have failed of. Text
only."""

from __future__ import annotations

import re

from planner.diagnose.assemble import SHOWN_CHARACTERS
from planner.diagnose.device_text import read_device_text
from planner.diagnose.host_text import read_host_text
from planner.diagnose.lines import read_line
from planner.diagnose.records import EventKind, MemoryEvent
from planner.diagnose.traceback_text import own_frame, phase_of, read_frames
from planner.diagnose.window import Window

MAX_TRACEBACK_LINES = 220
MAX_RAW_LINES = 2000

_EXCEPTION = re.compile(
    r"^(?:[\w.]{1,120}(?:Error|Exception|Exit|Interrupt|Failure|Timeout|Invalid\w*|Warning|Killed)"
    r"|AssertionError)\b(?!\()"
)
# Raised by a launcher about its children: they say who failed, not why.
_OF_LAUNCHERS = re.compile(
    r"ChildFailedError|CalledProcessError|ProcessExitedException|ProcessRaisedException|SystemExit"
    r"|RayTaskError|WorkerCrashed"
)


def read_unhandled(window: Window, start: int) -> MemoryEvent | None:
    """The event of the traceback whose header begins at `start`; None when it is about memory, or a launcher's own."""
    header = read_line(window.line(start))
    texts: list[str] = []
    for raw in window.after(start, most=MAX_RAW_LINES):
        line = read_line(raw)
        if line.stream != header.stream:
            continue
        texts.append(line.text)
        if _EXCEPTION.match(line.text) or len(texts) >= MAX_TRACEBACK_LINES:
            break
    last = texts[-1] if texts else ""
    if not _EXCEPTION.match(last) or _OF_LAUNCHERS.search(last):
        return None
    if read_device_text(last) is not None or "OutOfMemory" in last:
        return None
    host = read_host_text(last)
    if host is not None and host.kind is not EventKind.OTHER_FAILURE:
        return None
    frames = read_frames(texts)
    own = own_frame(frames)
    return MemoryEvent(
        kind=EventKind.OTHER_FAILURE,
        text=last.strip()[:SHOWN_CHARACTERS],
        backend="",
        rank=header.rank,
        phase=phase_of(frames),
        file=own.file if own else "",
        line=(own.line or None) if own else None,
        function=own.function if own else "",
        frames=frames,
        log_line=window.line_number(start),
    )
