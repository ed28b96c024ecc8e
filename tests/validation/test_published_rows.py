"""The cost model against what others published. `pytest -s` prints the figures per source.

A first model: these gates say that it is sane on runs of other runtimes, devices and sizes, and that it orders layouts.
"""

from __future__ import annotations

from statistics import median

import numpy as np
import pytest

from tests.validation.published_rows import rows


def _rank_correlation(one: list[float], other: list[float]) -> float:
    ranks = [np.argsort(np.argsort(values)) for values in (one, other)]
    return float(np.corrcoef(*ranks)[0, 1])


@pytest.mark.parametrize(
    ("source", "num_rows", "median_error", "order"),
    [
        ("simumax", 17, 0.10, 0.98),
        ("vtrain_measured", 776, 0.15, 0.96),
        ("llm_foundry_readme", 100, 0.10, 0.97),
        ("internevo", 28, 0.15, 0.75),
        ("megatron_papers_and_llama3", 6, 0.10, 0.90),
        ("bigscience_bloom", 120, 0.20, 0.75),
    ],
)
def test_published_step_times_are_met_and_ordered(
    source: str, num_rows: int, median_error: float, order: float
) -> None:
    timed = [row for row in rows(source) if row.step_time_s]
    middle = median(abs(row.time_error) for row in timed)
    correlation = _rank_correlation([row.estimate.step_time_s for row in timed], [row.step_time_s for row in timed])
    print(f"{source:28} {len(timed):4} rows, step time {middle:.1%} off at the median, order {correlation:.3f}")
    assert len(timed) >= num_rows
    assert middle <= median_error
    assert correlation >= order


def test_published_allocated_memory_of_megatron_is_within_a_few_percent() -> None:
    known = [row for row in rows("simumax") if row.allocated_bytes]
    for row in known:
        print(f"{row.name:80} {row.allocated_bytes / 2**30:7.2f} GiB {row.allocated_error:+.1%}")
    assert len(known) >= 17
    assert median(abs(row.allocated_error) for row in known) <= 0.03
