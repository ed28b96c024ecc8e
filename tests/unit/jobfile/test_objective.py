"""Deadlines, lengths of a training in tokens, prices and failure rates in a job file."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from planner.errors import InputError
from planner.jobfile import dump_job, job_hash, load_job, resolve_job
from planner.spec import Deadline, JobSpec, Objective

JOB = """\
model: {{name: llama-3.2-1b}}
training: {{seq_len: 1024, global_batch_size: 64, {training}}}
cluster: {{gpu: h100, nodes: 2, {cluster}}}
objective: {objective}
"""
DAY_S = 86_400.0


def _resolved(
    tmp_path: Path,
    *,
    training: str = "total_tokens: 1B",
    cluster: str = "gpus_per_node: 8",
    objective: str = "throughput",
    today: date | None = None,
) -> JobSpec:
    path = tmp_path / "job.yaml"
    path.write_text(JOB.format(training=training, cluster=cluster, objective=objective))
    return resolve_job(load_job(path), today=today)


@pytest.mark.parametrize(
    ("written", "steps"), [("1B", 15259), ("65.536M", 1000), ("65536000", 1000), ("65536001", 1001), ("1", 1)]
)
def test_tokens_come_to_steps_that_see_at_least_as_many(tmp_path: Path, written: str, steps: int) -> None:
    assert _resolved(tmp_path, training=f"total_tokens: {written}").training.steps == steps


def test_tokens_beside_other_steps_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has steps: 7, but total_tokens"):
        _resolved(tmp_path, training="total_tokens: 1B, steps: 7")


def test_deadline_is_the_time_between_start_and_day(tmp_path: Path) -> None:
    job = _resolved(tmp_path, objective="{deadline: 2027-03-01, start: 2027-02-01}")
    assert job.objective is Objective.DEADLINE
    assert job.deadline == Deadline(within_s=28 * DAY_S, date="2027-03-01", start="2027-02-01")


def test_start_left_out_is_the_day_it_is_planned_and_resuming_later_is_the_same_job(tmp_path: Path) -> None:
    monday = _resolved(tmp_path, objective="{deadline: 2027-03-01}", today=date(2027, 1, 4))
    tuesday = _resolved(tmp_path, objective="{deadline: 2027-03-01}", today=date(2027, 1, 5))
    assert monday.deadline is not None and tuesday.deadline is not None
    assert monday.deadline.within_s - tuesday.deadline.within_s == DAY_S
    assert job_hash(monday) == job_hash(tuesday)
    assert job_hash(monday) != job_hash(_resolved(tmp_path, objective="{deadline: 30d}"))


def test_deadline_as_a_duration(tmp_path: Path) -> None:
    job = _resolved(tmp_path, objective="{deadline: 1d12h}")
    assert job.deadline == Deadline(within_s=1.5 * DAY_S)


@pytest.mark.parametrize(
    "objective",
    ["{deadline: 1.1h}", "{deadline: 36500d}", "{deadline: 30d}", "{deadline: 2027-03-01, start: 2027-02-01}", "cost"],
    ids=["fraction", "century", "time", "day", "word"],
)
def test_job_of_the_plan_folder_is_the_same_job(tmp_path: Path, objective: str) -> None:
    cluster = "mtbf_hours: 900, checkpoint_write_gb_per_s: 5, price_per_gpu_hour: {per_hour: 2, currency: EUR}"
    job = _resolved(tmp_path, objective=objective, cluster=cluster)
    path = tmp_path / "again.yaml"
    path.write_text(dump_job(job))
    assert resolve_job(load_job(path)) == job


@pytest.mark.parametrize(
    ("objective", "training", "error"),
    [
        ("{deadline: soon}", "steps: 5", "must be a date or a duration"),
        ("{deadline: 20270301}", "steps: 5", "must be a date or a duration with its unit"),
        ("{deadline: 30}", "steps: 5", "must be a date or a duration with its unit"),
        ("{deadline: 1.5}", "steps: 5", "must be a date or a duration with its unit"),
        ("{deadline: true}", "steps: 5", "must be a date or a duration with its unit"),
        ("{deadline: 101000d}", "steps: 5", "to 100 years"),
        ("{deadline: 2027-02-30}", "steps: 5", "must be a date"),
        ("{deadline: 30d, start: 2027-01-01}", "steps: 5", "a start that changes nothing"),
        ("{deadline: 2027-01-01, start: 2027-01-01}", "steps: 5", "before it starts"),
        ("{start: 2027-01-01}", "steps: 5", "names no deadline"),
        ("deadline", "steps: 5", "names no day"),
        ("{deadline: 30d}", "seed: 1", "no training to hold it against"),
        ("{deadline: 2027-03-01}", "steps: 5", "no day of the start is known"),
    ],
)
def test_deadline_that_cannot_be_held_is_refused(tmp_path: Path, objective: str, training: str, error: str) -> None:
    with pytest.raises(InputError, match=error):
        _resolved(tmp_path, objective=objective, training=training)


def test_prices_and_failures_of_the_job_reach_the_cluster(tmp_path: Path) -> None:
    cluster = "price_per_gpu_hour: 2.5, mtbf_hours: 100, checkpoint_write_gb_per_s: 4"
    job = _resolved(tmp_path, cluster=cluster)
    assert (job.cluster.gpu.price_per_hour, job.cluster.gpu.price_currency) == (2.5, "USD")
    assert (job.cluster.mtbf_s, job.cluster.checkpoint_write_bytes_per_s) == (360_000.0, 4e9)


def test_what_a_deadline_alone_asks_does_not_change_what_was_measured(tmp_path: Path) -> None:
    assert job_hash(_resolved(tmp_path)) == job_hash(_resolved(tmp_path, cluster="gpus_per_node: 8"))
