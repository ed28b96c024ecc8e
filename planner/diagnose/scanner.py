"""One log, streamed: finds the lines that matter by fixed strings, reads those, and keeps bounded facts.

Owns the budgets: how many hits of each needle are read, how many events are kept. Memory does not grow with the log.
"""

from __future__ import annotations

from dataclasses import replace

from planner.diagnose.assemble import Reading, assemble, read_failure
from planner.diagnose.head import HeadReader
from planner.diagnose.lines import clean, read_line
from planner.diagnose.needles import (
    HOST_SAMPLES,
    SAMPLES,
    TABLES,
    TRACEBACKS,
    distinct_lines,
    failures_in,
)
from planner.diagnose.records import EventKind, HostUse, LogFacts, MemoryEvent, ProcessMemory
from planner.diagnose.tables import device_process_of, device_use_of, gpustat_processes_of, kernel_processes_of
from planner.diagnose.telemetry import SeriesCollector, host_use_of
from planner.diagnose.unhandled import read_unhandled
from planner.diagnose.window import Window
from planner.spec._record import record

MAX_READ = 6000  # failure lines read in all; beyond that a few of every chunk
MAX_READ_PER_CHUNK = 400  # for one needle
MAX_READ_LATER = 16  # of a chunk, once `MAX_READ` is spent
MAX_TABLES = 8  # times that the kernel's table of tasks is looked for
MAX_EVENTS = 256  # different ones; repetitions are counted on the first
MAX_PROCESSES = 256
SAMPLES_PER_CHUNK = 12
MAX_TRACEBACKS = 64


@record
class _Key:
    """Events with equal keys are one failure reported again."""

    kind: EventKind
    rank: int | None
    exit_code: int | None
    text: str


