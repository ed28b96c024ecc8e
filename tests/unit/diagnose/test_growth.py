"""Leaks: straight growth that goes on, not start-up, noise or a plateau."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.diagnose.causes import Cause
from planner.diagnose.growth import growth_of, strongest_leak
from planner.diagnose.lines import Line
from planner.diagnose.records import Series, SeriesPoint
from planner.diagnose.series_text import read_series
from planner.diagnose.telemetry import MAX_POINTS, SeriesCollector, counters_of, host_use_of, step_of
from tests.unit.diagnose.reading import GIB, facts_of, verdict_of


def _series(values: list[float]) -> Series:
    points = tuple(SeriesPoint(step=float(step), value_bytes=value * GIB) for step, value in enumerate(values))
    return Series(name="mem", rank=None, is_host=False, points=points)


@settings(deadline=None)
@given(
    start=st.floats(min_value=1, max_value=60),
    growth=st.floats(min_value=0.3, max_value=3),
    count=st.integers(min_value=5, max_value=200),
    noise=st.lists(st.floats(min_value=-0.01, max_value=0.01), min_size=200, max_size=200),
)
def test_steady_growth_is_a_leak(start: float, growth: float, count: int, noise: list[float]) -> None:
    values = [start * (1 + growth * step / count + noise[step]) for step in range(count)]
    assert strongest_leak((_series(values),)) is not None


@settings(deadline=None)
@given(
    level=st.floats(min_value=5, max_value=70),
    start=st.floats(min_value=0.1, max_value=0.9),
    count=st.integers(min_value=12, max_value=100),
)
def test_start_up_that_levels_off_is_no_leak(level: float, start: float, count: int) -> None:
    values = [level * (start if step == 0 else 1.0) for step in range(count)]
    assert strongest_leak((_series(values),)) is None


@settings(deadline=None)
@given(st.lists(st.floats(min_value=20, max_value=21), min_size=6, max_size=100))
def test_noise_of_a_few_percent_is_no_leak(values: list[float]) -> None:
    assert strongest_leak((_series(values),)) is None


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0, 3.0], [5.0] * 20, [9.0, 8.0, 7.0, 6.0, 5.0, 4.0]])
def test_too_few_points_a_constant_or_shrinking_are_no_leak(values: list[float]) -> None:
    growth = growth_of(_series(values))
    assert growth is None or not growth.is_leak


@pytest.mark.parametrize(
    ("line", "step", "counters"),
    [
        ("step: 10  loss: 8.1  memory: 23.50GiB(24.7%)  tps: 123", 10, {"memory": 23.5 * 2**30}),
        ("iter: 19 total_loss: 3 max_mem: 5213M", 19, {"max_mem": 5213 * 2**20}),
        ("{'loss': 1.1, 'memory/max_active (GiB)': 23.5, 'step': 5}", 5, {"memory/max_active": 23.5 * 2**30}),
        ("Epoch(train) [1][50/100] lr: 1e-3 memory: 5213  loss: 2.3", 50, {"memory": 5213 * 2**20}),
        ("MA 11.76 GB         Max_MA 11.76 GB         CA 11.77 GB", None, {"MA": 11.76 * 2**30}),
        ("peak_mem_gb=12.3 step=7", 7, {"peak_mem_gb": 12.3 * 2**30}),
        ("free memory: 3.0 GiB at step 3", 3, None),
    ],
)
def test_counters_of_training_loops_are_read(line: str, step: int | None, counters: dict[str, float] | None) -> None:
    assert step_of(line) == step
    if counters is not None:
        found = {name: value for name, value, _ in counters_of(line)}
        for name, value in counters.items():
            assert found[name] == pytest.approx(value, rel=0.001)


def test_out_of_memory_message_is_no_counter() -> None:
    assert facts_of("Tried to allocate 20.00 MiB; 22.19 GiB already allocated; step 3\n" * 9).series == ()


def test_full_series_is_thinned_and_keeps_its_ends() -> None:
    collector = SeriesCollector()
    for step in range(20 * MAX_POINTS):
        collector.read(Line(text=f"step {step} mem {10 + step / 1000:.3f} GiB", stream="", rank=None), place=0.0)
    (series,) = collector.series()
    assert len(series.points) <= MAX_POINTS + 1
    assert series.points[0].step == 0
    assert series.points[-1].step > 18 * MAX_POINTS
    assert strongest_leak((series,)) is not None


@pytest.mark.parametrize(
    "text",
    [
        "peak_GiB_by_step:\n  1: 20\n  2: 24\n  3: 28\n  4: 32\n  5: 36\n",
        '{"used_MiB": {"1": 2000, "2": 3000, "3": 4000, "4": 5000, "5": 6000}}',
        "rss_GB: [10, 12, 14, 16, 18, 20]",
        "step,mem_gb\n1,21\n2,22\n3,23.5\n4,25\n5,26.5\n",
        "| step | memory (GiB) |\n|---|---|\n| 1 | 20 |\n| 2 | 24 |\n| 3 | 28 |\n| 4 | 32 |\n| 5 | 36 |\n",
    ],
)
def test_series_typed_into_a_note_is_a_leak(text: str) -> None:
    assert len(read_series(text)) >= 1
    assert verdict_of(text).cause is Cause.LEAK


def test_host_line_of_deepspeed_tells_the_node() -> None:
    use = host_use_of("[INFO] CPU Virtual Memory:  used = 28.43 GB, percent = 22.6%")
    assert use is not None
    assert use.total_bytes == pytest.approx(125.8 * GIB, rel=0.001)
