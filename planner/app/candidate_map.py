"""Which of all legal candidates a report shows: frontier, tried, the best of each layout, a fair sample. Pure.

Owns the thinning. Where the points lie in the plot is the report's.
"""

from __future__ import annotations

import numpy as np

from planner.app.draft import Draft
from planner.cost import EstimateColumns
from planner.report import CandidateMap, CandidateRow, MappedCandidate
from planner.spec import TrialRecord
from planner.spec.columns import BoolColumn, CandidateColumns, IntColumn, candidate_at, find_row

MAX_FITTING, MAX_OTHERS = 1200, 400  # beyond what must be shown: the eye tells no more, and each costs time
REACH = 4.0  # what needs more than this many times the usable memory is of no interest: it is counted, not drawn


def candidate_map(
    draft: Draft,
    estimates: EstimateColumns,
    *,
    fits: BoolColumn,
    trials: tuple[TrialRecord, ...],
    keep: tuple[int, ...],
) -> CandidateMap:
    """The candidates to plot, least memory first. `keep`: rows shown whatever the sample takes."""
    frontier = frontier_rows(estimates, fits=fits)
    tried = tuple(row for trial in trials if (row := find_row(draft.columns, trial.candidate)) is not None)
    near = np.flatnonzero(~fits & (estimates.device_used_bytes <= REACH * estimates.usable_bytes))
    rows = np.unique(
        np.concatenate(
            [
                frontier,
                _best_of_each_layout(draft.columns, estimates, fits=fits),
                _sample(draft.columns, estimates, rows=np.flatnonzero(fits), most=MAX_FITTING),
                _sample(draft.columns, estimates, rows=near, most=MAX_OTHERS),
                np.array((*tried, *keep), dtype=np.int64),
            ]
        )
    )
    rows = rows[np.argsort(estimates.device_used_bytes[rows], kind="stable")]
    on_frontier = frozenset(frontier.tolist())
    return CandidateMap(
        shown=tuple(
            MappedCandidate(
                row=mapped_row(draft, estimates, row), fits=bool(fits[row]), is_on_frontier=row in on_frontier
            )
            for row in rows.tolist()
        ),
        num_legal=len(draft.columns),
        num_fit=int(fits.sum()),
    )


def mapped_row(draft: Draft, estimates: EstimateColumns, row: int) -> CandidateRow:
    """One candidate of the draft with an estimate of another (calibrated) pricing."""
    if draft.uneven:  # with partitions of their own, which the columns do not hold
        candidate = draft.row(row).candidate
    else:
        candidate = candidate_at(draft.columns, row, num_layers=draft.job.model.num_layers)
    return CandidateRow(key=candidate.key, candidate=candidate, estimate=estimates.record_at(row))


def frontier_rows(estimates: EstimateColumns, *, fits: BoolColumn) -> IntColumn:
    """Rows that fit and are faster than all that fit with as little memory, least memory first."""
    rows = np.flatnonzero(fits)
    order = rows[np.lexsort((-estimates.tokens_per_s[rows], estimates.device_used_bytes[rows]))]
    speed = estimates.tokens_per_s[order]
    best_before = np.concatenate(([-np.inf], np.maximum.accumulate(speed)[:-1]))
    return order[speed > best_before]


def _best_of_each_layout(columns: CandidateColumns, estimates: EstimateColumns, *, fits: BoolColumn) -> IntColumn:
    """The fastest that fits of each ZeRO stage, tensor and pipeline size, so that no filter shows an empty plot."""
    rows = np.flatnonzero(fits)
    axes = (columns.zero_stage[rows], columns.tensor_parallel_size[rows], columns.pipeline_parallel_size[rows])
    order = np.lexsort((-estimates.tokens_per_s[rows], *axes))
    layouts = np.stack([axis[order] for axis in axes])
    is_first: BoolColumn = np.ones(len(rows), dtype=np.bool_)
    is_first[1:] = (layouts[:, 1:] != layouts[:, :-1]).any(axis=0)
    return rows[order][is_first]


def _sample(columns: CandidateColumns, estimates: EstimateColumns, *, rows: IntColumn, most: int) -> IntColumn:
    """At most `most`, every so many in the order of layout and speed: each layout by its share."""
    if len(rows) <= most:
        return rows
    order = np.lexsort(
        (
            estimates.tokens_per_s[rows],
            columns.pipeline_parallel_size[rows],
            columns.tensor_parallel_size[rows],
            columns.zero_stage[rows],
        )
    )
    places = np.linspace(0, len(rows) - 1, most).round().astype(np.int64)
    return rows[order][places]
