"""One planner of a shared study as a program of its own, with trials that only sleep.

    python -m tests.integration.study_worker URL FOLDER PAUSE_S [--join]

Prints a line when a trial starts and one when it ends, so that a test can kill it at a chosen moment.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

from planner.rundir import RunDir
from planner.search import SearchPorts, SearchProblem, run_search, study_place
from planner.spec import Candidate, Outcome, TrialPolicy, TrialRecord
from tests.unit.search.builders import candidate, measured, problem

GRACE_S = 5.0  # as short as a busy machine allows: a planner that stands still for longer is taken for dead
JOB_HASH = "5ba4ed" * 10
SOME = tuple(
    candidate(micro=micro, gas=32 // micro, zero=zero, checkpointing=checkpointing)
    for micro in (1, 2, 4, 8)
    for zero in (0, 1, 2)
    for checkpointing in ("none", "full")
)


def shared_problem(*, worker: str) -> SearchProblem:
    """24 candidates, all of them to be tried; kills between a trial and its telling may have some tried twice."""
    space = problem(SOME, policy=TrialPolicy(max_trials=10 * len(SOME), time_budget_s=1e9))
    return replace(space, worker=worker)


def speed_of(one: Candidate) -> float:
    """What a trial of the candidate measures: each its own, far enough apart to be no tie."""
    return 1000.0 * 1.05 ** SOME.index(one)


class _Sleeper:
    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s

    def evaluate(self, number: int, candidate: Candidate) -> Outcome:
        print(f"begin {candidate.key}", flush=True)
        time.sleep(self._pause_s)
        return measured(speed_of(candidate))


def main(url: str, folder: str, pause_s: str, *flags: str) -> None:
    run_dir = RunDir.create(Path(folder), JOB_HASH)
    with run_dir.locked():
        place = study_place(run_dir, url=url, machine="m", join="--join" in flags)
        place = replace(place, beat_s=0.2, grace_s=GRACE_S)

        def keep(trial: TrialRecord, best: TrialRecord | None) -> None:
            run_dir.append_trial(trial)
            if trial.worker == place.worker:
                print(f"end {trial.key}", flush=True)

        ports = SearchPorts(evaluator=_Sleeper(float(pause_s)), place=place, on_trial=keep)
        result = run_search(shared_problem(worker=place.worker), ports=ports, done=run_dir.read_trials())
    assert result.choice is not None
    print(f"winner {result.choice.winner.key} of {len(result.trials)}: {result.stopped_because}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
