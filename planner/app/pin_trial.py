"""The trial of the user's own layout, where the search did not already try it: one more, however the limits stand."""

from __future__ import annotations

import time
from dataclasses import replace

from planner.app.pin import Pinned
from planner.rundir import RunDir, trial_log_name
from planner.search import Evaluator, SearchResult
from planner.spec import TrialRecord
from planner.spec._record import record


@record
class TriedPin:
    """`result`: the search's, with the pinned trial among those that may win where the job's ranges hold it. `trial` is
    None where there was nothing to try: the layout is refused, or cannot fit."""

    result: SearchResult
    trial: TrialRecord | None = None


def try_pinned(
    pinned: Pinned, result: SearchResult, *, evaluator: Evaluator, run_dir: RunDir, machine: str
) -> TriedPin:
    """Find the trial of the pinned layout, of this or an earlier run, or run it and make it durable."""
    candidate = pinned.candidate
    if candidate is None:
        return TriedPin(result=result)
    kept = run_dir.read_trials()
    found = next((one for one in reversed(kept) if (one.key, one.machine) == (candidate.key, machine)), None)
    if found is None:
        if pinned.screened:
            return TriedPin(result=result)
        number = max((trial.number for trial in kept), default=-1) + 1
        started_at_s, before_s = time.time(), time.monotonic()
        outcome = evaluator.evaluate(number, candidate)
        found = TrialRecord(
            number=number,
            key=candidate.key,
            candidate=candidate,
            outcome=outcome,
            started_at_s=started_at_s,
            duration_s=max(time.monotonic() - before_s, 0.0),
            machine=machine,
            log_name=trial_log_name(number),
        )
        run_dir.append_trial(found)
    is_new = all(trial.number != found.number for trial in result.trials)
    if pinned.is_searched and is_new:
        result = replace(result, trials=(*result.trials, found))
    return TriedPin(result=result, trial=found)
