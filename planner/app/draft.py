"""A job before anything runs: its legal candidates, what the model says of them, what will be tried. Pure.

Owns joining `space` and `cost`, and the refusal when nothing legal can fit.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.app.ability import Ability
from planner.app.alike import stood_for
from planner.app.forecast import target_of
from planner.app.progress import OutlinedCandidate, SearchOutline
from planner.app.trials import LAST_TRIAL_ALLOWANCE_S
from planner.app.uneven import UnevenRow, price_uneven, stands_on_groups, uneven_rows
from planner.cost import REFERENCE_TRAINER, Calibration, EstimateColumns, estimate_columns, screened_out
from planner.errors import NoFeasiblePlan
from planner.report import CandidateRow
from planner.report.units import format_bytes, format_duration_limit
from planner.report.wording import short_candidate
from planner.search import Priors, SearchProblem, preview_search, utilities, world_sizes
from planner.space import Space, enumerate_candidates, explain_empty
from planner.spec import Candidate, Estimate, JobSpec, OffloadDevice, OptimizerName, TrialMode, TrialRecord
from planner.spec._record import record
from planner.spec.columns import BoolColumn, CandidateColumns, IntColumn, candidate_at, columns_of

_NO_CALIBRATION = Calibration()
NUM_SHOWN = 5  # candidates shown of a kind: those tried first, the best untried, the screened
NODE_FACTORS = (2, 4, 8, 16, 32, 64)  # larger clusters that are looked at when nothing fits
VALIDATION_S = 60.0  # at most, on two cores: importing, and a few small ranks


OFFLOAD_NOTE = "nothing fits into device memory alone, so offloading to host memory is searched too"


@record
class Draft:
    """`order` ranks all legal candidates by the model, best first: those that fit before those that do not.

    `screened` marks those that no trial is spent on. `calibration`: what the estimates were corrected by. `uneven`: for
    pipelines over the groups of a mixed cluster, each column's candidate with its own partition; the columns are then
    the best of `num_candidates`.
    """

    job: JobSpec
    space: Space
    estimates: EstimateColumns
    screened: BoolColumn
    order: IntColumn
    calibration: Calibration = _NO_CALIBRATION
    uneven: tuple[UnevenRow, ...] = ()
    num_candidates: int = 0
    note: str = ""  # what a user should know of how the candidates came about

    @property
    def columns(self) -> CandidateColumns:
        return self.space.columns

    def fitting(self) -> BoolColumn:
        """Candidates that a plan may promise without a trial."""
        return fitting(self.job, self.estimates)

    def worth_trying(self) -> BoolColumn:
        """Candidates that a trial may be spent on: not screened, and no other stands for them."""
        kept: BoolColumn = ~self.screened & ~stood_for(self.job, self.columns, order=self.order)
        return kept

    def row(self, index: int) -> CandidateRow:
        """One candidate with its estimate."""
        if self.uneven:
            return self.uneven[index].row
        candidate = candidate_at(self.columns, index, num_layers=self.job.model.num_layers)
        return CandidateRow(key=candidate.key, candidate=candidate, estimate=self.estimates.record_at(index))


def draft_plan(job: JobSpec, *, calibration: Calibration = _NO_CALIBRATION) -> Draft:
    """Enumerate, price and screen. Raises NoFeasiblePlan when nothing is legal or everything is too large.

    `calibration`: what trials of an earlier or a larger plan of the job teach the model.
    """
    space = enumerate_candidates(job)
    if not len(space.columns):
        raise explain_empty(space, job)
    if job.cluster.groups:
        return _draft_over_groups(job, space)
    estimates = estimate_space(job, space.columns, calibration=calibration)
    screened = screened_out(estimates)
    order = best_first(job, space.columns, estimates, screened=screened)
    draft = Draft(
        job=job,
        space=space,
        estimates=estimates,
        screened=screened,
        order=order,
        calibration=calibration,
        num_candidates=len(space.columns),
    )
    if screened.all():
        return _with_host_memory(draft)
    return draft


def _draft_over_groups(job: JobSpec, space: Space) -> Draft:
    """Pipelines over the groups of the job's cluster, which stand in the order of the ranks."""
    found = uneven_rows(job, space.columns)
    if not found:
        raise NoFeasiblePlan(
            "no pipeline with whole stages on every group of nodes fits into memory",
            why=f"{int(stands_on_groups(space.columns, job.cluster).sum())} of {len(space.columns)} candidates stand "
            "on the groups; none has a partition that leaves every group's headroom free",
            fix="plan one group alone, or use more nodes or a shorter seq_len",
        )
    columns = space.columns.take(np.array([one.index for one in found], dtype=np.int64))
    return Draft(
        job=job,
        space=replace(space, columns=columns),
        estimates=_columns_of_rows(tuple(one.row.estimate for one in found), even=estimate_space(job, columns)),
        screened=np.zeros(len(found), dtype=np.bool_),
        order=np.arange(len(found), dtype=np.int64),
        uneven=found,
        num_candidates=int(stands_on_groups(space.columns, job.cluster).sum()),
    )


