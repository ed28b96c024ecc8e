"""The drawn 1F1B schedule."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.report import build_document
from planner.report.document import Pass, Schedule
from planner.report.schedule import ELIDED, micro_batch_labels, simulate
from planner.report.text_plots import SCHEDULE_COLUMNS, schedule_lines
from tests.unit.report.samples import cluster_report, quickstart_report


def _schedule(report: object) -> Schedule:
    sections = build_document(report).sections  # type: ignore[arg-type]
    (blocks,) = [section.blocks for section in sections if section.title == "Pipeline schedule"]
    return next(block for block in blocks if isinstance(block, Schedule))


@given(st.integers(1, 6), st.integers(1, 14), st.floats(0.5, 3.0))
def test_schedule_of_equal_stages_takes_the_work_and_the_bubble(
    stages: int, micro_batches: int, backward: float
) -> None:
    work = simulate([(1.0, backward)] * stages, micro_batches)
    assert len(work) == 2 * stages * micro_batches
    end = max(one.end_s for one in work)
    assert end == pytest.approx((micro_batches + stages - 1) * (1.0 + backward))  # Narayanan et al. 2021, section 2.2


@given(st.lists(st.tuples(st.floats(0.1, 2.0), st.floats(0.1, 2.0)), min_size=1, max_size=5), st.integers(1, 9))
def test_schedule_keeps_every_order_that_data_and_memory_ask_for(
    times: list[tuple[float, float]], micro_batches: int
) -> None:
    work = simulate(times, micro_batches)
    ends = {(one.stage, one.place, one.kind): one for one in work}
    for one in work:
        if one.kind is Pass.FORWARD and one.stage > 0:
            assert one.start_s >= ends[one.stage - 1, one.place, Pass.FORWARD].end_s
        if one.kind is Pass.BACKWARD and one.stage < len(times) - 1:
            assert one.start_s >= ends[one.stage + 1, one.place, Pass.BACKWARD].end_s
    for stage in range(len(times)):
        own = sorted((one for one in work if one.stage == stage), key=lambda one: one.start_s)
        assert all(later.start_s >= earlier.end_s for earlier, later in itertools.pairwise(own))
        in_flight = most = 0
        for one in own:
            in_flight += 1 if one.kind is Pass.FORWARD else -1
            most = max(most, in_flight)
        assert most == min(micro_batches, len(times) - stage)


def test_schedule_elides_the_middle_of_many_micro_batches() -> None:
    assert micro_batch_labels(4, 2) == ("1", "2", "3", "4")
    labels = micro_batch_labels(512, 2)
    assert len(labels) == 12 and labels[0] == "1" and labels[-1] == "512"
    assert labels.count(ELIDED) == 1


def test_schedule_of_a_report_has_a_row_for_each_stage_within_the_step() -> None:
    schedule = _schedule(cluster_report())
    assert [row.label for row in schedule.rows] == ["stage 0", "stage 1"]
    for row in schedule.rows:
        assert [cell.kind for cell in row.cells].count(Pass.FORWARD) == 4  # micro-batches
        assert row.cells[-1].kind is Pass.UPDATE and row.cells[-1].end == 1.0
        assert all(0 <= cell.start < cell.end <= 1 for cell in row.cells)
    assert [row.label for row in _schedule(quickstart_report()).rows] == ["every rank"]


def test_schedule_lines_are_equally_long() -> None:
    *lanes, legend = schedule_lines(_schedule(cluster_report()))
    assert {len(line) for line in lanes} == {len("stage 0  ") + SCHEDULE_COLUMNS}
    assert "computed" in legend
