"""Why this plan, in sentences."""

from __future__ import annotations

import dataclasses

from planner.report import explain_cautions, explain_choice
from planner.spec import Objective, Provenance, RunnerUp
from tests.unit.report.samples import GIB, MIB, cluster_report, make_measured, quickstart_report


def test_choice_after_trials_says_speed_lead_and_distance_to_the_limit() -> None:
    chosen, lead, memory = explain_choice(quickstart_report())
    assert chosen.endswith("a step of 400 ms (measured), the fastest of 5 tried out of 96 legal candidates.")
    assert lead.startswith("It is 7.5% faster than the next best (ZeRO-2 dp2 ")
    assert "ZeRO-1 instead of 2, micro-batch 8 instead of 4" in lead
    assert "saves most on compute (25.0 ms a step)" in lead
    assert "412 MiB of 1.00 GiB usable (measured), 612 MiB (60%) from the limit" in memory
    assert memory.endswith("1 of 5 trials ran out of memory.")


def test_choice_without_a_trial_says_that_none_was_tried() -> None:
    chosen, lead, _ = explain_choice(cluster_report())
    assert chosen.endswith(
        "(computed), the fastest by the model of 1,480 legal candidates, 300 of which cannot fit; none was tried."
    )
    assert "tensor 4 instead of 8" in lead


def test_lead_within_the_spread_of_both_measurements_is_called_a_tie() -> None:
    report = quickstart_report()
    noisy = make_measured(step_time_s=0.43, device_used_bytes=GIB // 3, spread_s=0.05)
    trials = (dataclasses.replace(report.trials[0], outcome=noisy), *report.trials[1:])
    _, lead, _ = explain_choice(dataclasses.replace(report, trials=trials))
    assert lead.endswith("closer than their measurements' spread (51.0 ms), so either would do.")
    assert "saves" not in lead  # nothing to explain
    _, clear_lead, _ = explain_choice(report)
    assert "either would do" not in clear_lead


def test_lead_without_a_runner_up_says_that_nothing_else_fits() -> None:
    report = quickstart_report()
    alone = dataclasses.replace(report, plan=dataclasses.replace(report.plan, runner_up=None))
    assert explain_choice(alone)[1] == "There is no runner-up: nothing else was found to fit."


def test_lead_over_a_candidate_the_report_does_not_hold_names_its_key() -> None:
    report = quickstart_report()
    runner_up = RunnerUp(key="tp8-unknown", tokens_per_s=2000.0, kind=Provenance.FITTED)
    unknown = dataclasses.replace(report, plan=dataclasses.replace(report.plan, runner_up=runner_up))
    assert explain_choice(unknown)[1] == (
        "It is 28% faster than the next best (tp8-unknown; 2.00 thousand tokens/s, fitted)."
    )


def test_lead_under_another_objective_admits_that_the_next_is_faster() -> None:
    report = quickstart_report()
    faster = RunnerUp(key=report.trials[0].key, tokens_per_s=5120.0, kind=Provenance.MEASURED)
    cheap = dataclasses.replace(
        report,
        plan=dataclasses.replace(report.plan, runner_up=faster),
        job=dataclasses.replace(report.job, objective=Objective.COST),
    )
    chosen, lead, _ = explain_choice(cheap)
    assert "the cheapest per token of 5 tried" in chosen
    assert lead.startswith("A token costs 100% more than with the next best")
    assert "at a speed 50% slower" in lead
    assert "saves" not in lead


def test_memory_above_the_usable_says_by_how_much() -> None:
    report = quickstart_report()
    promise = dataclasses.replace(report.plan.promise, device_used_bytes=GIB + 100 * MIB)
    over = dataclasses.replace(report, plan=dataclasses.replace(report.plan, promise=promise))
    assert "100 MiB over the limit" in explain_choice(over)[2]


def test_cause_that_the_model_does_not_see_is_not_named() -> None:
    report = quickstart_report()
    slower = RunnerUp(key=report.plan.runner_up.key, tokens_per_s=400.0, kind=Provenance.MEASURED)  # type: ignore[union-attr]
    far_ahead = dataclasses.replace(report, plan=dataclasses.replace(report.plan, runner_up=slower))
    assert "saves most" not in explain_choice(far_ahead)[1]  # the model sees 25 ms of a lead of seconds


def test_cautions_say_how_long_all_takes_and_what_the_run_will_not_do() -> None:
    report = quickstart_report()
    training = dataclasses.replace(report.job.training, steps=9000, checkpoint_dir="")
    length, data, checkpoints = explain_cautions(
        dataclasses.replace(report, job=dataclasses.replace(report.job, training=training))
    )
    assert length == "All 9,000 steps of the job take about 60 min 00 s (2 device hours)."
    assert "synthetic tokens" in data
    assert "nothing of the run is saved" in checkpoints


def test_cautions_of_a_plan_for_other_machines_name_what_must_be_there() -> None:
    report = cluster_report()
    training = dataclasses.replace(report.job.training, checkpoint_dir="/here/checkpoints")
    report = dataclasses.replace(report, job=dataclasses.replace(report.job, training=training))
    needed = explain_cautions(report)[-1]
    assert "meshplan and deepspeed installed" in needed and "PYTHON=" in needed
    assert "/here/checkpoints (checkpoints, seen by all nodes)" in needed
    assert not any("installed" in sentence for sentence in explain_cautions(quickstart_report()))
