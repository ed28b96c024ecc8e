"""Memory that grows is told from memory that is large, and from noise."""

from __future__ import annotations

import random

import pytest

from planner.runtime.growth import SETTLING_STEPS, Growth, GrowthWatch, line_through

MIB = 1 << 20
LIMIT = 1000 * MIB


def last_of(values: list[int]) -> Growth | None:
    watch = GrowthWatch(LIMIT)
    found = None
    for value in values:
        found = watch.step(value)
    return found


def test_growth_steady_leak_is_seen_with_its_slope_and_its_end() -> None:
    noise = random.Random(1)  # noqa: S311
    growth = last_of([100 * MIB + step * MIB + noise.randrange(MIB) for step in range(60)])
    assert growth is not None
    assert growth.slope_bytes == pytest.approx(MIB, rel=0.1)
    assert growth.steps_left == pytest.approx(840, rel=0.1)


def test_growth_large_but_level_noisy_or_settling_memory_is_no_leak() -> None:
    noise = random.Random(2)  # noqa: S311
    assert last_of([990 * MIB] * 60) is None
    assert last_of([500 * MIB + noise.randrange(40 * MIB) for _ in range(60)]) is None
    assert last_of([100 * MIB * step for step in range(SETTLING_STEPS)] + [600 * MIB] * 50) is None
    assert last_of([100 * MIB + step * 1000 for step in range(60)]) is None  # a few KiB a step: not worth a word


def test_line_through_points_on_a_line_explains_them_all() -> None:
    assert line_through((1.0, 3.0, 5.0)) == pytest.approx((2.0, 1.0))
    assert line_through((4.0, 4.0, 4.0)) == (0.0, 0.0)
