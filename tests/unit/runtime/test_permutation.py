"""A training order that takes no memory is still an order: every sequence once."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from planner.runtime.permutation import permuted


@given(size=st.integers(1, 700), seed=st.integers(0, 2**63 - 1))
def test_permuted_visits_everything_once(size: int, seed: int) -> None:
    assert sorted(permuted(index, size=size, seed=seed) for index in range(size)) == list(range(size))


@given(index=st.integers(0, 10**15 - 1), seed=st.integers(0, 2**63 - 1))
def test_permuted_of_a_huge_file_stays_inside_it(index: int, seed: int) -> None:
    assert 0 <= permuted(index, size=10**15, seed=seed) < 10**15


def test_permuted_orders_of_two_seeds_differ_and_neither_runs_in_order() -> None:
    one, other = ([permuted(index, size=1000, seed=seed) for index in range(1000)] for seed in (1, 2))
    assert sum(a == b for a, b in zip(one, other)) < 30
    assert sum(b == a + 1 for a, b in pairwise(one)) < 30
    assert abs(sum(one[:500]) / 500 - 499.5) < 60  # the first half of the order is no half of the file
