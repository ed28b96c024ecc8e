"""A plan's step time as days and money, and whether a deadline is met. Pure.

Owns the arithmetic over a job. Leaves failures and checkpoints to `cost.failures`, words to `report.forecast`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.cost import Target, failures_of
from planner.cost.failures import DEFAULT_MTBF_SOURCE, DEFAULT_WRITE_SOURCE
from planner.spec import Candidate, JobSpec, Provenance
from planner.spec.forecast import Forecast

_OF_THE_CLUSTER = "as the job or its cluster file says"


def tokens_of_step(job: JobSpec) -> float:
    """Tokens of one optimizer step."""
    traced = job.model.traced
    per_sequence = traced.tokens_per_sample if traced is not None else job.training.seq_len
    return float(job.training.global_batch_size * per_sequence)


def target_of(job: JobSpec) -> Target | None:
    """What a deadline asks of every candidate; None for other objectives."""
    if job.deadline is None:
        return None
    return Target(
        tokens=tokens_of_step(job) * job.training.steps,
        within_s=job.deadline.within_s,
        failures=failures_of(job.model, training=job.training, cluster=job.cluster, precision=job.ranges.precision[0]),
        gpus_per_node=job.cluster.gpus_per_node,
    )


def with_interval(job: JobSpec, candidate: Candidate, *, step_time_s: float) -> JobSpec:
    """The job with the checkpoint interval that loses the least, where it leaves that to the plan."""
    training = job.training
    if not training.checkpoint_dir or training.checkpoint_interval_steps:
        return job
    best = forecast_of(job, candidate, step_time_s=step_time_s, kind=Provenance.COMPUTED).checkpoint_interval_steps
    return replace(job, training=replace(training, checkpoint_interval_steps=min(best, training.steps)))


def forecast_of(job: JobSpec, candidate: Candidate, *, step_time_s: float, kind: Provenance) -> Forecast:
    """All steps of the job at this step time: days, money, checkpoints, failures."""
    cluster, gpu = job.cluster, job.cluster.gpu
    world = candidate.layout.world_size
    nodes = -(-world // cluster.gpus_per_node)
    failures = failures_of(job.model, training=job.training, cluster=cluster, precision=candidate.precision)
    asked = np.array([float(nodes)])
    work_s = job.training.steps * step_time_s
    expected_s = work_s * float(failures.slowdown(asked)[0])
    interval_s = float(failures.interval_s(asked)[0])
    between_s = float(failures.between_s(asked)[0])
    own_steps = job.training.checkpoint_interval_steps if job.training.checkpoint_dir else 0
    own_slowdown = float(failures.slowdown(asked, interval_s=own_steps * step_time_s)[0])
    return Forecast(
        steps=job.training.steps,
        tokens=tokens_of_step(job) * job.training.steps,
        kind=kind,
        work_s=work_s,
        expected_s=expected_s,
        nodes=nodes,
        world_size=world,
        price_per_gpu_hour=gpu.price_per_hour,
        currency=gpu.price_currency,
        price_source=gpu.price_source,
        cost=world * gpu.price_per_hour * expected_s / 3600.0,
        checkpoint_bytes=failures.checkpoint_bytes,
        checkpoint_write_s=float(failures.write_s(asked)[0]),
        checkpoint_interval_s=interval_s,
        checkpoint_interval_steps=max(round(interval_s / step_time_s), 1) if step_time_s > 0 else 1,
        between_failures_s=between_s,
        expected_failures=expected_s / between_s,
        mtbf_s=failures.mtbf_s,
        mtbf_source=_OF_THE_CLUSTER if cluster.mtbf_s else DEFAULT_MTBF_SOURCE,
        write_source=_OF_THE_CLUSTER if cluster.checkpoint_write_bytes_per_s else DEFAULT_WRITE_SOURCE,
        own_interval_steps=own_steps,
        own_lost_fraction=1.0 - 1.0 / own_slowdown if own_steps else 0.0,
        within_s=job.deadline.within_s if job.deadline is not None else 0.0,
        due=job.deadline.date if job.deadline is not None else "",
    )
