"""Memory that every step adds to is a suspicion; what fills up once is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.spec import Measured
from planner.trial.leak import suspected_leak_bytes_per_step
from tests.unit.trial.samples import make_report

GIB, MIB = 1 << 30, 1 << 20


def _measured(*series: tuple[int, ...]) -> Measured:
    ranks = tuple(
        replace(make_report(rank), allocated_by_step_bytes=tuple(GIB + held * MIB for held in one))
        for rank, one in enumerate(series)
    )
    return Measured(step_time_s=1.0, step_time_spread_s=0.0, tokens_per_s=1.0, ranks=ranks)


@pytest.mark.parametrize(
    ("series", "mib_per_step"),
    [
        ((0, 8, 16, 24, 32), 8.0),
        ((0, 8, 9, 24, 32), 8.0),
        ((0, 32, 32, 32, 32), 0.0),  # a cache that filled once
        ((0, 8, 4, 16, 20), 0.0),  # it comes and goes
        ((0, 8, 16), 0.0),  # too few steps
        ((5, 5, 5, 5, 5), 0.0),
    ],
)
def test_growth_in_every_step_is_told_with_its_slope(series: tuple[int, ...], mib_per_step: float) -> None:
    assert suspected_leak_bytes_per_step(_measured(series)) == pytest.approx(mib_per_step * MIB)


def test_the_worst_rank_counts() -> None:
    assert suspected_leak_bytes_per_step(_measured((0, 0, 0, 0), (0, 2, 4, 6))) == 2 * MIB
