"""The cheapest plan in time: monotone in the deadline and in the price, and what is said when nothing is in time."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.app.deadline import refuse_hopeless, refuse_missed
from planner.app.draft import draft_plan
from planner.app.forecast import forecast_of
from planner.app.selection import choices_by_model
from planner.errors import NoFeasiblePlan
from planner.report import explain_forecast
from planner.spec import JobSpec
from planner.spec.forecast import Forecast
from tests.unit.jobfile.jobs import job_of

JOB = """\
model: {{name: llama-3.2-1b}}
training: {{seq_len: 2048, global_batch_size: 256, total_tokens: 20B}}
cluster: {{gpu: h100, nodes: 8{cluster}}}
search: {{activation_checkpointing: none, micro_batch_size: [1, 2, 4], zero_stage: [0, 1], tensor_parallel_size: 1,
  pipeline_parallel_size: 1}}
objective: {objective}
"""


def _job(folder: Path, objective: str, *, cluster: str = "") -> JobSpec:
    return job_of(folder, JOB.format(objective=objective, cluster=cluster))


def _planned(job: JobSpec) -> Forecast:
    selection = next(choices_by_model(draft_plan(job)))
    refuse_missed(job, selection)
    promise = selection.promise
    return forecast_of(job, selection.candidate, step_time_s=promise.step_time_s, kind=promise.step_time_kind)


def test_later_deadline_never_costs_more_nor_needs_more_gpus(tmp_path: Path) -> None:
    forecasts = [_planned(_job(tmp_path, f"{{deadline: {hours}h}}")) for hours in (6, 12, 24, 48, 96, 1000)]
    assert all(one.is_in_time for one in forecasts)
    costs = [one.cost for one in forecasts]
    assert costs == sorted(costs, reverse=True)
    worlds = [one.world_size for one in forecasts]
    assert worlds == sorted(worlds, reverse=True) and worlds[0] > worlds[-1]


def test_each_objective_changes_the_choice(tmp_path: Path) -> None:
    by_word = {word: _planned(_job(tmp_path, word)) for word in ("throughput", "cost", "fewest_gpus")}
    due = _planned(_job(tmp_path, "{deadline: 12h}"))
    assert by_word["throughput"].world_size == 64
    assert by_word["fewest_gpus"].world_size == 1
    assert by_word["cost"].cost <= min(one.cost for one in (*by_word.values(), due))
    assert by_word["throughput"].work_s <= min(one.work_s for one in by_word.values())
    assert by_word["fewest_gpus"].world_size < due.world_size < by_word["throughput"].world_size


def test_price_does_not_change_which_plan_is_cheapest_on_one_kind_of_gpu(tmp_path: Path) -> None:
    cheap = _planned(_job(tmp_path, "cost", cluster=", price_per_gpu_hour: 1"))
    dear = _planned(_job(tmp_path, "cost", cluster=", price_per_gpu_hour: 10"))
    assert cheap.world_size == dear.world_size
    assert dear.cost == pytest.approx(10 * cheap.cost)


def test_missed_deadline_says_what_would_be_in_time(tmp_path: Path) -> None:
    job = _job(tmp_path, "{deadline: 80m}")
    with pytest.raises(NoFeasiblePlan, match=r"no plan trains 20\.\d billion tokens within") as missed:
        refuse_missed(job, next(choices_by_model(draft_plan(job))))
    assert missed.value.exit_code == 3
    nodes = int(missed.value.fix.split(" such nodes")[0].split("use ")[1])
    larger = job_of(
        tmp_path, JOB.format(objective="{deadline: 80m}", cluster="").replace("nodes: 8", f"nodes: {nodes}")
    )
    assert _planned(larger).is_in_time
    assert "train at most" in missed.value.fix


def test_hopeless_deadline_is_refused_before_trials_and_a_near_one_only_by_the_models_word(tmp_path: Path) -> None:
    near = draft_plan(_job(tmp_path, "{deadline: 80m}"))
    refuse_hopeless(near, by_model=False)
    with pytest.raises(NoFeasiblePlan):
        refuse_hopeless(near, by_model=True)
    with pytest.raises(NoFeasiblePlan):
        refuse_hopeless(draft_plan(_job(tmp_path, "{deadline: 10m}")), by_model=False)


def test_failures_make_a_run_longer_and_dearer(tmp_path: Path) -> None:
    steady = _planned(_job(tmp_path, "throughput", cluster=", mtbf_hours: 100000"))
    frail = _planned(_job(tmp_path, "throughput", cluster=", mtbf_hours: 20"))
    assert frail.work_s == steady.work_s
    assert frail.expected_s > steady.expected_s and frail.cost > steady.cost
    assert frail.checkpoint_interval_steps < steady.checkpoint_interval_steps


def test_own_interval_that_loses_more_is_told(tmp_path: Path) -> None:
    text = JOB.replace("total_tokens: 20B", "total_tokens: 20B, checkpoint: {{folder: kept, interval: 100000}}")
    job = job_of(tmp_path, text.format(objective="throughput", cluster=", mtbf_hours: 20"))
    forecast = _planned(job)
    assert forecast.own_lost_fraction > forecast.lost_fraction
    assert "with the job's own interval of 100,000 steps" in " ".join(explain_forecast(forecast))


def test_words_have_days_money_checkpoints_and_the_day(tmp_path: Path) -> None:
    job = _job(tmp_path, "{deadline: 2027-03-01, start: 2027-02-20}", cluster=", price_per_gpu_hour: 2")
    text = " ".join(explain_forecast(_planned(job)))
    for words in ("whole training", "USD", "by 2027-03-01", "to spare", "A checkpoint every"):
        assert words in text


def test_cost_of_gpus_without_a_price_is_not_guessed(tmp_path: Path) -> None:
    job = job_of(tmp_path, JOB.format(objective="throughput", cluster="").replace("h100", "h200"))
    forecast = _planned(job)
    assert forecast.cost == 0.0
    assert "not known" in " ".join(explain_forecast(forecast))
