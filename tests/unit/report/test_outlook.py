"""The section on other clusters: fronts thinned to a page, changes with their gain, nothing where nothing was seen."""

from __future__ import annotations

from dataclasses import replace

from planner.report.document import Paragraph, Table
from planner.report.outlook import SHOWN, outlook_blocks, thinned
from planner.spec.outlook import ClusterOption, Outlook, WhatIf
from tests.unit.report.samples import make_candidate


def _option(world_size: int, *, price: float = 2.0) -> ClusterOption:
    speed = 1000.0 * world_size**0.9
    return ClusterOption(
        nodes=max(world_size // 8, 1),
        world_size=world_size,
        candidate=make_candidate(data=world_size),
        tokens_per_s=speed,
        usd_per_hour=price * world_size,
        usd_per_billion_tokens=price * world_size / 3600 / speed * 1e9,
    )


FRONT = tuple(_option(8 * size) for size in range(1, 40))
CHANGES = (
    WhatIf(
        change="25% more device memory", gain_fraction=0.125, tokens_per_s=9e4, candidate=make_candidate(), detail="d"
    ),
    WhatIf(change="one more node", gain_fraction=0.0, tokens_per_s=0.0, candidate=None, detail="no layout fits"),
)
OUTLOOK = Outlook(by_gpus=FRONT, by_cost=FRONT[:3], smallest=FRONT[0], what_if=CHANGES)


def test_long_front_is_thinned_to_its_ends_and_some_between() -> None:
    shown = thinned(FRONT)
    assert len(shown) == SHOWN
    assert (shown[0], shown[-1]) == (FRONT[0], FRONT[-1])
    assert thinned(FRONT[:4]) == FRONT[:4]


def test_section_shows_smallest_fronts_and_changes() -> None:
    blocks = outlook_blocks(OUTLOOK)
    texts = [block.text for block in blocks if isinstance(block, Paragraph)]
    tables = [block for block in blocks if isinstance(block, Table)]
    assert texts[0].startswith("The fewest devices on which a layout fits: 8, with")
    assert [len(table.rows) for table in tables] == [SHOWN, 3, 2]
    assert tables[0].rows[0][0] == "8"
    assert tables[2].rows[0][1:3] == ("90.0 k", "+12%")
    assert tables[2].rows[1][1:] == ("–", "–", "–", "no layout fits")


def test_prices_are_left_out_where_unknown() -> None:
    free = tuple(replace(option, usd_per_hour=0.0, usd_per_billion_tokens=0.0) for option in FRONT)
    blocks = outlook_blocks(Outlook(by_gpus=free, smallest=free[0]))
    (table,) = [block for block in blocks if isinstance(block, Table)]
    assert [column.heading for column in table.columns] == ["devices", "nodes", "tokens/s", "candidate"]


def test_nothing_looked_at_makes_no_section() -> None:
    assert outlook_blocks(None) == ()
    assert outlook_blocks(Outlook()) == ()
