"""Which sections a report has and what stands in them."""

from __future__ import annotations

import dataclasses

import pytest

from planner.report import ReportInput, build_document
from planner.report.document import Bar, Bars, Command, Document, Paragraph, Segment, Table
from planner.report.next_steps import next_commands
from planner.spec import Launcher, Measured
from tests.unit.report.samples import cluster_report, make_measured, make_trial, quickstart_report


def _blocks(document: Document, title: str) -> tuple[object, ...]:
    return next(section.blocks for section in document.sections if section.title == title)


def _only(document: Document, title: str, kind: type) -> object:
    (block,) = [block for block in _blocks(document, title) if isinstance(block, kind)]
    return block


def _bars(report: ReportInput, title: str) -> Bars:
    """The first bars of the section."""
    return next(block for block in _blocks(build_document(report), title) if isinstance(block, Bars))


def test_report_of_a_tried_plan_has_every_section() -> None:
    assert [section.title for section in build_document(quickstart_report()).sections] == [
        "The choice",
        "What to run next",
        "What the plan promises",
        "All candidates",
        "Device memory",
        "Time of one step",
        "Pipeline schedule",
        "What limits it",
        "Runner-up and nearest miss",
        "If the model is wrong",
        "The search",
        "Logs of the trials",
        "Best candidates not tried",
        "Refused by a rule",
        "Axes left out",
        "Validation",
        "The emitted files, line by line",
        "Versions and hardware",
    ]


def test_report_of_an_untried_plan_leaves_out_what_it_has_no_word_on() -> None:
    titles = [section.title for section in build_document(cluster_report()).sections]
    assert "Refused by a rule" not in titles and "Axes left out" not in titles
    assert "The search" in titles  # why there are none


def test_memory_bars_sum_to_what_is_used_and_show_both_limits() -> None:
    report = quickstart_report()
    bars = _bars(report, "Device memory")
    model, rank0, rank1 = bars.bars
    assert model.total == report.plan.estimate.memory.device_used_bytes
    winner = report.trials[3].outcome
    assert isinstance(winner, Measured)
    assert [rank0.total, rank1.total] == [rank.device_used_bytes for rank in winner.ranks]
    usable = report.plan.promise.usable_bytes
    assert [marker.amount for marker in bars.markers] == [pytest.approx(0.95 * usable), usable]
    assert bars.scale > usable


def test_memory_bars_that_fill_little_are_shown_again_enlarged() -> None:
    report = quickstart_report()
    promise = dataclasses.replace(report.plan.promise, usable_bytes=16 * 2**30)
    roomy = dataclasses.replace(report, plan=dataclasses.replace(report.plan, promise=promise))
    blocks = _blocks(build_document(roomy), "Device memory")
    against_limit, enlarged, _phases = [block for block in blocks if isinstance(block, Bars)]
    assert (against_limit.legends, against_limit.scale > 16 * 2**30) == ((), True)
    assert enlarged.markers == () and enlarged.legends
    assert enlarged.scale == pytest.approx(1.02 * max(bar.total for bar in enlarged.bars))


def test_memory_bars_of_many_ranks_show_the_fullest_eight() -> None:
    report = quickstart_report()
    many = make_measured(step_time_s=0.4, device_used_bytes=2**29, num_ranks=64)  # rank 0 uses most
    trials = (*report.trials[:3], make_trial(3, report.plan.candidate, many))
    bars = _bars(dataclasses.replace(report, trials=trials), "Device memory")
    assert [bar.label for bar in bars.bars] == ["by the model", *(f"rank {rank}" for rank in range(8))]


def test_time_bars_set_the_model_beside_the_measurement() -> None:
    model, measured = _bars(quickstart_report(), "Time of one step").bars
    assert model.total == pytest.approx(0.4)
    assert measured.total == pytest.approx(0.4)
    assert [segment.label for segment in measured.segments][-1] == "the rest of the step"
    assert model.text.endswith("(computed)") and measured.text.endswith("(measured)")


def test_same_part_has_the_same_tone_in_every_bar_and_no_tone_two_parts() -> None:
    for title in ("Device memory", "Time of one step"):
        tones = {(part.tone, part.label) for bar in _bars(quickstart_report(), title).bars for part in bar.segments}
        assert len({tone for tone, _ in tones}) == len({label for _, label in tones}) == len(tones)


