"""`planner list`: what is not known is no figure."""

from __future__ import annotations

from planner.app.requests import CatalogKind, CatalogTable
from tests.unit.cli.fakes import FakeUseCases
from tests.unit.cli.running import Cli


class _Prices(FakeUseCases):
    def list_catalog(self, kind: CatalogKind) -> CatalogTable:
        return CatalogTable(kind=kind, columns=("name", "price_per_hour"), rows=(("a", 0.0), ("b", 4.1)))


def test_unknown_price_is_a_dash(cli: Cli) -> None:
    run = cli("list", "gpus", product=_Prices())
    assert [line.split() for line in run.out.splitlines()[1:]] == [["a", "-"], ["b", "4.10"]]
