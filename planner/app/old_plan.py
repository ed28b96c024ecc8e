"""What an old plan is worth on another cluster: whether it starts, whether it fits, how fast it is. Pure."""

from __future__ import annotations

from dataclasses import replace

from planner.app.draft import estimate_candidates, fitting_estimate
from planner.app.uneven import fills_groups
from planner.cost import Calibration
from planner.report.units import format_bytes, format_seconds, format_tokens_per_s
from planner.space import NamedLayout, refusals_of
from planner.spec import Candidate, ClusterSpec, JobSpec, SearchRanges, TrialRecord
from planner.spec.replan import Verdict
from planner.spec.runs import together


def judge_old_plan(
    candidate: Candidate, job: JobSpec, *, calibration: Calibration, kept: tuple[TrialRecord, ...] = ()
) -> Verdict:
    """The candidate on the job's cluster. `job` is the new one; `kept` are old trials that hold there: where the
    candidate's own is among them, its figures are those that were seen."""
    world, there = candidate.layout.world_size, job.cluster.world_size
    if world > there:
        return _stopped(f"it cannot start: it needs {world} GPUs, and there are {there}")
    part = job.cluster if fills_groups(candidate, job.cluster) else _part_of(job.cluster, world)
    if part is None:
        per_node = job.cluster.gpus_per_node
        return _stopped(f"it cannot start: its {world} ranks do not fill whole nodes of {per_node} GPUs")
    narrowed = replace(job, cluster=part, node_counts=(), ranges=_ranges_of(candidate))
    refusals = refusals_of(narrowed, _named(candidate))
    if refusals:
        return _stopped(f"it cannot start: {refusals[0].sentence}")
    return _priced(candidate, narrowed, calibration=calibration, kept=kept, idle=there - world)


def _stopped(sentence: str) -> Verdict:
    return Verdict(starts=False, fits=False, sentence=sentence)


def _part_of(cluster: ClusterSpec, world: int) -> ClusterSpec | None:
    """The whole nodes, or the part of one, that a world takes; None where it takes neither."""
    if world <= cluster.gpus_per_node:
        return replace(cluster, nodes=1, gpus_per_node=world, groups=())
    if world % cluster.gpus_per_node:
        return None
    return replace(cluster, nodes=world // cluster.gpus_per_node, groups=())


def _ranges_of(candidate: Candidate) -> SearchRanges:
    """The candidate's own values: whether the job lists them is not asked here."""
    return SearchRanges(
        zero_stage=(candidate.zero_stage,),
        tensor_parallel_size=(candidate.layout.tensor_parallel_size,),
        pipeline_parallel_size=(candidate.layout.pipeline_parallel_size,),
        micro_batch_size=(candidate.batch.micro_batch_size,),
        activation_checkpointing=(candidate.activation_checkpointing,),
        precision=(candidate.precision,),
    )


def _named(candidate: Candidate) -> NamedLayout:
    return NamedLayout(
        tensor_parallel_size=candidate.layout.tensor_parallel_size,
        pipeline_parallel_size=candidate.layout.pipeline_parallel_size,
        micro_batch_size=candidate.batch.micro_batch_size,
        zero_stage=candidate.zero_stage,
        precision=candidate.precision,
        activation_checkpointing=candidate.activation_checkpointing,
        data_parallel_size=candidate.layout.data_parallel_size,
        gradient_accumulation_steps=candidate.batch.gradient_accumulation_steps,
    )


def _priced(
    candidate: Candidate, job: JobSpec, *, calibration: Calibration, kept: tuple[TrialRecord, ...], idle: int
) -> Verdict:
    (estimate,) = estimate_candidates(job, (candidate,), calibration=calibration)
    usable, used, kind = estimate.memory.usable_bytes, estimate.memory.device_used_bytes, estimate.kind
    step_time_s, tokens_per_s = estimate.step_time_s, estimate.tokens_per_s
    fits = fitting_estimate(job, estimate)
    own = together(kept, candidate.key)
    if own is not None:
        _, seen = own
        used, kind = seen.device_used_bytes, seen.step_time_kind
        step_time_s, tokens_per_s = seen.step_time_s, seen.tokens_per_s
        fits = used <= usable * (1.0 - job.memory_headroom_fraction)
    if not fits:
        needed = max(used, estimate.memory.high_bytes) if not own else used
        sentence = (
            f"it starts but may not fit: it needs up to {format_bytes(needed)} of {format_bytes(usable)} usable with "
            f"{job.memory_headroom_fraction:.0%} to be kept free ({kind})"
        )
    else:
        left = f", leaving {idle} GPUs idle" if idle else ""
        sentence = (
            f"it still runs{left}: {format_tokens_per_s(tokens_per_s)}, a step of {format_seconds(step_time_s)}, "
            f"{format_bytes(used)} of {format_bytes(usable)} usable ({kind})"
        )
    return Verdict(
        starts=True,
        fits=fits,
        sentence=sentence,
        step_time_s=step_time_s,
        tokens_per_s=tokens_per_s,
        device_used_bytes=used,
        usable_bytes=usable,
        kind=kind,
    )
