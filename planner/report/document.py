"""What a report is, before it is Markdown, HTML or a terminal's lines: sections of a few kinds of block.

All text in here is plain: each renderer escapes it in its own way.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from planner.spec._record import record, require


@record
class Paragraph:
    text: str


@record
class Column:
    """`numeric` cells are set flush right; `code` cells are set in a fixed-width face."""

    heading: str
    numeric: bool = False
    code: bool = False


@record
class Table:
    """`highlighted`: the index of the row that the plan chose."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    highlighted: int | None = None

    def __post_init__(self) -> None:
        require(all(len(row) == len(self.columns) for row in self.rows), "every row has a cell for each column")


@record
class Segment:
    """A part of a bar. `tone` picks its colour: equal parts of several bars share one."""

    label: str
    amount: float
    text: str
    tone: int


@record
class Bar:
    label: str
    segments: tuple[Segment, ...]
    text: str  # the total, with its origin

    @property
    def total(self) -> float:
        return sum(segment.amount for segment in self.segments)


@record
class Marker:
    """A line across all bars: a limit."""

    label: str
    amount: float


@record
class Bars:
    """Stacked bars on one scale from 0 to `scale` (in the unit of the amounts). `has_legends`: whether their parts
    are named below them."""

    bars: tuple[Bar, ...]
    scale: float
    markers: tuple[Marker, ...] = ()
    has_legends: bool = True

    def __post_init__(self) -> None:
        require(self.scale > 0, "bars need a scale")

    @property
    def legends(self) -> tuple[Bar, ...]:
        """One bar for each set of parts that no other holds, the longest, to name the parts and their amounts by."""
        if not self.has_legends:
            return ()
        longest: dict[tuple[str, ...], Bar] = {}
        for bar in self.bars:
            parts = tuple(segment.label for segment in bar.segments)
            if parts not in longest or bar.total > longest[parts].total:
                longest[parts] = bar
        return tuple(bar for parts, bar in longest.items() if not any(set(parts) < set(others) for others in longest))


@record
class Command:
    """A command to type and what it does."""

    command: str
    does: str


class PointState(StrEnum):
    """What is known of a candidate in the plot."""

    CHOSEN = "chosen"
    MEASURED = "measured"
    EMULATED = "emulated"
    FAILED = "failed"
    FITS = "fits"  # the model's word only
    TOO_LARGE = "too large"  # the model's word: not sure to fit


TRIED_STATES = (PointState.CHOSEN, PointState.MEASURED, PointState.EMULATED, PointState.FAILED)


@record
class Tick:
    """A labelled place on an axis; `at` is a share of the axis, 0 to 1."""

    at: float
    label: str


@record
class Point:
    """One candidate of a plot. `x`, `y`: shares of the plot, from the left and from below. `choices`: its value on each
    of the plot's filters. `facts`: its figures with their origins, a line each."""

    x: float
    y: float
    state: PointState
    name: str
    choices: tuple[int, ...]
    facts: tuple[str, ...]


@record
class PlotFilter:
    """What the points can be picked by: the name, and its values in order."""

    name: str
    values: tuple[int, ...]


@record
class Scatter:
    """Candidates by memory (x, a log scale) and speed (y, from 0). `limits` are lines from top to bottom. `frontier`:
    the corners of the line above which nothing that fits lies, left to right."""

    points: tuple[Point, ...]
    frontier: tuple[tuple[float, float], ...]
    x_title: str
    y_title: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    limits: tuple[Tick, ...]
    filters: tuple[PlotFilter, ...]


@record
class HistoryStep:
    """One trial in the order they ended. `y` and `best_y`: shares of the plot's height; None: no figure (yet)."""

    number: int
    name: str
    state: PointState
    y: float | None
    best_y: float | None
    text: str


@record
class History:
    """A trial a step: what each reached, and the best so far."""

    steps: tuple[HistoryStep, ...]
    y_title: str
    y_ticks: tuple[Tick, ...]


class Pass(StrEnum):
    """What a pipeline stage does in a piece of the schedule."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"


@record
class ScheduleCell:
    """A piece of one stage's time: shares of the whole from the left. `label`: the micro-batch, `…` for many alike."""

    start: float
    end: float
    kind: Pass
    label: str
    text: str


@record
class ScheduleRow:
    label: str
    cells: tuple[ScheduleCell, ...]


@record
class Schedule:
    """Who works on which micro-batch when, a row a stage. `span` says how long the whole is."""

    rows: tuple[ScheduleRow, ...]
    span: str


@record
class Log:
    """The end of a log. `title` names it, `text` may have many lines."""

    title: str
    text: str


@record
class ListedLine:
    text: str
    why: str = ""


@record
class Listing:
    """An emitted file, each line with what it is for (`why` "": as the line above, or nothing to say)."""

    path: str
    does: str
    lines: tuple[ListedLine, ...]


Block: TypeAlias = Paragraph | Table | Bars | Command | Scatter | History | Schedule | Log | Listing


@record
class Section:
    title: str
    blocks: tuple[Block, ...]


@record
class Document:
    """`facts`: the few figures to see first, as (name, value, origin)."""

    title: str
    subtitle: str
    facts: tuple[tuple[str, str, str], ...]
    sections: tuple[Section, ...]
