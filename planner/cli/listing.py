"""`planner list`: what the catalogs and rule tables hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from planner.app.requests import CatalogCell, CatalogKind, CatalogTable
from planner.cli.session import JsonFlag, QuietFlag, run_verb
from planner.report.units import format_named, heading_of, one_line
from planner.spec._record import record

_MOST_WORDS = 24  # columns of a cell of words on a terminal; the column with the longest has what is left
_FEWEST_WORDS = 8  # columns it keeps on a terminal that is too narrow for anything
_GAP = 2
_ZERO_IS_UNKNOWN = ("price_per_hour",)  # nobody's GPU is free
_UNKNOWN = "-"
_PIPED_WIDTH = 1000  # a pipe has no edge


def list_known(
    context: typer.Context,
    kind: Annotated[CatalogKind, typer.Argument(metavar="KIND", help="What to list.")],
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """What the catalogs and rule tables hold, and where each entry comes from."""
    with run_verb(context, as_json=as_json, quiet=quiet) as session:
        catalog = session.use_cases.list_catalog(kind)
        session.print_json([dict(zip(catalog.columns, row)) for row in catalog.rows])
        columns = _columns(catalog)
        shown = _fitting(columns, width=session.width or _PIPED_WIDTH)
        session.print(_table(shown), *_left_out(columns, shown), piped_width=_PIPED_WIDTH)
        session.print_essential("\n".join(str(row[0]) for row in catalog.rows))


@record
class _Column:
    heading: str
    cells: tuple[str, ...]
    numeric: bool
    width: int


def _columns(catalog: CatalogTable) -> list[_Column]:
    return [_column(name, [row[place] for row in catalog.rows]) for place, name in enumerate(catalog.columns)]


def _column(name: str, values: list[CatalogCell]) -> _Column:
    cells = tuple(_UNKNOWN if name in _ZERO_IS_UNKNOWN and not v else one_line(format_named(name, v)) for v in values)
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    heading = heading_of(name)
    return _Column(heading=heading, cells=cells, numeric=numeric, width=max(map(len, (heading, *cells))))


def _fitting(columns: list[_Column], *, width: int) -> list[_Column]:
    """As many columns as fit, from the left, beside the one with the longest words; that one takes what they leave."""
    if sum(column.width + _GAP for column in columns) <= width:
        return columns
    widths = [
        column.width if column.numeric or place == 0 else min(column.width, _MOST_WORDS)
        for place, column in enumerate(columns)
    ]
    longest = max(range(len(columns)), key=lambda place: 0 if columns[place].numeric else columns[place].width)
    kept = {0, longest}
    left = width - sum(widths[place] + _GAP for place in kept)
    for place, needed in enumerate(widths):
        if place not in kept:
            if needed + _GAP > left:
                break
            kept.add(place)
            left -= needed + _GAP
    widths[longest] = max(min(columns[longest].width, widths[longest] + left), _FEWEST_WORDS)
    return [replace(columns[place], width=widths[place]) for place in sorted(kept)]


def _left_out(columns: list[_Column], shown: list[_Column]) -> tuple[Text, ...]:
    headings = {column.heading for column in shown}
    missing = ", ".join(column.heading for column in columns if column.heading not in headings)
    return (Text(f"not shown in this width: {missing}", style="dim"),) if missing else ()


def _table(columns: list[_Column]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
    for column in columns:
        table.add_column(
            Text(column.heading),
            justify="right" if column.numeric else "left",
            width=column.width,
            no_wrap=column.heading == "source",  # cut rather than wrapped; --json has all of it
        )
    for cells in zip(*(column.cells for column in columns)):
        table.add_row(*map(Text, cells))
    return table
