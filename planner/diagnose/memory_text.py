"""One message of a failed process to a plain answer: whose memory ran out, how much was asked, was a peer lost.

The phrases are those of `device_text` and `host_text`; this is their short form for whoever holds a single
exception and not a log: trials (`planner.trial.classify`) and the staircase of `planner probe`.
"""

from __future__ import annotations

import re

from planner.diagnose.device_text import read_device_text
from planner.diagnose.host_text import read_host_text, says_peer_was_lost
from planner.diagnose.records import EventKind, Figures
from planner.spec._record import record

__all__ = [
    "DeviceFigures",
    "read_device_figures",
    "requested_of_host",
    "says_device_memory_ran_out",
    "says_host_memory_ran_out",
    "says_memory_ran_out",
    "says_memory_under_limit",
    "says_peer_was_lost",
]

_DEVICE = frozenset(
    {EventKind.DEVICE_ALLOCATOR, EventKind.DEVICE_ERROR, EventKind.LIBRARY_ALLOCATION, EventKind.NONSENSE_SIZE}
)
# What says nothing of memory by itself, but under a limit that is active follows from it: oneDNN without room for its
# kernel (a primitive *descriptor* is what it does not support, limit or not), a thread whose stack could not be had.
_UNDER_LIMIT = re.compile(
    r"could not create a primitive(?! desc)|could not execute a primitive|Resource temporarily unavailable"
    r"|can't (?:start|create) (?:a )?new thread|failed to map segment from shared object"
)


@record
class DeviceFigures:
    """The figures of an allocator's message in bytes; 0 where it does not give one.

    `capacity_bytes`: what this process could have had at most.
    """

    requested_bytes: int
    allocated_bytes: int
    capacity_bytes: int


def says_device_memory_ran_out(text: str) -> bool:
    """Whether this is the message of an accelerator without memory; pinned host memory is the host's."""
    reading = read_device_text(text)
    return reading is not None and reading.kind in _DEVICE


def says_host_memory_ran_out(text: str) -> bool:
    """Whether this is the message of a host allocator that was refused, page-locked memory included."""
    device = read_device_text(text)
    if device is not None:
        return device.kind is EventKind.PINNED_HOST
    host = read_host_text(text)
    return host is not None and host.kind is EventKind.HOST_ALLOCATOR


def says_memory_ran_out(text: str) -> bool:
    """Either of the two."""
    return says_device_memory_ran_out(text) or says_host_memory_ran_out(text)


def says_memory_under_limit(text: str) -> bool:
    """Whether this text, of a process under a memory limit that is active, means that the limit was reached."""
    return says_host_memory_ran_out(text) or _UNDER_LIMIT.search(text) is not None


def read_device_figures(text: str) -> DeviceFigures | None:
    """The figures of a caching allocator's message, of any version; None for other texts."""
    reading = read_device_text(text)
    if reading is None or reading.kind not in (EventKind.DEVICE_ALLOCATOR, EventKind.NONSENSE_SIZE):
        return None
    figures = reading.figures
    return DeviceFigures(
        requested_bytes=figures.requested or 0,
        allocated_bytes=figures.allocated or 0,
        capacity_bytes=_capacity_bytes(figures),
    )


def requested_of_host(text: str) -> int:
    """Bytes asked of a host allocator when it failed; 0 when the text does not say."""
    reading = read_host_text(text)
    return (reading.figures.requested or 0) if reading is not None else 0


def _capacity_bytes(figures: Figures) -> int:
    """The process's limit, or what it has and what is free, or the device's total: the least of those that are said.

    Older messages do not say how much the process has; then other processes are not told from it.
    """
    own = (figures.free or 0) + figures.in_use if figures.in_use else figures.total
    return min((size for size in (own, figures.limit) if size), default=0)
