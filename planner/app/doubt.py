"""What came close, and how the choice stands when the model errs. Pure.

Owns the near miss and the sensitivity; the words are the report's.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.app.candidate_map import mapped_row
from planner.app.draft import Draft, fitting
from planner.app.forecast import target_of
from planner.app.selection import Selection
from planner.cost import EstimateColumns
from planner.report import ErrorCase, NearMiss, Sensitivity
from planner.search import memory_bytes, utilities, world_sizes
from planner.spec import Measured, TimeBreakdown
from planner.spec.columns import BoolColumn, FloatColumn, IntColumn, find_row
from planner.spec.runs import one_per_candidate

WITHIN = (0.02, 0.05, 0.10, 0.20)
_POINTS_FOR_RESIDUAL = 3
_WORTH = 1e-3  # a loss below this is a tie

# By how much a part may be off on a machine nobody measured: what `planner.cost.calibration` believes before trials.
_COMPUTE, _COMMUNICATION, _HOST, _MEMORY = 0.15, 0.40, 0.60, 0.05
_PARTS = {
    "computing": ("compute_s", "recompute_s", "bubble_s"),
    "communication": ("tensor_parallel_s", "data_parallel_s", "pipeline_s"),
    "the host": ("host_s",),
}
_TIME_CASES = tuple(
    (f"{part} takes {abs(change):.0%} {'longer' if change > 0 else 'less time'} than the model says", part, change)
    for part, size in (("computing", _COMPUTE), ("communication", _COMMUNICATION), ("the host", _HOST))
    for change in (size, -size)
)


def near_miss(draft: Draft, estimates: EstimateColumns, *, fits: BoolColumn, selection: Selection) -> NearMiss | None:
    """The fastest candidate that is not sure to fit and by the model beats the choice; where there is none, the
    one that misses the limit by the least. What a trial has shown to run is no miss. None where everything fits."""
    missing = ~fits
    for trial in one_per_candidate(selection.trials):
        row = find_row(draft.columns, trial.candidate)
        limit = estimates.usable_bytes * (1.0 - draft.job.memory_headroom_fraction)
        if row is not None and isinstance(trial.outcome, Measured) and memory_bytes(trial.outcome) <= limit:
            missing[row] = False
    rows = np.flatnonzero(missing)
    if not len(rows):
        return None
    own = find_row(draft.columns, selection.candidate)
    score = _score(draft, estimates.tokens_per_s)
    over = _needed(estimates) - estimates.usable_bytes * (1.0 - draft.job.memory_headroom_fraction)
    faster = rows[score[rows] > score[own] + _WORTH] if own is not None else rows[:0]
    # Of those that would be faster the one that misses least is nearest: far beyond the limit there is always another.
    pool = faster if len(faster) else rows
    row = int(pool[np.argmin(over[pool])])
    return NearMiss(
        row=mapped_row(draft, estimates, row), over_bytes=max(int(over[row]), 0), is_faster=bool(len(faster))
    )


def sensitivity(
    draft: Draft, estimates: EstimateColumns, *, fits: BoolColumn, selection: Selection
) -> Sensitivity | None:
    """How wrong the model has to be before another candidate wins. None for a choice outside the space."""
    own = find_row(draft.columns, selection.candidate)
    if own is None:
        return None
    tried = [row for trial in selection.trials if (row := find_row(draft.columns, trial.candidate)) is not None]
    is_open = fits.copy()
    is_open[[own, *tried]] = False
    promised = np.array([selection.promise.tokens_per_s])
    ours = float(_utility(draft, promised, rows=np.array([own]))[0])
    score = _score(draft, estimates.tokens_per_s)
    rows = np.flatnonzero(is_open)
    rival = int(rows[np.argmax(score[rows])]) if len(rows) else None
    calibration = selection.calibration
    return Sensitivity(
        rival=mapped_row(draft, estimates, rival) if rival is not None else None,
        lead_fraction=float(np.expm1(min(ours - score[rival], 50.0))) if rival is not None else 0.0,
        within=tuple((share, int((score[rows] >= ours + np.log1p(-share)).sum())) for share in WITHIN),
        cases=_cases(draft, estimates, own=own, selection=selection),
        residual_fraction=calibration.time_residual_fraction
        if calibration.num_points >= _POINTS_FOR_RESIDUAL
        else None,
    )


def _cases(draft: Draft, estimates: EstimateColumns, *, own: int, selection: Selection) -> tuple[ErrorCase, ...]:
    """What would be chosen if a part of the model were off for all candidates alike; what trials showed stays as it
    was."""
    known = _known(draft, estimates, own=own, selection=selection)
    cases = []
    for words, part, change in _TIME_CASES:
        speed = _speed_with(estimates, _PARTS[part], 1.0 + change)
        if not np.allclose(speed, estimates.tokens_per_s, rtol=1e-3):
            changed = replace(estimates, tokens_per_s=speed)
            cases.append(_case(draft, changed, own=own, words=words, known=known))
    larger = replace(
        estimates,
        high_bytes=np.rint(estimates.high_bytes * (1.0 + _MEMORY)).astype(np.int64),
        device_used_bytes=np.rint(estimates.device_used_bytes * (1.0 + _MEMORY)).astype(np.int64),
        fits=estimates.fits & (estimates.high_bytes * (1.0 + _MEMORY) <= estimates.usable_bytes),
    )
    words = f"every candidate takes {_MEMORY:.0%} more memory than the model says"
    if known or fitting(draft.job, larger).any():
        cases.append(_case(draft, larger, own=own, words=words, known=known))
    return tuple(cases)


def _known(draft: Draft, estimates: EstimateColumns, *, own: int, selection: Selection) -> dict[int, float]:
    """Tokens/s of the rows that were tried; 0 of those that did not run or left too little memory."""
    limit = estimates.usable_bytes * (1.0 - draft.job.memory_headroom_fraction)
    known: dict[int, float] = {}
    for trial in one_per_candidate(selection.trials):
        row, outcome = find_row(draft.columns, trial.candidate), trial.outcome
        if row is not None:
            runs = isinstance(outcome, Measured) and memory_bytes(outcome) <= limit
            known[row] = outcome.tokens_per_s if runs and isinstance(outcome, Measured) else 0.0
    if known:
        known[own] = selection.promise.tokens_per_s
    return known


def _case(draft: Draft, estimates: EstimateColumns, *, own: int, words: str, known: dict[int, float]) -> ErrorCase:
    fits, speed = fitting(draft.job, estimates), estimates.tokens_per_s.copy()
    for row, shown in known.items():
        fits[row], speed[row] = shown > 0, shown or speed[row]
    rows = np.flatnonzero(fits)
    score = _score(draft, speed)
    best = int(rows[np.argmax(score[rows])])
    loss = float(-np.expm1(score[own] - score[best]))
    if fits[own] and loss < _WORTH:
        best, loss = own, 0.0
    changed = replace(estimates, tokens_per_s=speed)
    return ErrorCase(change=words, best=mapped_row(draft, changed, best), loss_fraction=max(loss, 0.0))


def _speed_with(estimates: EstimateColumns, parts: tuple[str, ...], factor: float) -> FloatColumn:
    """Tokens/s when these parts of the step take `factor` times as long."""
    changed = sum((getattr(estimates, part) for part in parts), start=np.zeros(len(estimates)))
    named = [getattr(estimates, name) for name in TimeBreakdown.__dataclass_fields__]
    total = sum(named, start=np.zeros(len(estimates)))
    return np.asarray(estimates.tokens_per_s * total / (total + (factor - 1.0) * changed), dtype=np.float64)


def _needed(estimates: EstimateColumns) -> FloatColumn:
    return np.maximum(estimates.high_bytes, estimates.device_used_bytes).astype(np.float64)


def _score(draft: Draft, tokens_per_s: FloatColumn) -> FloatColumn:
    return _utility(draft, tokens_per_s, rows=np.arange(len(draft.columns)))


def _utility(draft: Draft, tokens_per_s: FloatColumn, *, rows: IntColumn) -> FloatColumn:
    job, worlds = draft.job, world_sizes(draft.columns)[rows]
    return utilities(np.log(tokens_per_s), worlds, job.objective, target=target_of(job))
