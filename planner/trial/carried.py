"""An emulated trial said of another cluster: for which candidates it holds, and its step priced on other links.

Owns when ranks of two candidates do the same work, and which groups of ranks answer to which. Pure.
"""

from __future__ import annotations

from dataclasses import replace

from planner.cost.recorded import Role, breakdown_total_s, recorded_step
from planner.spec import Candidate, EmulationReport, JobSpec, Measured, ParallelLayout
from planner.spec.estimate import TimeBreakdown
from planner.trial.emulated import micro_batches_run


def same_rank_work(one: Candidate, other: Candidate) -> bool:
    """Whether ranks of both compute, hold and send the same in the micro-batches that an emulated trial runs.

    They do when nothing differs; and without ZeRO also at another data-parallel size above 1, which then only changes
    how many micro-batches a step has. (A single data-parallel rank has no gradients to reduce, so it is another case.)
    """
    if one == other:
        return True
    alike = replace(one, layout=other.layout, batch=other.batch) == other
    split = (one.layout.tensor_parallel_size, one.layout.stage_layers, one.layout.pipeline_parallel_size)
    same_split = split == (
        other.layout.tensor_parallel_size,
        other.layout.stage_layers,
        other.layout.pipeline_parallel_size,
    )
    same_batch = one.batch.micro_batch_size == other.batch.micro_batch_size
    stages = range(one.layout.pipeline_parallel_size)
    same_count = all(micro_batches_run(one, stage) == micro_batches_run(other, stage) for stage in stages)
    several = min(one.layout.data_parallel_size, other.layout.data_parallel_size) > 1
    return alike and several and one.zero_stage == 0 and same_split and same_batch and same_count


def with_other_network(measured: Measured, *, old: Candidate, new: Candidate, job: JobSpec) -> Measured:
    """An emulated trial of `old` as one of `new` on the job's cluster: what its ranks computed and held stays, what
    they sent is priced on the cluster's links. `same_rank_work` of both, and the same device.

    The new step keeps the parts that were computed; only communication, the pipeline's filling and the number of
    micro-batches are counted anew.
    """
    counts = _stages_like(new)
    roles = [
        Role(report=_regrouped(report.emulation, old=old, new=new), num_stages=counts[place])
        for place, report in enumerate(measured.ranks)
        if report.emulation is not None
    ]
    if not roles:
        return measured
    micro_batches = new.batch.gradient_accumulation_steps
    before = recorded_step(
        [replace(role, report=report.emulation) for role, report in zip(roles, measured.ranks) if report.emulation],
        layout=old.layout,
        micro_batches=old.batch.gradient_accumulation_steps,
        cluster=job.cluster,
    )
    scales = _scales(measured, before)
    scaled = [replace(role, compute_scale=scales[0], step_end_scale=scales[1]) for role in roles]
    breakdown = recorded_step(scaled, layout=new.layout, micro_batches=micro_batches, cluster=job.cluster)
    step_time_s = breakdown_total_s(breakdown)
    tokens = measured.tokens_per_s * measured.step_time_s
    return replace(
        measured,
        step_time_s=step_time_s,
        step_time_spread_s=measured.step_time_spread_s * step_time_s / measured.step_time_s,
        tokens_per_s=tokens / step_time_s,
        ranks=tuple(
            replace(report, rank=_first_rank(new, place), emulation=role.report)
            for place, (report, role) in enumerate(zip(measured.ranks, roles))
        ),
        breakdown=breakdown,
    )


def _scales(measured: Measured, unscaled: TimeBreakdown) -> tuple[float, float]:
    """Seconds on the target per second on the device that emulated, of computing and of the step's end: what the old
    outcome was put together with."""
    old = measured.breakdown
    if old is None:
        return 1.0, 1.0
    compute = old.compute_s / unscaled.compute_s if unscaled.compute_s > 0 else 1.0
    end = old.optimizer_s / unscaled.optimizer_s if unscaled.optimizer_s > 0 else 1.0
    return compute, end


def _stages_like(candidate: Candidate) -> tuple[int, ...]:
    """How many stages each emulated role stands for, as `emulated_roles` counts them."""
    stages = candidate.layout.pipeline_parallel_size
    return (1, stages - 2, 1) if stages > 2 else (1,) * stages


def _first_rank(candidate: Candidate, place: int) -> int:
    """The rank of the role at this place: of the first, second or last stage the first one."""
    layout = candidate.layout
    stages = layout.pipeline_parallel_size
    stage = stages - 1 if stages > 2 and place == 2 else place
    return stage * layout.data_parallel_size * layout.tensor_parallel_size


def _regrouped(report: EmulationReport, *, old: Candidate, new: Candidate) -> EmulationReport:
    """The report with the same groups in the new layout: of ranks along the same dimensions."""
    if old.layout == new.layout:
        return report
    stage = report.rank // (old.layout.data_parallel_size * old.layout.tensor_parallel_size)
    rank = stage * new.layout.data_parallel_size * new.layout.tensor_parallel_size
    groups = tuple(_regrouped_ranks(group, old=old.layout, new=new.layout) for group in report.groups)
    return replace(report, rank=rank, world_size=new.layout.world_size, groups=groups)


def _regrouped_ranks(group: tuple[int, ...], *, old: ParallelLayout, new: ParallelLayout) -> tuple[int, ...]:
    """Every coordinate that the group spans: of data-parallel ones all of the new layout when it spanned several, or
    the first. Ranks are numbered as in `runtime/grid.py`: tensor fastest, then data, then stages."""
    tensor = old.tensor_parallel_size
    places = [
        (rank // (tensor * old.data_parallel_size), rank // tensor % old.data_parallel_size, rank % tensor)
        for rank in group
    ]
    spans_data = len({data for _, data, _ in places}) > 1
    data_ranks = range(new.data_parallel_size) if spans_data else range(1)
    stages_and_tensors = sorted({(stage, inner) for stage, _, inner in places})
    return tuple(
        sorted(
            (stage * new.data_parallel_size + data) * tensor + inner
            for stage, inner in stages_and_tensors
            for data in data_ranks
        )
    )
