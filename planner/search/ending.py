"""When a search ends, and how it says why."""

from __future__ import annotations

import numpy as np

from planner.search.acquisition import GAIN_CHANCE, MIN_TRIALS_BEFORE_END, chance_of_gain, incumbent_of
from planner.search.belief import Guide
from planner.search.history import Ended, Observation
from planner.search.problem import SearchProblem
from planner.search.samplers import generator, open_rows


def reason_to_stop(
    guide: Guide, observations: tuple[Observation, ...], *, num_done: int, spent_s: float, expected_s: float
) -> str:
    """One sentence when no further trial should start, "" otherwise.

    `spent_s` is the time used so far, `expected_s` what the next trial probably takes: the budget is not overrun
    knowingly, except by the first trial.
    """
    problem = guide.problem
    candidates = open_rows(problem, observations)
    if not np.any(candidates):
        return _nothing_left(problem, observations)
    if num_done >= problem.policy.max_trials:
        return f"the limit of {problem.policy.max_trials} trials was reached"
    if num_done and spent_s + expected_s > problem.policy.time_budget_s:
        return f"the time budget of {problem.policy.time_budget_s:.0f} s leaves no room for another trial"
    if problem.early_end and problem.policy.sampler == "guided" and not problem.is_sweep:
        return _nothing_better(guide, observations)
    return ""


def _nothing_left(problem: SearchProblem, observations: tuple[Observation, ...]) -> str:
    num_tried = sum(seen.ended is not Ended.RUNNING for seen in observations)
    num_proven = len(problem.columns) - len({seen.row for seen in observations})
    if num_proven:
        return f"{num_tried} candidates were tried and the other {num_proven} are proven to run out of memory"
    return f"all {len(problem.columns)} candidates were tried"


def _nothing_better(guide: Guide, observations: tuple[Observation, ...]) -> str:
    problem = guide.problem
    best = incumbent_of(problem, observations)
    num_measured = sum(seen.ended is Ended.MEASURED for seen in observations)
    if best is None or num_measured < MIN_TRIALS_BEFORE_END:
        return ""
    belief = guide.believe(open_rows(problem, observations), observations)
    chance = chance_of_gain(guide, belief, best, rng=generator(problem, observations))
    if chance.probability >= GAIN_CHANCE:
        return ""
    return (
        f"after {num_measured} measured trials, the chance that any untried candidate is more than "
        f"{chance.tolerance_fraction:.1%} better is below {GAIN_CHANCE:.0%}"
    )