def test_trials_table_lists_all_in_order_and_marks_the_winner() -> None:
    report = quickstart_report()
    tables = [block for block in _blocks(build_document(report), "The search") if isinstance(block, Table)]
    everything, failures = tables
    assert [row[0] for row in everything.rows] == ["0", "1", "2", "3", "4"]
    assert everything.highlighted == 3
    assert everything.rows[0][3:] == ("430 ms", "± 10.0 ms", "450 ms (computed)", "2.38 k", "310 MiB", "3.20 s")
    assert everything.rows[1][5] == ""  # the model's word on it was not given
    assert [(row[0], row[2]) for row in failures.rows] == [("2", "logs/trial-0002.log"), ("4", "logs/trial-0004.log")]


def test_every_figure_of_the_promise_says_where_it_comes_from() -> None:
    for report in (quickstart_report(), cluster_report()):
        table = next(
            block for block in _blocks(build_document(report), "What the plan promises") if isinstance(block, Table)
        )
        kinds = {"measured", "emulated", "fitted", "computed", "as the job says"}
        assert all(origin in kinds for _, _, origin in table.rows)


def test_rejections_fall_back_to_the_plans_own_tally() -> None:
    report = dataclasses.replace(quickstart_report(), rejections=())
    table = _only(build_document(report), "Refused by a rule", Table)
    assert isinstance(table, Table)
    assert table.rows == (("batch-identity", "60", ""), ("pipeline-needs-zero-0-or-1", "24", ""))


def test_next_commands_quote_the_folder() -> None:
    commands = [
        block.command
        for block in _blocks(build_document(quickstart_report()), "What to run next")
        if isinstance(block, Command)
    ]
    assert commands == ["bash 'plans/quick start/launch.sh'", "planner verify 'plans/quick start'"]


@pytest.mark.parametrize(
    ("launcher", "command", "does"),
    [
        (Launcher.TORCHRUN, 'NODE_RANK=0 MASTER_ADDR="$(hostname)" bash plans/llama70b/launch.sh', "first of the 8"),
        (Launcher.DEEPSPEED, "bash plans/llama70b/launch.sh", "plans/llama70b/hostfile"),
        (Launcher.SLURM, "bash plans/llama70b/launch.sh", "submits"),
        (Launcher.KUBERNETES, "bash plans/llama70b/launch.sh", "Kubernetes"),
    ],
)
def test_next_commands_on_many_nodes_start_as_the_launcher_does_and_promise_no_verify(
    launcher: Launcher, command: str, does: str
) -> None:
    report = cluster_report()
    report = dataclasses.replace(report, plan=dataclasses.replace(report.plan, launcher=launcher))
    (start,) = next_commands(report)
    assert start.command == command
    assert does in start.does


def test_legends_name_each_set_of_parts_once_by_its_longest_bar() -> None:
    def bar(label: str, amount: float) -> Bar:
        return Bar(label=label, text="", segments=(Segment(label="part", amount=amount, text="", tone=0),))

    assert [one.label for one in Bars(bars=(bar("a", 1), bar("b", 2)), scale=2).legends] == ["b"]


def test_measured_bar_adds_up_to_its_title_where_the_promised_step_is_not_the_mean_one() -> None:
    report = quickstart_report()
    winner = next(trial for trial in report.trials if trial.number == report.plan.trial_number)
    slower = make_measured(step_time_s=0.7, device_used_bytes=400 << 20)
    uneven = dataclasses.replace(slower.ranks[0], step_times_s=(0.4, 0.4, 1.3), forward_s=0.2, backward_s=0.45)
    for measured in (slower, dataclasses.replace(slower, step_time_s=0.4, ranks=(uneven,))):
        trials = (*report.trials, make_trial(9, winner.candidate, measured))
        bar = _bars(dataclasses.replace(report, trials=trials), "Time of one step").bars[-1]
        title_ms = float(bar.text.split(" ms")[0])
        assert bar.label.startswith("rank") and 1000 * bar.total == pytest.approx(title_ms, abs=1)


def test_two_runs_of_the_choice_are_one_point_and_the_table_says_so() -> None:
    report = quickstart_report()
    winner = next(trial for trial in report.trials if trial.number == report.plan.trial_number)
    again = make_trial(9, winner.candidate, make_measured(step_time_s=0.5, device_used_bytes=500 << 20))
    document = build_document(dataclasses.replace(report, trials=(*report.trials, again)))
    said = "\n".join(block.text for block in _blocks(document, "The search") if isinstance(block, Paragraph))
    assert "Trials 3 and 9 are runs of one candidate" in said and "450 ms ± 74.1 ms" in said and "500 MiB" in said
