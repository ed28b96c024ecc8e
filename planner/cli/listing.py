"""`planner list`: what the catalogs and rule tables hold."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from planner.app.requests import CatalogKind, CatalogTable
from planner.cli.session import JsonFlag, QuietFlag, run_verb
from planner.cli.tables import add_cells, new_table
from planner.report.units import format_named, heading_of


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
        session.print(_table(catalog))
        session.print_essential("\n".join(str(row[0]) for row in catalog.rows))


def _table(catalog: CatalogTable) -> Table:
    table = new_table(*(heading_of(column) for column in catalog.columns))
    for row in catalog.rows:
        add_cells(table, *(format_named(column, cell) for column, cell in zip(catalog.columns, row)))
    return table