class Scanner:
    """Fed a log's bytes in order; `facts` afterwards. `rank`: whose log it is, where the file's name says so."""

    def __init__(self, source: str, *, rank: int | None = None) -> None:
        self._source = source
        self._rank = rank
        self._window = Window()
        self._num_read = 0
        self._num_table_lines = 0
        self._num_tracebacks = 0
        self._num_kernel_tables = 0
        self._events: dict[_Key, MemoryEvent] = {}
        self._unread = 0
        self._series = SeriesCollector()
        self._processes: dict[tuple[int | None, int], ProcessMemory] = {}
        self._host_processes: tuple[ProcessMemory, ...] = ()
        self._device_use: dict[int, tuple[int, int]] = {}
        self._host_use: list[HostUse] = []
        self._ranks: set[int] = set()
        self._head = HeadReader()
        self._num_bytes = 0
        self._last_start = -1

    def feed(self, chunk: bytes, *, is_last: bool = False) -> None:
        """Scan on. After the last chunk nothing more may be fed."""
        self._num_bytes += len(chunk)
        self._head.feed(chunk)
        self._window.feed(chunk, is_last=is_last)
        distinct = distinct_lines(self._window.looked_at())
        for start in self._failure_lines(distinct):
            self._read_failure(start)
        self._read_tables(distinct)
        self._read_samples(distinct)
        self._read_tracebacks(distinct)

    def _failure_lines(self, distinct: bytes) -> list[int]:
        """Where lines with a needle begin, in order, each once. A window's overlap is not read twice."""
        window, starts = self._window, set[int]()
        for needle in dict.fromkeys(failures_in(distinct)):
            hits = {window.line_start(position) for position in window.find(needle, most=MAX_READ_PER_CHUNK)}
            if len(hits) == MAX_READ_PER_CHUNK:
                self._unread += max(0, window.num_hits(needle) - MAX_READ_PER_CHUNK)
            starts |= hits
        fresh = sorted(start for start in starts if window.offset + start > self._last_start)
        if fresh:
            self._last_start = window.offset + fresh[-1]
        allowed = max(MAX_READ - self._num_read, MAX_READ_LATER)
        self._unread += max(0, len(fresh) - allowed)
        self._num_read += min(len(fresh), allowed)
        return fresh[:allowed]

    def _read_failure(self, start: int) -> None:
        reading = read_failure(self._window, start)
        if reading is None:
            return
        self._keep(reading, start)
        if reading.kind is EventKind.KERNEL_KILL and self._num_kernel_tables < MAX_TABLES:
            self._num_kernel_tables += 1
            near = [*self._window.before(start, most=3000), *self._window.after(start, most=60)]
            table = kernel_processes_of(map(clean, near))
            self._host_processes = table if len(table) > len(self._host_processes) else self._host_processes

    def _keep(self, reading: Reading, start: int) -> None:
        rank = reading.line.rank if reading.line.rank is not None else self._rank
        exit_code = reading.host.exit_code if reading.host is not None else None
        key = _Key(kind=reading.kind, rank=rank, exit_code=exit_code, text=_essence(reading.text))
        known = self._events.get(key)
        if known is not None:
            self._events[key] = replace(known, count=known.count + 1)
        elif len(self._events) < MAX_EVENTS:
            event = assemble(self._window, start, reading)
            self._events[key] = replace(event, rank=rank, source=self._source)
        else:
            self._unread += 1
        if rank is not None:
            self._ranks.add(rank)

    def _read_tables(self, distinct: bytes) -> None:
        for needle in TABLES:
            if needle not in distinct:
                continue
            budget = min(MAX_READ - self._num_table_lines, MAX_READ_PER_CHUNK)
            for position in self._window.find(needle, most=budget):
                self._num_table_lines += 1
                self._read_table_line(self._window.line_start(position), is_heading=needle.startswith(b"used"))

    def _read_table_line(self, start: int, *, is_heading: bool) -> None:
        raws = self._window.after(start, most=64) if is_heading else iter((self._window.line(start),))
        for raw in raws:
            text = read_line(raw).text if not is_heading else clean(raw)
            text = text if "|" not in text or "|" in text[:4] or text.startswith((" [", "[")) else clean(raw)
            process, use = device_process_of(text), device_use_of(text)
            for found in (process, *gpustat_processes_of(text)):
                if found is not None and len(self._processes) < MAX_PROCESSES:
                    self._processes[found.gpu, found.pid] = found
            if use is not None and len(self._device_use) < MAX_PROCESSES:
                self._device_use[self._window.offset + start] = use

    def _read_samples(self, distinct: bytes) -> None:
        window = self._window
        starts = {
            window.line_start(position)
            for needle in SAMPLES
            if needle in distinct
            for position in window.spread(needle, count=SAMPLES_PER_CHUNK)
        }
        for start in sorted(starts):
            line = read_line(window.line(start))
            if line.rank is None and self._rank is not None:
                line = replace(line, rank=self._rank)
            if line.rank is not None:
                self._ranks.add(line.rank)
            self._series.read(line, place=float(window.offset + start))
        for needle in HOST_SAMPLES:
            if needle not in distinct:
                continue
            for position in window.spread(needle, count=SAMPLES_PER_CHUNK):
                start = window.line_start(position)
                line = read_line(window.line(start))
                use = host_use_of(line.text)
                if use is not None:
                    self._host_use = [*self._host_use[:1], use]
                    self._series.read(line, place=float(window.offset + start))

    def _read_tracebacks(self, distinct: bytes) -> None:
        for needle in TRACEBACKS:
            if needle not in distinct:
                continue
            for position in self._window.find(needle, most=MAX_TRACEBACKS - self._num_tracebacks):
                self._num_tracebacks += 1
                start = self._window.line_start(position)
                event = read_unhandled(self._window, start)
                if event is None:
                    continue
                rank = event.rank if event.rank is not None else self._rank
                key = _Key(kind=event.kind, rank=rank, exit_code=None, text=_essence(event.text))
                known = self._events.get(key)
                if known is not None:
                    self._events[key] = replace(known, count=known.count + 1)
                elif len(self._events) < MAX_EVENTS:
                    self._events[key] = replace(event, rank=rank, source=self._source)

    def facts(self) -> LogFacts:
        """What was found, once the last chunk has been fed."""
        head = self._head.read(whole_bytes=self._num_bytes, tail=self._window.data)
        notes = (
            (f"{self._unread} further failure lines of {self._source} were counted, not read",) if self._unread else ()
        )
        return LogFacts(
            events=tuple(sorted(self._events.values(), key=lambda event: event.log_line)),
            series=(*self._series.series(), *head.series),
            processes=tuple(self._processes.values()),
            host_processes=self._host_processes,
            device_use=tuple(self._device_use.values()),
            host_use=tuple(self._host_use),
            hints=head.hints,
            settings=head.settings,
            ranks=tuple(sorted(self._ranks | ({self._rank} if self._rank is not None else set()))),
            num_lines=self._window.num_lines(),
            num_bytes=self._num_bytes,
            notes=notes,
        )


def _essence(text: str) -> str:
    """The text by which a repetition is known: without exception names in front, blanks folded."""
    folded = " ".join(text.split())
    for marker in (" out of memory", "Allocation on device"):
        place = folded.find(marker)
        if place >= 0:
            return folded[place : place + 300]
    return folded[:300]
