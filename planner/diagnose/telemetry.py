"""Memory counters over the steps of a run: read from log lines, kept in bounded series. Pure text and arithmetic.

Lines of training loops (torchtitan, Megatron, mmengine, detectron2, Hugging Face callbacks, DeepSpeed's memory lines)
are read by two loose patterns: a word of memory with a size behind it, and a word of progress with a number behind it.
"""

from __future__ import annotations

import re

from planner.diagnose.lines import Line
from planner.diagnose.records import HostUse, Series, SeriesPoint
from planner.diagnose.sizes import size_bytes
from planner.spec._record import record

MAX_SERIES = 256
MAX_POINTS = 512  # of one series; when full, every other point goes

_UNIT = r"[kKMGT]i?B|[MG]\b|bytes"
# Keep: every repetition is bounded and its parts cannot overlap, so that no line makes the search slow.
_MEMORY = re.compile(
    r"(?P<name>(?:mem(?:ory)?|alloc(?:ated)?|reserved|active|rss|vram)(?![a-z])[\w/.]{0,24})"
    r"(?: ?[(\[](?P<key_unit>[kKMGT]i?B)[)\]])?['\"]?(?: [A-Za-z]{1,12}){0,4} ?[:=| ][ \t]{0,3}['\"]?"
    r"(?P<value>\d{1,15}(?:\.\d{1,9})?) ?(?P<unit>" + _UNIT + r")?",
    re.IGNORECASE,
)
_NAME_BEFORE = re.compile(r"[\w/.]{0,40}$")
_KEY_UNIT = re.compile(r"(?:^|[_/.])(?P<unit>[kmgt]i?b|gigabytes|megabytes)$", re.IGNORECASE)
_LINE_UNIT = re.compile(r"memory \((?P<unit>[kMGT]i?B)\)")  # Megatron: one unit for all counters of the line
_BARE_MEBIBYTES = re.compile(r"memory \d{3,7}")  # mmengine: `memory: 5213`
_FREE = re.compile(r"free|avail|limit|total|capacity|fraction|percent|util|headroom|bandwidth", re.IGNORECASE)
_HOST = re.compile(r"cpu|host|rss|(?<!v)ram\b|virtual|system", re.IGNORECASE)
_STEP = re.compile(
    r"\b(?:global[_ ]step|step|iter(?:ation)?|batch|it|update"
    r"|num_updates)['\"]?\s{0,3}(?:[:=#]\s{0,3}|\s)['\"]?[\[(]?\s{0,4}(?P<step>\d{1,12})",
    re.IGNORECASE,
)
_EPOCH_STEP = re.compile(r"\bEpoch\b\D{0,10}\d{1,9}\]?\s?\[\s{0,6}(?P<step>\d{1,12})\s?/", re.IGNORECASE)
_CPU_LINE = re.compile(
    r"CPU Virtual Memory:\s{1,4}used = (?P<used>\d+(?:\.\d+)?) ?GB, percent = (?P<percent>\d+(?:\.\d+)?)%"
)
_DEEPSPEED = re.compile(r"\bMA (?P<live>\d+(?:\.\d+)?) ?GB\s+Max_MA (?P<peak>\d+(?:\.\d+)?) ?GB")
_NO_COUNTER = re.compile(r"Tried to allocate|out of memory|total-vm|already allocated", re.IGNORECASE)


@record
class _Key:
    """One counter of one rank; with steps of its own, or placed by where its lines stand."""

    name: str
    rank: int | None
    is_host: bool
    has_steps: bool


class SeriesCollector:
    """Points of many series, bounded. `place` stands in for a step where the line names none."""

    def __init__(self) -> None:
        self._points: dict[_Key, list[SeriesPoint]] = {}
        self._strides: dict[_Key, int] = {}
        self._seen: dict[_Key, int] = {}

    def read(self, line: Line, *, place: float) -> None:
        """Take the counters of one line."""
        if _NO_COUNTER.search(line.text):
            return
        step = step_of(line.text)
        use = host_use_of(line.text)
        counters = [("host memory", float(use.used_bytes), True)] if use is not None else counters_of(line.text)
        for name, value, is_host in counters:
            key = _Key(name=name, rank=line.rank, is_host=is_host, has_steps=step is not None)
            self._add(key, SeriesPoint(step=place if step is None else step, value_bytes=value))

    def _add(self, key: _Key, point: SeriesPoint) -> None:
        """Add one point; a full series is thinned and from then on takes fewer."""
        if key not in self._points and len(self._points) >= MAX_SERIES:
            return
        points = self._points.setdefault(key, [])
        stride = self._strides.setdefault(key, 1)
        self._seen[key] = self._seen.get(key, 0) + 1
        if self._seen[key] % stride == 0 or stride == 1:
            points.append(point)
        if len(points) > MAX_POINTS:
            del points[1::2]
            self._strides[key] = 2 * stride

    def series(self) -> tuple[Series, ...]:
        """All series with at least three points."""
        return tuple(
            Series(name=key.name, rank=key.rank, is_host=key.is_host, points=tuple(points), has_steps=key.has_steps)
            for key, points in self._points.items()
            if len(points) >= 3
        )


def step_of(text: str) -> float | None:
    """The step that a line of a training loop names; None without one."""
    found = _EPOCH_STEP.search(text) or _STEP.search(text)
    return float(found["step"]) if found else None


def counters_of(text: str) -> list[tuple[str, float, bool]]:
    """`(name, bytes, is of the host)` of each memory counter in the line that has a unit."""
    deepspeed = _DEEPSPEED.search(text)
    if deepspeed is not None:
        return [("MA", float(deepspeed["live"]) * 2**30, False)]
    counters = []
    of_line = _LINE_UNIT.search(text)
    for found in list(_MEMORY.finditer(text))[:8]:
        before = _NAME_BEFORE.search(text, max(0, found.start() - 40), found.start())
        name = (before[0] if before is not None else "") + found["name"]
        if _FREE.search(name):
            continue
        unit = found["unit"] or found["key_unit"] or _unit_in(name) or (of_line["unit"] if of_line else "")
        if not unit and _BARE_MEBIBYTES.fullmatch(f"{name} {found['value']}"):
            unit = "MiB"
        if not unit:
            continue
        value = size_bytes(found["value"], unit)
        if value:
            counters.append((name, float(value), bool(_HOST.search(name))))
    return counters


def _unit_in(name: str) -> str:
    """The unit that a counter's own name ends in: `mem_gb`, `peak_GiB`."""
    found = _KEY_UNIT.search(name)
    if not found:
        return ""
    return {"gigabytes": "GB", "megabytes": "MB"}.get(found["unit"].lower(), found["unit"])


def host_use_of(text: str) -> HostUse | None:
    """DeepSpeed's line about the node's memory."""
    found = _CPU_LINE.search(text)
    if found is None:
        return None
    return HostUse(used_bytes=round(float(found["used"]) * 2**30), used_fraction=float(found["percent"]) / 100.0)
