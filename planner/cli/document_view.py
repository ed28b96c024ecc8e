"""A report document on a terminal."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from planner.cli.tables import add_cells
from planner.report.document import (
    Bar,
    Bars,
    Block,
    Command,
    Document,
    History,
    Listing,
    Log,
    Paragraph,
    Scatter,
    Schedule,
    Section,
    Table,
)
from planner.report.markdown import LOG_LINES
from planner.report.text_plots import history_lines, listing_lines, scatter_lines, schedule_lines
from planner.report.units import one_line

_BAR_WIDTH = 48
_TONES = (
    "blue",
    "bright_blue",
    "magenta",
    "yellow",
    "bright_yellow",
    "white",
    "cyan",
    "bright_black",
    "red",
    "green",
    "bright_green",
    "bright_black",
)


def document_view(document: Document) -> tuple[RenderableType, ...]:
    """The document as what Rich prints."""
    head = [Text(one_line(document.title), style="bold"), Text(one_line(document.subtitle))]
    return (*head, *(part for section in document.sections for part in _section(section)))


def _section(section: Section) -> list[RenderableType]:
    parts: list[RenderableType] = [Text(), Text(section.title, style="bold underline")]
    for block in section.blocks:
        parts += _block(block)
    return parts


def _block(block: Block) -> list[RenderableType]:
    match block:
        case Paragraph():
            return [Text(one_line(block.text))]
        case Table():
            return [_table(block)]
        case Bars():
            return _bars(block)
        case Command():
            return [Text.assemble("  ", (one_line(block.command), "bold cyan"), ("  " + block.does, "dim"))]
        case Scatter():
            return _lines(scatter_lines(block))
        case History():
            return _lines(history_lines(block))
        case Schedule():
            return _lines(schedule_lines(block))
        case Listing():
            return [Text(one_line(f"{block.path}: {block.does}"), style="bold"), *_lines(listing_lines(block))]
        case Log():
            last = block.text.splitlines()[-LOG_LINES:]
            return [Text(one_line(block.title), style="bold"), *_lines(tuple(one_line(line) for line in last))]


def _lines(lines: tuple[str, ...]) -> list[RenderableType]:
    return [Text(line, no_wrap=True, overflow="crop") for line in lines]


def _table(table: Table) -> RichTable:
    shown = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in table.columns:
        shown.add_column(Text(column.heading), justify="right" if column.numeric else "left", overflow="fold")
    for index, row in enumerate(table.rows):
        add_cells(shown, *row)
        if index == table.highlighted:
            shown.rows[-1].style = "bold green"
    return shown


def _bars(bars: Bars) -> list[RenderableType]:
    width = max(len(bar.label) for bar in bars.bars)
    parts: list[RenderableType] = [_bar(bar, bars, width) for bar in bars.bars]
    if bars.markers:
        words = ", ".join(marker.label for marker in bars.markers)
        parts.append(Text(f"{' ' * width}  | {words}", style="dim"))
    return [*parts, *(_legend(bar, width) for bar in bars.legends)]


def _bar(bar: Bar, bars: Bars, width: int) -> Text:
    line, shown, cells = Text(f"{bar.label:<{width}}  "), 0.0, 0
    for segment in bar.segments:
        shown += segment.amount
        wanted = round(shown / bars.scale * _BAR_WIDTH)
        line.append("█" * (wanted - cells), style=_TONES[segment.tone % len(_TONES)])
        cells = max(cells, wanted)
    rest = ["·"] * _BAR_WIDTH
    for marker in bars.markers:
        rest[min(round(marker.amount / bars.scale * _BAR_WIDTH), _BAR_WIDTH) - 1] = "|"
    line.append("".join(rest[cells:]), style="dim")
    return line.append(f"  {bar.text}")


def _legend(bar: Bar, width: int) -> Text:
    line = Text(f"{bar.label:<{width}} ", style="")
    for segment in bar.segments:
        line.append(" █", style=_TONES[segment.tone % len(_TONES)])
        line.append(f" {segment.label} {segment.text}")
    return line
