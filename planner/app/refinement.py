"""Two looks at a space: all layouts at the defaults, then the settings of `space.local_axes` around the best. Pure.

The second look takes the layouts that were fastest in trials, with every legal combination of the local axes, and those
that the model, corrected by the trials, expects to be fastest once a setting saves them memory (a chunked loss lets a
larger micro-batch fit that was never tried). It is a search like the first, over what the first knew and these rows.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.app.draft import Draft, best_first, estimate_space
from planner.app.selection import calibrate
from planner.cost import Calibration, EstimateColumns, screened_out
from planner.search import Priors, SearchProblem, SearchResult
from planner.space import LocalAxis, combine, distinct, joined_rows
from planner.spec import Candidate, CrossEntropy, Measured
from planner.spec._record import record
from planner.spec.columns import BoolColumn, CandidateColumns, IntColumn, columns_of, replace_setting

RESERVED_FRACTION = 1 / 3  # of the trials, and of the time, left to the second look
MOST_RESERVED = 8
NUM_BEST = 3  # measured layouts around which every combination is looked at
NUM_PROMISING = 48  # layouts that the model puts in front, with what the settings save
SHOWN_ROWS = 4096  # of the space, in which the values of the local axes are looked up


@record
class TwoLooks:
    """`first`: the search of the layouts. `axes` is empty where there is no second look."""

    first: SearchProblem
    axes: tuple[LocalAxis, ...]


def in_two_looks(problem: SearchProblem, draft: Draft, axes: tuple[LocalAxis, ...]) -> TwoLooks:
    """The first of two searches: the same candidates with fewer trials (a space that is tried whole keeps its own), and
    the local axes named among the study's from the start, so that its parameters are those of both."""
    if draft.uneven:  # one partition each, found by the model: nothing to vary
        return TwoLooks(first=problem, axes=())
    legal = problem.legal if problem.legal is not None else problem.columns
    step = max(len(legal) // SHOWN_ROWS, 1)
    shown = combine(legal.take(np.arange(0, len(legal), step)), axes, job=draft.job) if axes else legal
    if len(shown) == len(legal) or not axes:
        return TwoLooks(first=problem, axes=())
    named = shown.take(_one_row_of_each_tuning(shown))
    policy = problem.policy
    if not problem.is_sweep:
        reserved = min(int(policy.max_trials * RESERVED_FRACTION), MOST_RESERVED)
        budget_s = policy.time_budget_s * (1.0 - RESERVED_FRACTION)
        policy = replace(policy, max_trials=max(policy.max_trials - reserved, 1), time_budget_s=budget_s)
    return TwoLooks(first=replace(problem, policy=policy, legal=distinct(joined_rows([legal, named]))), axes=axes)


def _one_row_of_each_tuning(columns: CandidateColumns) -> IntColumn:
    _, rows = np.unique(columns.tuning, return_index=True)
    return np.sort(rows).astype(np.int64)


def second_look(looks: TwoLooks, result: SearchResult, *, whole: SearchProblem, draft: Draft) -> SearchProblem | None:
    """The search around the best of `result`; None where nothing was tried, or nothing is to be varied.

    `whole`: the problem before it was divided, whose limits hold for both looks together.
    """
    if not looks.axes or not result.trials:
        return None
    best = columns_of(_fastest_measured(result), gpus_per_node=draft.job.cluster.gpus_per_node)
    calibration = calibrate(draft, result.trials)
    around = combine(best, looks.axes, job=draft.job)
    rows = distinct(joined_rows([around, _promising(looks.axes, draft, calibration)]))
    estimates = estimate_space(draft.job, rows, calibration=calibration)
    kept = ~screened_out(estimates)
    kept[: len(around)] = True  # what was measured is no longer the model's to screen
    first, legal = looks.first, looks.first.legal if looks.first.legal is not None else looks.first.columns
    together = distinct(joined_rows([first.columns, rows.take(kept)]))
    problem = replace(
        whole,
        columns=together,
        priors=priors_of(estimate_space(draft.job, together, calibration=draft.calibration)),
        legal=distinct(joined_rows([legal, rows.take(kept)])),
    )
    return problem if len(together) > len(first.columns) else None


def _fastest_measured(result: SearchResult) -> tuple[Candidate, ...]:
    """The candidates of the fastest trials, within memory or not: a setting may bring them below the limit."""
    measured = [trial for trial in result.trials if isinstance(trial.outcome, Measured)]
    fastest = sorted(measured, key=lambda trial: (-_speed(trial.outcome), trial.key))
    return tuple({trial.key: trial.candidate for trial in fastest}.values())[:NUM_BEST]


def _speed(outcome: object) -> float:
    return outcome.tokens_per_s if isinstance(outcome, Measured) else 0.0


def _promising(axes: tuple[LocalAxis, ...], draft: Draft, calibration: Calibration) -> CandidateColumns:
    """The combinations of the layouts that the model puts in front when each takes the setting that saves most."""
    saving = draft.columns
    if any(axis.name == "cross_entropy" for axis in axes):
        saving = replace_setting(saving, "cross_entropy", CrossEntropy.CHUNKED)
    estimates = estimate_space(draft.job, saving, calibration=calibration)
    order = best_first(draft.job, saving, estimates, screened=screened_out(estimates))
    return combine(draft.columns.take(order[:NUM_PROMISING]), axes, job=draft.job)


def priors_of(estimates: EstimateColumns, kept: BoolColumn | None = None) -> Priors:
    """What the search takes of the model's estimates."""
    some = estimates if kept is None else estimates.take(kept)
    return Priors(
        tokens_per_s=some.tokens_per_s,
        step_time_s=some.step_time_s,
        memory_bytes=some.device_used_bytes.astype(np.float64),
        low_bytes=some.low_bytes.astype(np.float64),
        high_bytes=some.high_bytes.astype(np.float64),
        fits=some.fits,
    )
