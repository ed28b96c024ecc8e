"""A close race run once more: the winner and the runner-up, when their lead lies inside the spread of their steps.

The faster of two alike candidates wins by luck half of the time, and a lucky first measurement flatters it. A second
one of both, taken one after the other, decides; it stands in the trial log like any trial, and the runs of one
candidate count together.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

from planner.rundir import RunDir, trial_log_name
from planner.search import Evaluator, SearchResult
from planner.spec import Measured, TrialPolicy, TrialRecord


def close_race(result: SearchResult, policy: TrialPolicy, *, spent_s: float) -> tuple[TrialRecord, ...]:
    """Winner and runner-up when neither the figures tell them apart nor the limits forbid two more trials, and neither
    was measured twice; else (). Pure."""
    choice = result.choice
    if choice is None or choice.runner_up is None:
        return ()
    pair = (choice.winner, choice.runner_up)
    if any(sum(other.key == one.key for other in result.trials) > 1 for one in pair) or pair[0].key == pair[1].key:
        return ()
    has_room = len(result.trials) + len(pair) <= policy.max_trials
    has_time = spent_s + sum(one.duration_s for one in pair) <= policy.time_budget_s
    return pair if has_room and has_time and _within_spread(*pair) else ()


def _within_spread(one: TrialRecord, other: TrialRecord) -> bool:
    """The step times differ by less than their joint spread (robust standard deviations, added in squares)."""
    first, second = one.outcome, other.outcome
    if not isinstance(first, Measured) or not isinstance(second, Measured):
        return False
    spread_s = math.hypot(first.step_time_spread_s, second.step_time_spread_s)
    return abs(first.step_time_s - second.step_time_s) < spread_s


def measure_again(
    pair: tuple[TrialRecord, ...], result: SearchResult, *, evaluator: Evaluator, run_dir: RunDir
) -> tuple[SearchResult, tuple[TrialRecord, ...]]:
    """Run both once more and make them durable; the result with the new trials among its own. A second run that
    crashes counts for nothing: the first one's figures stay."""
    again: list[TrialRecord] = []
    for earlier in pair:
        number = max((trial.number for trial in run_dir.read_trials()), default=-1) + 1
        started_at_s, before_s = time.time(), time.monotonic()
        outcome = evaluator.evaluate(number, earlier.candidate)
        trial = replace(
            earlier,
            number=number,
            outcome=outcome,
            started_at_s=started_at_s,
            duration_s=max(time.monotonic() - before_s, 0.0),
            log_name=trial_log_name(number),
        )
        run_dir.append_trial(trial)
        again.append(trial)
    return replace(result, trials=(*result.trials, *again)), tuple(again)
