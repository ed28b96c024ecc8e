"""The user's own layout (`--pin`) beside the choice: which candidate it is, what it costs, what refuses it. Pure.

Leaves running it to `plan`, and the words to `report.pinned`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.app.draft import Draft, best_first, estimate_candidates, estimate_space
from planner.cost import Calibration, screened_out
from planner.errors import InputError
from planner.jobfile import Pin
from planner.report import CandidateRow, PinnedLayout, RejectionRow
from planner.space import NamedLayout, enumerate_candidates, refusals_of
from planner.spec import Candidate, JobSpec, TrialRecord
from planner.spec._record import record
from planner.spec.columns import BoolColumn, CandidateColumns, candidate_at, find_row
from planner.spec.runs import one_per_candidate

_RANGES = (
    "zero_stage",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "micro_batch_size",
    "activation_checkpointing",
    "precision",
)
_FILTERS = ("data_parallel_size", "gradient_accumulation_steps")


@record
class Pinned:
    """The best candidate with the pinned values, by the model; None where none is legal, and then the rules that refuse
    it. `is_searched`: the job's own ranges hold it. `screened`: even the lower bound of its memory exceeds the device.
    """

    pin: Pin
    candidate: Candidate | None = None
    is_searched: bool = False
    screened: bool = False
    refusals: tuple[RejectionRow, ...] = ()


def find_pinned(draft: Draft, pin: Pin) -> Pinned:
    """The pinned layout in the job's space, or beside it where the job's ranges do not list it."""
    job = pinned_job(draft.job, pin)
    columns = enumerate_candidates(job).columns
    columns = columns.take(_with_values(columns, pin))
    if not len(columns):
        return Pinned(pin=pin, refusals=_refusals(draft, job, pin))
    estimates = estimate_space(job, columns)
    screened = screened_out(estimates)
    best = int(best_first(job, columns, estimates, screened=screened)[0])
    candidate = candidate_at(columns, best, num_layers=job.model.num_layers)
    return Pinned(
        pin=pin,
        candidate=candidate,
        is_searched=holds(draft.columns, candidate),
        screened=bool(screened[best]),
    )


def pinned_job(job: JobSpec, pin: Pin) -> JobSpec:
    """The job with its ranges narrowed to the pinned values. InputError for more nodes than the cluster has."""
    ranges = replace(job.ranges, **{axis: (value,) for axis in _RANGES if (value := getattr(pin, axis)) is not None})
    if pin.nodes is None:
        return replace(job, ranges=ranges)
    if pin.nodes > job.cluster.nodes:
        raise InputError(
            f"--pin nodes={pin.nodes}, but the cluster has {job.cluster.nodes}",
            why="a layout uses at most the cluster's nodes",
            fix="pin fewer nodes, or raise cluster.nodes in the job",
        )
    return replace(job, ranges=ranges, cluster=replace(job.cluster, nodes=pin.nodes), node_counts=())


def holds(columns: CandidateColumns, candidate: Candidate) -> bool:
    """Whether the candidate is one of the rows."""
    return find_row(columns, candidate) is not None


def _with_values(columns: CandidateColumns, pin: Pin) -> BoolColumn:
    """The rows that also have the pinned values of what follows from the axes."""
    same: BoolColumn = np.ones(len(columns), dtype=np.bool_)
    for name in _FILTERS:
        if (value := getattr(pin, name)) is not None:
            same &= getattr(columns, name) == value
    return same


def _refusals(draft: Draft, job: JobSpec, pin: Pin) -> tuple[RejectionRow, ...]:
    """What refuses the pinned values; an axis that the pin leaves open has the value of the model's best candidate."""
    best = draft.row(int(draft.order[0])).candidate
    layout = NamedLayout(
        tensor_parallel_size=pin.tensor_parallel_size or best.layout.tensor_parallel_size,
        pipeline_parallel_size=pin.pipeline_parallel_size or best.layout.pipeline_parallel_size,
        micro_batch_size=pin.micro_batch_size or best.batch.micro_batch_size,
        zero_stage=best.zero_stage if pin.zero_stage is None else pin.zero_stage,
        precision=pin.precision or best.precision,
        activation_checkpointing=pin.activation_checkpointing or best.activation_checkpointing,
        data_parallel_size=pin.data_parallel_size,
        gradient_accumulation_steps=pin.gradient_accumulation_steps,
    )
    return tuple(RejectionRow(rule=one.rule, count=1, sentence=one.sentence) for one in refusals_of(job, layout))


def pinned_layout(
    draft: Draft, pinned: Pinned, *, trials: tuple[TrialRecord, ...], calibration: Calibration
) -> PinnedLayout:
    """The pinned layout as the report tells it: priced by the calibrated model, with its trial where there was one."""
    row = trial = None
    if pinned.candidate is not None:
        (estimate,) = estimate_candidates(draft.job, (pinned.candidate,), calibration=calibration)
        row = CandidateRow(key=pinned.candidate.key, candidate=pinned.candidate, estimate=estimate)
        trial = next((trial for trial in one_per_candidate(trials) if trial.key == row.key), None)
    return PinnedLayout(
        words=pinned.pin.text,
        row=row,
        trial=trial,
        refusals=pinned.refusals,
        is_searched=pinned.is_searched,
        screened=pinned.screened,
    )
