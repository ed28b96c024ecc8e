"""What a search will do and how long it can take: said before it starts and while it runs. Pure."""

from __future__ import annotations

import statistics

import numpy as np

from planner.search.acquisition import TRIAL_OVERHEAD_S, acquisition
from planner.search.belief import Guide
from planner.search.history import trials_of_machine
from planner.search.problem import SearchProblem
from planner.spec._record import record
from planner.spec.trial import Measured, TrialRecord

_NUM_FIRST = 5


@record
class SearchPreview:
    """`num_trials` can still run at most; `first_rows` are those tried first, as far as that is known before any ends
    (no candidate is, for `random` and `tpe`)."""

    is_sweep: bool
    sampler: str
    num_candidates: int
    num_trials: int
    num_done: int
    longest_s: float
    expected_s: float
    first_rows: tuple[int, ...]


def preview_search(problem: SearchProblem, *, done: tuple[TrialRecord, ...]) -> SearchPreview:
    """What `run_search` would do with this problem after the `done` trials.

    `longest_s` bounds it from above: no trial starts after the time budget, and none outlives its time limit.
    `expected_s` takes all trials that may still run at the pace of those that ended.
    """
    done = trials_of_machine(done, problem.machine)
    num_trials = trials_left(problem, done)
    budget_left = max(problem.policy.time_budget_s - spent_s(done), 0.0)
    timeout = problem.policy.timeout_s
    by_budget = budget_left + timeout if budget_left > 0 else 0.0
    return SearchPreview(
        is_sweep=problem.is_sweep,
        sampler="sweep" if problem.is_sweep else problem.policy.sampler,
        num_candidates=len(problem.columns),
        num_trials=num_trials,
        num_done=len(done),
        longest_s=min(num_trials * timeout, by_budget),
        expected_s=expected_left_s(problem, done=done),
        first_rows=_first_rows(problem) if num_trials and not done else (),
    )


def trials_left(problem: SearchProblem, done: tuple[TrialRecord, ...]) -> int:
    """How many trials may still start."""
    return max(min(problem.policy.max_trials, len(problem.columns)) - len(done), 0)


def spent_s(done: tuple[TrialRecord, ...]) -> float:
    """The part of the time budget that trials have used; what lies between them is not counted."""
    return sum(trial.duration_s for trial in done)


def expected_trial_s(problem: SearchProblem, *, done: tuple[TrialRecord, ...]) -> float:
    """How long the next trial probably takes: the median of those measured, else the analytic step time of the better
    half of the candidates plus what a trial costs beyond its steps."""
    measured = [trial.duration_s for trial in done if isinstance(trial.outcome, Measured)]
    if measured:
        return statistics.median(measured)
    if not len(problem.columns):
        return 0.0
    step_s = float(np.quantile(problem.priors.step_time_s, 0.25))
    return min(TRIAL_OVERHEAD_S + (problem.policy.steps + 1) * step_s, problem.policy.timeout_s)


def expected_left_s(problem: SearchProblem, *, done: tuple[TrialRecord, ...]) -> float:
    """Expected time until the search ends: all trials that may still run, within the time budget."""
    budget_left = max(problem.policy.time_budget_s - spent_s(done), 0.0)
    return min(trials_left(problem, done) * expected_trial_s(problem, done=done), budget_left)


def _first_rows(problem: SearchProblem) -> tuple[int, ...]:
    guide = Guide(problem)
    if problem.is_sweep:
        return tuple(guide.order()[:_NUM_FIRST].tolist())
    if problem.policy.sampler != "guided":
        return ()
    belief = guide.believe(np.ones(len(problem.columns), dtype=np.bool_), ())
    best_first = np.argsort(-acquisition(guide, belief, None), kind="stable")
    return tuple(belief.rows[best_first[:_NUM_FIRST]].tolist())
