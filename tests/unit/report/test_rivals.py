"""What limits the choice, who came close, and how it stands when the model errs."""

from __future__ import annotations

import dataclasses

from planner.report import build_document
from planner.report.document import Paragraph, Table
from planner.report.input import ReportInput
from planner.report.limits import explain_limits
from planner.spec import OutOfMemory, Phase
from planner.spec.outlook import Outlook, WhatIf
from tests.unit.report.samples import GIB, cluster_report, make_candidate, make_trial, quickstart_report


def _texts(report: ReportInput, title: str) -> list[str]:
    (section,) = [one for one in build_document(report).sections if one.title == title]
    return [block.text for block in section.blocks if isinstance(block, Paragraph)]


def _tables(report: ReportInput, title: str) -> list[Table]:
    (section,) = [one for one in build_document(report).sections if one.title == title]
    return [block for block in section.blocks if isinstance(block, Table)]


def test_limits_name_the_largest_part_of_the_step_and_the_memory_that_keeps_something_faster_out() -> None:
    time, memory, *_ = explain_limits(quickstart_report())
    assert time.startswith("The step is bound by compute: 50% of it by the model")
    assert time.endswith(", then recomputation 20% and communication 20% (computed).")
    assert memory.startswith("Memory binds too: ZeRO-0 dp2 mb16x1 bf16 full would be faster")
    without = dataclasses.replace(quickstart_report(), near_miss=None)
    assert explain_limits(without)[1].startswith("Memory does not bind: 561 MiB are left")


def test_limits_say_which_change_of_the_hardware_brings_most() -> None:
    changes = tuple(
        WhatIf(change=change, gain_fraction=gain, tokens_per_s=1.0, candidate=make_candidate(), detail="")
        for change, gain in (("one more node", 0.1), ("a faster link", 0.3), ("more memory", 0.01))
    )
    report = dataclasses.replace(quickstart_report(), outlook=Outlook(what_if=changes))
    assert (
        explain_limits(report)[-1] == "What would help, most first: a faster link +30%, one more node +10% (computed)."
    )
    nothing = dataclasses.replace(report, outlook=Outlook(what_if=changes[-1:]))
    assert "None of the changes" in explain_limits(nothing)[-1]


def test_rivals_stand_beside_the_choice_part_by_part() -> None:
    report = quickstart_report()
    (table,) = _tables(report, "Runner-up and nearest miss")
    assert [column.heading for column in table.columns] == ["", "the choice", "the runner-up", "the nearest miss"]
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["one step, in its trial"] == ("400 ms (measured)", "430 ms (measured)", "not tried")
    assert rows["one step, by the model"] == ("400 ms (computed)", "450 ms (computed)", "300 ms (computed)")
    assert "–\N{NO-BREAK SPACE}compute" in rows and "–\N{NO-BREAK SPACE}activations" in rows
    assert "may need 64.0 MiB more device memory than may be used" in _texts(report, "Runner-up and nearest miss")[1]


def test_no_near_miss_is_said() -> None:
    report = dataclasses.replace(quickstart_report(), near_miss=None)
    assert "There is no near miss: every legal candidate fits." in _texts(report, "Runner-up and nearest miss")


def test_doubt_after_trials_names_the_rival_and_the_residual() -> None:
    said = _texts(quickstart_report(), "If the model is wrong")
    assert said[0] == (
        "The best of those not tried, ZeRO-3 dp2 mb2x8 bf16 full, would have to be 12% better than the model says to "
        "win (computed)."
    )
    assert "3 within 20%" in said[1] and "misses their step times by 4%" in said[2]


def test_doubt_without_trials_shows_what_each_error_would_choose() -> None:
    (table,) = _tables(cluster_report(), "If the model is wrong")
    assert [row[1] for row in table.rows] == ["the same", "ZeRO-1 tp8 pp2 dp4 mb4x4 bf16 full"]
    assert [row[3] for row in table.rows] == ["nothing", "8%"]


def test_out_of_memory_trial_is_no_best_so_far() -> None:
    report = quickstart_report()
    end = OutOfMemory(
        rank=0, phase=Phase.FORWARD, requested_bytes=1, allocated_bytes=GIB, capacity_bytes=GIB, log_tail=""
    )
    trials = (make_trial(0, make_candidate(), end), *report.trials[1:])
    text = _tables(dataclasses.replace(report, trials=trials), "The search")[0].rows[0]
    assert text[2] == "out of memory" and text[3:5] == ("", "")
