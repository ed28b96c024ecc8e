"""Memory over time as short documents hold it: YAML or JSON maps and lists, tables with a column of memory. Pure text.

People type such series into notes and issues; a log's own lines are `telemetry`'s.
"""

from __future__ import annotations

import re
from itertools import islice

from planner.diagnose.records import Series, SeriesPoint
from planner.diagnose.sizes import size_bytes

MAX_CHARACTERS = 65536
MAX_KEYS = 400
MAX_POINTS = 4096
MIN_POINTS = 4

_KEY = re.compile(r"['\"]?(?P<name>[\w ()/.-]{1,80}?)['\"]?\s{0,2}$")
_MEMORY = re.compile(r"mem|alloc|reserved|rss|vram|used|usage|peak|\bram\b|_ram|gpu|host", re.IGNORECASE)
_UNIT = re.compile(r"(?:^|[^A-Za-z])([kmgt]i?b)(?:$|[^A-Za-z])", re.IGNORECASE)
_HOST = re.compile(r"cpu|host|rss|(?:^|[^v])ram\b|_ram|virtual|system", re.IGNORECASE)
_PAIR = re.compile(
    r"(?<![\w.])['\"]?(?P<x>\d{1,12}(?:\.\d{1,9})?)['\"]?\s{0,2}:\s{0,3}['\"]?(?P<y>\d{1,15}(?:\.\d{1,9})?)"
    r"(?P<unit> ?[kMGT]i?B)?['\"]?(?![\d:])"
)
_LIST = re.compile(r"\s{0,20}\[([\d.,\s]{3,20000})\]")
_ITEM = re.compile(r"\s{0,20}-\s{1,4}(\d{1,15}(?:\.\d{1,9})?)\s*$")
_NUMBER = re.compile(r"\d{1,15}(?:\.\d{1,9})?")


def read_series(text: str) -> tuple[Series, ...]:
    """All series with at least four points, in the order in which they stand."""
    text = text[:MAX_CHARACTERS]
    return (*_mappings(text), *_tables(text.splitlines()))


def _mappings(text: str) -> list[Series]:
    """A key named for memory with a unit, then `x: y` pairs or a list of numbers."""
    found: list[Series] = []
    for colon in islice(re.finditer(":", text), MAX_KEYS):
        key = _KEY.search(text, max(0, colon.start() - 80), colon.start())
        name = key["name"].strip() if key is not None else ""
        unit = _UNIT.search(name)
        if not _MEMORY.search(name) or unit is None:
            continue
        points = _values(text[colon.end() : colon.end() + 16384])
        series = _series(name, points, unit=unit[1])
        if series is not None:
            found.append(series)
    return found


def _values(text: str) -> list[tuple[float, str]]:
    """The pairs or the list that follow a key, up to what is neither."""
    numbers = _LIST.match(text)
    if numbers is not None:
        return [(float(place), value) for place, value in enumerate(_NUMBER.findall(numbers[1])[:MAX_POINTS])]
    items: list[tuple[float, str]] = []
    for line in text.splitlines()[1:MAX_POINTS]:
        item = _ITEM.match(line)
        if item is None:
            break
        items.append((float(len(items)), item[1]))
    return items or _pairs(text)


def _pairs(text: str) -> list[tuple[float, str]]:
    pairs, end = [], 0
    for found in islice(_PAIR.finditer(text), MAX_POINTS):
        if re.search(r"[A-Za-z]", text[end : found.start()]):
            break
        pairs.append((float(found["x"]), found["y"]))
        end = found.end()
    return pairs


def _tables(lines: list[str]) -> list[Series]:
    """A heading with a column of memory, and rows of numbers below: commas, tabs, bars or blanks between."""
    found: list[Series] = []
    for place, line in enumerate(lines[:2000]):
        cells = _cells(line)
        columns = [index for index, cell in enumerate(cells) if _MEMORY.search(cell) and _UNIT.search(cell)]
        if not columns or len(cells) < 2 or len(found) >= 16:
            continue
        column = columns[0]
        unit = _UNIT.search(cells[column])
        rows = [_numbers(_cells(row)) for row in lines[place + 1 : place + 1 + MAX_POINTS] if not _is_rule(row)]
        points: list[tuple[float, str]] = []
        for row in rows:
            if len(row) <= column:
                break
            x = row[0] if column > 0 else str(len(points))
            points.append((float(x), row[column]))
        series = _series(cells[column], points, unit=unit[1] if unit is not None else "")
        if series is not None:
            found.append(series)
    return found


def _cells(line: str) -> list[str]:
    line = line.strip().strip("|")
    for separator in ("|", "\t", ",", ";"):
        if separator in line:
            return [cell.strip() for cell in line.split(separator)][:64]
    return line.split()[:64]


def _numbers(cells: list[str]) -> list[str]:
    """The cells' numbers; [] when one of them is none."""
    numbers = [_NUMBER.match(cell) for cell in cells]
    return [number[0] for number in numbers if number is not None] if all(numbers) else []


def _is_rule(row: str) -> bool:
    """The line under a heading: dashes and bars."""
    return bool(row.strip()) and not row.strip(" -:|+=")


def _series(name: str, points: list[tuple[float, str]], *, unit: str) -> Series | None:
    sizes = [(x, size_bytes(y, unit)) for x, y in points]
    known = [SeriesPoint(step=x, value_bytes=float(value)) for x, value in sizes if value is not None]
    if len(known) < MIN_POINTS or len(known) != len(sizes):
        return None
    return Series(name=name, rank=None, is_host=bool(_HOST.search(name)), points=tuple(known))
