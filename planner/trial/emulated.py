"""A trial whose ranks are stood in for one at a time: which ranks, with how many micro-batches, what they add up to.

Owns the roles of a candidate and putting their reports together. Pure: running a role is `pool`'s, the price of what it
sent `planner.cost`'s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from planner.cost.recorded import Role, breakdown_total_s, recorded_step
from planner.emit import render_ds_config_text
from planner.spec import (
    Candidate,
    Crashed,
    Diverged,
    HostOutOfMemory,
    JobSpec,
    Measured,
    Outcome,
    OutOfMemory,
    Phase,
    Provenance,
)
from planner.spec._record import record
from planner.spec.runs import median_and_spread
from planner.spec.trial import RankReport, TrialTask

# A rank alone is disturbed by no network: its steps agree within half a percent or so, and a step that takes long need
# not be taken again. More are taken while they are quick.
MIN_STEPS = 1
STEPS_BUDGET_S = 12.0


@record
class EmulatedRole:
    """One rank to stand in for, and how many pipeline stages are like it."""

    rank: int
    num_stages: int
    task: TrialTask


@record
class Basis:
    """What the device at hand says about the target's.

    `compute_scale`, `step_end_scale`: seconds there per second here, of micro-batches and of the step's end.
    `communication_bytes`: what NCCL holds on the target beside what was seen, computed. `holds_target`: a rank may use
    as much memory here as there; otherwise running out of memory here says nothing. `time_kind`: of the step time.
    """

    compute_scale: float = 1.0
    step_end_scale: float = 1.0
    communication_bytes: int = 0
    holds_target: bool = True
    time_kind: Provenance = Provenance.EMULATED


def emulated_roles(
    candidate: Candidate, *, job: JobSpec, deepspeed_version: str, memory_limit_bytes: int, steps: int
) -> tuple[EmulatedRole, ...]:
    """The ranks that differ: of each of the first, second and last pipeline stage the first one.

    Ranks of one stage hold and do the same (shares of a tensor split are equal, ZeRO pads its shards). The second stage
    has the most layers of the middle ones and the most micro-batches in flight (`partition_layers`), so it stands for
    them. The config is the one that would ship but for the batch: fewer micro-batches a step, see `micro_batches_run`.
    """
    layout = candidate.layout
    stages = layout.pipeline_parallel_size
    counts = {0: 1, 1: stages - 2, stages - 1: 1} if stages > 2 else dict.fromkeys(range(stages), 1)
    return tuple(
        EmulatedRole(
            rank=stage * layout.data_parallel_size * layout.tensor_parallel_size,
            num_stages=count,
            task=_task(
                candidate,
                job=job,
                stage=stage,
                deepspeed_version=deepspeed_version,
                memory_limit_bytes=memory_limit_bytes,
                steps=steps,
            ),
        )
        for stage, count in counts.items()
    )


def micro_batches_run(candidate: Candidate, stage: int) -> int:
    """How many micro-batches of a step are run. Memory is that of all, time is extrapolated (`recorded_step`).

    Gradients accumulate from the second micro-batch on, and 1F1B never has more than (stages - stage) in flight. ZeRO-3
    reduces after every micro-batch into a buffer that it made beforehand (DeepSpeed 0.19.8, stage3.py,
    `grad_partitions_flat_buffer`), so that the first is like all others.
    """
    in_flight = candidate.layout.pipeline_parallel_size - stage
    enough = 1 if candidate.zero_stage == 3 else max(2, in_flight)
    return min(candidate.batch.gradient_accumulation_steps, enough)


def _task(
    candidate: Candidate, *, job: JobSpec, stage: int, deepspeed_version: str, memory_limit_bytes: int, steps: int
) -> TrialTask:
    batch = replace(candidate.batch, gradient_accumulation_steps=micro_batches_run(candidate, stage))
    shorter = replace(candidate, batch=batch)
    training = replace(job.training, global_batch_size=batch.global_batch_size)
    config = render_ds_config_text(shorter, job=replace(job, training=training), deepspeed_version=deepspeed_version)
    layout = candidate.layout
    return TrialTask(
        model=job.model,
        training=training,
        candidate=shorter,
        device=job.cluster.gpu.device,
        ds_config_json=config,
        steps=steps,
        memory_limit_bytes=memory_limit_bytes,
        emulated_rank=stage * layout.data_parallel_size * layout.tensor_parallel_size,
    )


def timed_steps(*, wanted: int, micro_batch_s: float) -> int:
    """How many steps to time: as many as wanted while they are quick, `MIN_STEPS` when they take long.

    `micro_batch_s`: computed beforehand, of one micro-batch on the device at hand; most steps run two.
    """
    affordable = int(STEPS_BUDGET_S / max(2.0 * micro_batch_s, 1e-9))
    return min(wanted, max(MIN_STEPS, affordable))


def role_outcome(outcome: Outcome, role: EmulatedRole, *, basis: Basis) -> Outcome:
    """How the trial of one role ended, said of the rank it stands for.

    Never `Measured` when an optimizer step was skipped after the warm-up (its memory and time are then not those of a
    step), and never `OutOfMemory` when the device at hand is smaller than the target's: that is no evidence.
    """
    if isinstance(outcome, OutOfMemory) and not basis.holds_target:
        return Crashed(
            rank=role.rank,
            phase=outcome.phase,
            exit_code=0,
            message="the device at hand ran out of memory, but is smaller than the target's: this says nothing of the "
            "target",
            log_tail=outcome.log_tail,
        )
    if isinstance(outcome, Measured):
        (report,) = outcome.ranks
        return _refused(report, role) or outcome
    if isinstance(outcome, OutOfMemory | HostOutOfMemory | Crashed):
        return replace(outcome, rank=role.rank)
    return outcome


def _refused(report: RankReport, role: EmulatedRole) -> Outcome | None:
    """Why a role that ran to its end counts for nothing; None when it counts."""
    warmup = len(report.losses) - len(report.step_times_s)
    if report.skipped_steps >= max(1, warmup):
        return Diverged(
            step=len(report.losses) - 1,
            losses=report.losses,
            log_tail=f"emulated rank {role.rank} skipped {report.skipped_steps} of {len(report.losses)} optimizer "
            "steps: without them the optimizer's memory and time are not seen",
        )
    if report.emulation is None:
        return Crashed(
            rank=role.rank, phase=Phase.FINISH, exit_code=0, message="the rank reported no emulation", log_tail=""
        )
    return None


def emulated_outcome(
    roles: Sequence[tuple[EmulatedRole, Measured]], *, candidate: Candidate, job: JobSpec, basis: Basis
) -> Measured:
    """The candidate as if all its ranks had run: memory of the worst role, and a step put together from all of them."""
    reports = [(role, _as_of_target(measured.ranks[0], role, basis)) for role, measured in roles]
    breakdown = recorded_step(
        [
            Role(
                report=report.emulation,
                num_stages=role.num_stages,
                compute_scale=basis.compute_scale,
                step_end_scale=basis.step_end_scale,
            )
            for role, report in reports
            if report.emulation is not None
        ],
        layout=candidate.layout,
        micro_batches=candidate.batch.gradient_accumulation_steps,
        cluster=job.cluster,
    )
    step_time_s = breakdown_total_s(breakdown)
    traced = job.model.traced
    tokens = job.training.global_batch_size * (traced.tokens_per_sample if traced else job.training.seq_len)
    return Measured(
        step_time_s=step_time_s,
        step_time_spread_s=step_time_s * max(_spread_fraction(report) for _, report in reports),
        tokens_per_s=tokens / step_time_s,
        ranks=tuple(report for _, report in reports),
        kind=Provenance.EMULATED,
        time_kind=None if basis.time_kind is Provenance.EMULATED else basis.time_kind,
        breakdown=breakdown,
    )


def _as_of_target(report: RankReport, role: EmulatedRole, basis: Basis) -> RankReport:
    used = report.device_used_bytes + basis.communication_bytes
    return replace(report, rank=role.rank, device_used_bytes=used)


def _spread_fraction(report: RankReport) -> float:
    middle, spread = median_and_spread(report.step_times_s)
    return spread / middle if middle > 0 and math.isfinite(middle) else 0.0