def _columns_of_rows(estimates: tuple[Estimate, ...], *, even: EstimateColumns) -> EstimateColumns:
    """Estimates of uneven pipelines as columns. All fit where they stand, and what is usable differs between them: as
    columns they are given the most of it; each row's record has its own."""
    memory = [one.memory for one in estimates]
    return replace(
        even,
        tokens_per_s=np.array([one.tokens_per_s for one in estimates]),
        step_time_s=np.array([one.step_time_s for one in estimates]),
        device_used_bytes=np.array([one.device_used_bytes for one in memory], dtype=np.int64),
        low_bytes=np.array([one.low_bytes for one in memory], dtype=np.int64),
        high_bytes=np.array([one.high_bytes for one in memory], dtype=np.int64),
        host_bytes=np.array([one.host_bytes for one in memory], dtype=np.int64),
        fits=np.array([one.fits for one in estimates], dtype=np.bool_),
        usable_bytes=max(one.usable_bytes for one in memory),
        host_usable_bytes=max(one.host_usable_bytes for one in memory),
    )


def _with_host_memory(draft: Draft) -> Draft:
    """The same job with its states offloaded to host memory, where nothing fits otherwise and the job does not say what
    may be offloaded. Raises NoFeasiblePlan when that does not fit either."""
    job = draft.job
    unsaid = job.ranges.offload_optimizer is None and job.ranges.offload_param is None
    if not unsaid or job.training.optimizer.name not in (OptimizerName.ADAMW, OptimizerName.LION):
        raise _nothing_fits(draft)
    devices = (OffloadDevice.NONE, OffloadDevice.CPU)
    ranges = replace(job.ranges, offload_optimizer=devices, offload_param=devices)
    space = enumerate_candidates(replace(job, ranges=ranges))
    estimates = estimate_space(job, space.columns, calibration=draft.calibration)
    screened = screened_out(estimates)
    if screened.all():
        raise _nothing_fits(draft)
    order = best_first(job, space.columns, estimates, screened=screened)
    return replace(
        draft,
        space=space,
        estimates=estimates,
        screened=screened,
        order=order,
        num_candidates=len(space.columns),
        note=OFFLOAD_NOTE,
    )


def best_first(
    job: JobSpec, columns: CandidateColumns, estimates: EstimateColumns, *, screened: BoolColumn
) -> IntColumn:
    """By the objective; of equals (on one rank, say, every ZeRO stage takes the same time) the least memory first."""
    score = np.round(
        utilities(np.log(estimates.tokens_per_s), world_sizes(columns), job.objective, target=target_of(job)), 6
    )
    return np.lexsort((estimates.device_used_bytes, -score, ~fitting(job, estimates), screened))


def fitting(job: JobSpec, estimates: EstimateColumns) -> BoolColumn:
    """Where both the upper bound of what the run cannot do without and what it would really take (blocks that the
    allocator keeps included) leave the job's headroom free."""
    limit = estimates.usable_bytes * (1.0 - job.memory_headroom_fraction)
    needed = np.maximum(estimates.high_bytes, estimates.device_used_bytes)
    fits: BoolColumn = estimates.fits & (needed <= limit)
    return fits


def fitting_estimate(job: JobSpec, estimate: Estimate) -> bool:
    """`fitting` of one candidate."""
    memory = estimate.memory
    limit = memory.usable_bytes * (1.0 - job.memory_headroom_fraction)
    return estimate.fits and max(memory.high_bytes, memory.device_used_bytes) <= limit


def search_problem(draft: Draft, *, seed: int, machine: str) -> SearchProblem:
    """The candidates worth trying, as the search takes them. Its rows are those of `draft` that are not screened."""
    estimates, kept = draft.estimates, draft.worth_trying()
    priors = Priors(
        tokens_per_s=estimates.tokens_per_s[kept],
        step_time_s=estimates.step_time_s[kept],
        memory_bytes=estimates.device_used_bytes[kept].astype(np.float64),
        low_bytes=estimates.low_bytes[kept].astype(np.float64),
        high_bytes=estimates.high_bytes[kept].astype(np.float64),
        fits=estimates.fits[kept],
    )
    return SearchProblem(
        columns=draft.columns.take(kept),
        priors=priors,
        policy=draft.job.trials,
        seed=seed,
        usable_bytes=estimates.usable_bytes,
        memory_headroom_fraction=draft.job.memory_headroom_fraction,
        objective=draft.job.objective,
        target=target_of(draft.job),
        num_layers=draft.job.model.num_layers,
        machine=machine,
        legal=draft.columns,
    )


