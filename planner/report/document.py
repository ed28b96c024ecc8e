"""What a report is, before it is Markdown, HTML or a terminal's lines: sections of a few kinds of block.

All text in here is plain: each renderer escapes it in its own way.
"""

from __future__ import annotations

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
        """One bar for each set of parts, the longest, to name the parts and their amounts by."""
        if not self.has_legends:
            return ()
        longest: dict[tuple[str, ...], Bar] = {}
        for bar in self.bars:
            parts = tuple(segment.label for segment in bar.segments)
            if parts not in longest or bar.total > longest[parts].total:
                longest[parts] = bar
        return tuple(longest.values())


@record
class Command:
    """A command to type and what it does."""

    command: str
    does: str


Block: TypeAlias = Paragraph | Table | Bars | Command


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
