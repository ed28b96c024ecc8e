"""Screening: only what cannot fit by the margin is left untried."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cost import SCREEN_MARGIN_FRACTION, estimate_columns, screened_out
from planner.spec.columns import BoolColumn
from tests.unit.cost.samples import BILLION, cluster, columns, estimate, training


def _screened(*, usable_bytes: int) -> BoolColumn:
    gpu = replace(cluster().gpu, memory_usable_bytes=usable_bytes)
    rows = columns(zero_stage=1, data_parallel_size=8)
    return screened_out(estimate_columns(rows, model=BILLION, training=training(), cluster=cluster(gpu=gpu)))


@pytest.mark.parametrize(("share", "is_screened"), [(1.0, False), (0.98, False), (0.95, True)])
def test_candidate_is_screened_only_beyond_the_margin(share: float, is_screened: bool) -> None:
    low = estimate(zero_stage=1, data_parallel_size=8).memory.low_bytes
    assert _screened(usable_bytes=int(low * share))[0] == is_screened


def test_margin_is_a_small_share() -> None:
    assert 0 < SCREEN_MARGIN_FRACTION < 0.1
