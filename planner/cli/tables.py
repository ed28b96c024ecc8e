"""The one look of tables on the terminal: no rules, dim headings, figures flush right."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from planner.report.units import one_line

_WORDS = frozenset({"origin", "why", "result", "source", "kind", "detail", "value", "device", "candidate"})


def new_table(*headings: str) -> Table:
    """A table with these headings: figures in every column but the first and those whose heading names words."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for place, heading in enumerate(headings):
        is_numeric = place > 0 and heading not in _WORDS
        table.add_column(Text(heading), justify="right" if is_numeric else "left", overflow="fold")
    return table


def add_cells(table: Table, *cells: str) -> None:
    """Add a row of plain text: nothing in it is taken as markup, control characters are replaced."""
    table.add_row(*(Text(one_line(cell)) for cell in cells))
