"""The plot of all candidates and its frontier."""

from __future__ import annotations

import dataclasses
import json
import re

from planner.report import ReportInput, build_document, render_report_html
from planner.report.candidates import speed_ticks
from planner.report.document import PointState, Scatter, Table
from planner.report.text_plots import SCATTER_COLUMNS, SCATTER_ROWS, scatter_lines
from planner.spec import Provenance
from tests.unit.report.samples import MIB, quickstart_report


def _plot(report: ReportInput) -> tuple[Scatter, Table]:
    (section,) = [one for one in build_document(report).sections if one.title == "All candidates"]
    plot = next(block for block in section.blocks if isinstance(block, Scatter))
    return plot, next(block for block in section.blocks if isinstance(block, Table))


def test_tried_candidates_stand_where_they_were_measured_and_others_where_the_model_puts_them() -> None:
    plot, _ = _plot(quickstart_report())
    states = {point.name: point.state for point in plot.points}
    assert states["ZeRO-1 dp2 mb8x2 bf16 full"] is PointState.CHOSEN
    assert states["ZeRO-2 dp2 mb4x4 bf16 full"] is PointState.MEASURED
    assert states["ZeRO-0 dp2 mb16x1 bf16 full"] is PointState.FAILED
    assert states["ZeRO-3 dp2 mb2x8 bf16 full"] is PointState.FITS
    assert states["ZeRO-1 dp2 mb16x1 bf16 full"] is PointState.TOO_LARGE
    by_name = {point.name: point for point in plot.points}
    measured, fitting = by_name["ZeRO-2 dp2 mb4x4 bf16 full"], by_name["ZeRO-3 dp2 mb2x8 bf16 full"]
    assert measured.facts[0] == "trial 0: measured"
    assert "2.38 thousand tokens/s, 430 ms a step (measured)" in measured.facts
    assert fitting.facts[0].endswith("500 ms a step (computed, not tried)")
    assert "cannot do without" in fitting.facts[1]


def test_every_fact_with_a_figure_says_where_it_comes_from() -> None:
    plot, _ = _plot(quickstart_report())
    kinds = "|".join(Provenance)
    for point in plot.points:
        for fact in point.facts:
            assert not re.search(r"tokens/s|[MG]iB", fact) or re.search(kinds, fact) or "rank" in fact, fact


def test_frontier_rises_with_memory_and_takes_measured_figures_for_the_models() -> None:
    plot, table = _plot(quickstart_report())
    assert list(plot.frontier) == sorted(plot.frontier)
    assert [y for _, y in plot.frontier] == sorted(y for _, y in plot.frontier)
    assert table.rows[-1][0] == "ZeRO-1 dp2 mb8x2 bf16 full" and table.rows[-1][-1] == "measured"
    assert table.highlighted == len(table.rows) - 1
    assert table.rows[0][-1] == "computed"


def test_points_limits_and_ticks_lie_in_the_plot() -> None:
    plot, _ = _plot(quickstart_report())
    places = [
        *(point.x for point in plot.points),
        *(tick.at for tick in plot.x_ticks),
        *(one.at for one in plot.limits),
    ]
    assert all(0 <= place <= 1 for place in places)
    assert all(0 <= point.y <= 1 for point in plot.points)
    assert [limit.label for limit in plot.limits] == ["", "usable 1.00 GiB, 5% of it kept free"]


def test_candidates_far_beyond_the_limit_are_not_drawn() -> None:
    report = quickstart_report()
    assert report.candidates is not None
    *others, last = report.candidates.shown
    memory = dataclasses.replace(last.row.estimate.memory, device_used_bytes=40_000 * MIB)
    far = dataclasses.replace(last.row, estimate=dataclasses.replace(last.row.estimate, memory=memory))
    shown = (*others, dataclasses.replace(last, row=far))
    wide = dataclasses.replace(report, candidates=dataclasses.replace(report.candidates, shown=shown))
    assert len(_plot(wide)[0].points) == len(_plot(report)[0].points) - 1


def test_speed_ticks_are_round_and_few() -> None:
    assert [tick.label for tick in speed_ticks(18_300.0)] == ["0", "5 k", "10 k", "15 k"]
    assert [tick.label for tick in speed_ticks(0.9)] == ["0", "0.2", "0.4", "0.6", "0.8"]
    for exponent in range(-2, 9):
        ticks = speed_ticks(3.7 * 10.0**exponent)
        assert 3 <= len(ticks) <= 6 and all(0 <= tick.at <= 1 for tick in ticks)


def test_text_plot_has_its_size_and_every_sign_in_its_key() -> None:
    plot, _ = _plot(quickstart_report())
    lines = scatter_lines(plot)
    assert len(lines) == SCATTER_ROWS + 5
    assert all(len(line) <= SCATTER_COLUMNS + 20 for line in lines[1 : SCATTER_ROWS + 1])
    assert lines[-1] == "@ the choice, m measured, ! tried, did not run, · fits by the model, x not sure to fit"


def test_page_carries_the_points_as_data_that_reads_back() -> None:
    html = render_report_html(quickstart_report())
    data = json.loads(re.findall(r'<script type="application/json" id="plot-[\d-]+">(.*?)</script>', html)[0])
    plot, _ = _plot(quickstart_report())
    assert len(data["points"]) == len(plot.points)
    assert [name for name, _ in data["filters"]] == ["ZeRO stage", "tensor", "pipeline"]
