"""A report document as Markdown that reads well unrendered: aligned tables, bars of letters."""

from __future__ import annotations

import re
import string

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
from planner.report.text_plots import history_lines, listing_lines, scatter_lines, schedule_lines
from planner.report.units import one_line, printable

BAR_WIDTH = 50
LOG_LINES = 4
# Outside code, Markdown or the HTML inside it would act on these. An underscore inside a word is safe (GitHub's rules).
_SPECIAL = re.compile(r"([\\`*\[\]|<>~]|(?<!\w)_|_(?!\w)|^[#+\-](?=\s)|^\d+(?=[.)]\s))")


def render_markdown(document: Document) -> str:
    """The whole document as Markdown text, ending in a line end."""
    parts = [f"# {_escape(document.title)}", _escape(document.subtitle)]
    if document.facts:
        parts.append("\n".join(_fact_line(*fact) for fact in document.facts))
    for section in document.sections:
        parts += _render_section(section)
    return "\n\n".join(parts) + "\n"


def _part_letters(bars: Bars) -> dict[str, str]:
    """A letter of its own for each part, from its name where one is left."""
    letters: dict[str, str] = {}
    for segment in (segment for bar in bars.bars for segment in bar.segments):
        if segment.label not in letters:
            wanted = (c for c in segment.label.upper() + string.ascii_uppercase if c.isalpha())
            letters[segment.label] = next((c for c in wanted if c not in letters.values()), "?")
    return letters


def _bar_line(bar: Bar, bars: Bars, letters: dict[str, str]) -> str:
    """One bar as letters, `BAR_WIDTH` of them for the whole scale, a `|` at each marker."""
    cells, shown = "", 0.0
    for segment in bar.segments:
        shown += segment.amount
        cells += letters[segment.label] * (round(shown / bars.scale * BAR_WIDTH) - len(cells))
    line = list(cells.ljust(BAR_WIDTH, "."))
    for marker in bars.markers:
        line[min(round(marker.amount / bars.scale * BAR_WIDTH), BAR_WIDTH) - 1] = "|"
    return "".join(line)


def _fact_line(name: str, value: str, origin: str) -> str:
    return f"- {_escape(name)}: **{_escape(value)}** ({_escape(origin)})"


def _render_section(section: Section) -> list[str]:
    return [f"## {_escape(section.title)}", *(_render_block(block) for block in section.blocks)]


def _render_block(block: Block) -> str:
    match block:
        case Paragraph():
            return _escape(block.text)
        case Table():
            return _render_table(block)
        case Bars():
            return _render_bars(block)
        case Command():
            return f"{_fence(block.command)}\n{_escape(block.does)}"
        case Scatter():
            return _fence("\n".join(scatter_lines(block)))
        case History():
            return _fence("\n".join(history_lines(block)))
        case Schedule():
            return _fence("\n".join(schedule_lines(block)))
        case Listing():
            return f"`{one_line(block.path)}`: {_escape(block.does)}\n\n{_fence(chr(10).join(listing_lines(block)))}"
        case Log():
            return f"{_escape(block.title)}\n\n{_fence(_last_lines(block.text))}"


def _render_table(table: Table) -> str:
    headings = [_escape(column.heading) for column in table.columns]
    rows = [
        [_cell(text, code=column.code, bold=index == table.highlighted) for text, column in zip(row, table.columns)]
        for index, row in enumerate(table.rows)
    ]
    widths = [max(3, *(len(row[place]) for row in [headings, *rows])) for place in range(len(headings))]
    rules = ["-" * (width - 1) + (":" if column.numeric else "-") for width, column in zip(widths, table.columns)]
    lines = [headings, rules, *rows]
    return "\n".join(_table_line(line, table, widths) for line in lines)


def _last_lines(text: str) -> str:
    """Few enough lines of a log for a report that is read from top to bottom."""
    return "\n".join(text.splitlines()[-LOG_LINES:])


def _table_line(cells: list[str], table: Table, widths: list[int]) -> str:
    padded = [
        cell.rjust(width) if column.numeric else cell.ljust(width)
        for cell, column, width in zip(cells, table.columns, widths)
    ]
    return f"| {' | '.join(padded)} |"


def _cell(text: str, *, code: bool, bold: bool) -> str:
    if not text.strip():
        return ""
    shown = _code_span(text) if code else _escape(text)
    return f"**{shown}**" if bold else shown


def _render_bars(bars: Bars) -> str:
    letters = _part_letters(bars)
    label_width = max(len(one_line(bar.label)) for bar in bars.bars)
    lines = [
        f"{one_line(bar.label).ljust(label_width)}  {_bar_line(bar, bars, letters)}  {bar.text}" for bar in bars.bars
    ]
    if bars.markers:
        lines.append(f"{' ' * label_width}  | " + ", ".join(marker.label for marker in bars.markers))
    for bar in bars.legends:
        parts = [f"  {letters[segment.label]} {segment.label} {segment.text}" for segment in bar.segments]
        lines += ["", f"{one_line(bar.label)}:", *parts]
    return _fence("\n".join(lines))


def _fence(text: str) -> str:
    """A fenced block; the fence is longer than any run of backticks inside."""
    text = printable(text)
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def _code_span(text: str) -> str:
    """A code span in a table cell; a pipe would end the cell even inside it."""
    text = one_line(text).replace("|", "\\|")
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    ticks = "`" * (longest + 1)
    padding = " " if longest else ""
    return f"{ticks}{padding}{text}{padding}{ticks}"


def _escape(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", one_line(text)).replace("&", "&amp;")