def outline_search(
    draft: Draft, ability: Ability, *, problem: SearchProblem, done: tuple[TrialRecord, ...], validate: bool
) -> SearchOutline:
    """What will be tried, and at most how long it takes, before any of it happens."""
    job, runs = draft.job, ability.mode is not TrialMode.NONE
    preview = preview_search(problem, done=done)
    kept = np.flatnonzero(draft.worth_trying())
    first = [int(kept[row]) for row in preview.first_rows] if runs else draft.order[:NUM_SHOWN].tolist()
    longest_s = preview.longest_s if runs else 0.0
    last_s = _last_trial_s(job, ability) if longest_s else 0.0
    return SearchOutline(
        job_name=job.model.name,
        mode=ability.mode,
        world_size=job.cluster.world_size,
        device_name=job.cluster.gpu.name,
        usable_bytes=draft.estimates.usable_bytes,
        num_combinations=draft.space.num_combinations,
        num_candidates=draft.num_candidates,
        num_screened=int(draft.screened.sum()),
        num_alike=int((~draft.screened & ~draft.worth_trying()).sum()),
        max_trials=preview.num_trials if runs else 0,
        longest_s=longest_s + last_s + (VALIDATION_S if validate else 0.0),
        longest_note=_longest_note(longest_s, last_s, timeout_s=job.trials.timeout_s, validate=validate),
        num_trials_done=len(done),
        first_candidates=tuple(_outlined(draft.row(index)) for index in first),
        rejected=tuple((rejection.rule, rejection.count) for rejection in draft.space.rejections),
        left_out_axes=tuple((axis.axis, axis.reason) for axis in draft.space.left_out_axes),
        trials_note=ability.note,
    )


def _last_trial_s(job: JobSpec, ability: Ability) -> float:
    """At most of the winner's last trial (`final_trial`), which may come on top of the limits; 0: there is none."""
    if not job.training.checkpoint_dir or job.launch.command or ability.gpu is not None:
        return 0.0
    return job.trials.timeout_s + LAST_TRIAL_ALLOWANCE_S


def _longest_note(trials_s: float, final_s: float, *, timeout_s: float, validate: bool) -> str:
    """What the bound is made of: the last trial may start when the time budget ends."""
    if not trials_s:
        return ""
    start_s, last_s = max(trials_s - timeout_s, 0.0), min(trials_s, timeout_s)
    parts = [f"the last trial's {format_duration_limit(last_s)}"]
    if start_s:
        parts.insert(0, f"{format_duration_limit(start_s)} in which trials start")
    if final_s:
        parts.append(f"{format_duration_limit(final_s)} of the winner's with a checkpoint")
    if validate:
        parts.append(f"{format_duration_limit(VALIDATION_S)} of validation")
    return " + ".join(parts)


def _outlined(row: CandidateRow) -> OutlinedCandidate:
    return OutlinedCandidate(
        key=row.key,
        name=short_candidate(row.candidate),
        tokens_per_s=row.estimate.tokens_per_s,
        device_used_bytes=row.estimate.memory.device_used_bytes,
        kind=row.estimate.kind,
    )


def estimate_space(
    job: JobSpec, columns: CandidateColumns, *, calibration: Calibration = _NO_CALIBRATION
) -> EstimateColumns:
    """What the (calibrated) model says of many candidates of the job, as the reference trainer would run them."""
    return estimate_columns(
        columns,
        model=job.model,
        training=job.training,
        cluster=job.cluster,
        profile=REFERENCE_TRAINER,
        calibration=calibration,
    )


def estimate_candidates(
    job: JobSpec, candidates: tuple[Candidate, ...], *, calibration: Calibration = _NO_CALIBRATION
) -> tuple[Estimate, ...]:
    """What the (calibrated) model says of these candidates."""
    if job.cluster.groups:
        return tuple(price_uneven(job, candidate) for candidate in candidates)
    columns = columns_of(candidates, gpus_per_node=job.cluster.gpus_per_node)
    estimates = estimate_space(job, columns, calibration=calibration)
    return tuple(estimates.record_at(row) for row in range(len(candidates)))


def nearest_to_fitting(draft: Draft) -> CandidateRow:
    """The candidate that needs the least memory."""
    return draft.row(int(np.argmin(draft.estimates.high_bytes)))


def _nothing_fits(draft: Draft) -> NoFeasiblePlan:
    nearest = nearest_to_fitting(draft)
    memory, name = nearest.estimate.memory, short_candidate(nearest.candidate)
    return NoFeasiblePlan(
        f"none of the {len(draft.columns)} legal candidates fits into memory",
        why=f"the nearest, {name}, needs at least {format_bytes(memory.low_bytes)} a device of "
        f"{format_bytes(memory.usable_bytes)} usable, and up to {format_bytes(memory.host_bytes)} of "
        f"{format_bytes(memory.host_usable_bytes)} host memory a node (computed)",
        fix=what_would_fit(draft.job),
        tally=(("too-large-for-memory", len(draft.columns)),),
    )


def what_would_fit(job: JobSpec) -> str:
    """The smallest larger cluster of the same nodes on which something fits with headroom, in words."""
    for factor in NODE_FACTORS:
        nodes = job.cluster.nodes * factor
        larger = replace(job, cluster=replace(job.cluster, nodes=nodes, groups=()), node_counts=())
        space = enumerate_candidates(larger)
        if not len(space.columns):
            continue
        if fitting(larger, estimate_space(larger, space.columns)).any():
            devices = f"{larger.cluster.world_size} x {larger.cluster.gpu.name}"
            return f"use {nodes} such nodes ({devices}), which hold it by the model, or a shorter seq_len"
    return "use a device with more memory, a shorter seq_len or a smaller model; more of these nodes alone do not help"
