"""A search as a program of its own, to be killed: `python -m tests.unit.search.kill_child FOLDER DIARY MAX_TRIALS`.

Every step is written down in the diary (`start N KEY` before a trial, `durable N` after it was made durable).
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from planner.rundir import RunDir
from planner.search import SearchPorts, run_search, study_place
from planner.spec import Candidate, Outcome, TrialRecord
from tests.unit.search.landscapes import ONE_NODE, TableEvaluator, make_landscape

JOB_HASH = "0123456789abcdef"
LANDSCAPE_SEED = 5
TRIAL_S = 0.02


class _SlowEvaluator:
    def __init__(self, diary: int) -> None:
        self._table = TableEvaluator(make_landscape(ONE_NODE, seed=LANDSCAPE_SEED))
        self._diary = diary

    def evaluate(self, number: int, candidate: Candidate) -> Outcome:
        os.write(self._diary, f"start {number} {candidate.key}\n".encode())
        time.sleep(TRIAL_S)
        return self._table.evaluate(number, candidate)


def main(folder: Path, diary_path: Path, max_trials: int) -> None:
    diary = os.open(diary_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    run_dir = RunDir.create(folder, JOB_HASH)

    def on_trial(trial: TrialRecord, best: TrialRecord | None) -> None:
        run_dir.append_trial(trial)
        os.write(diary, f"durable {trial.number}\n".encode())
        run_dir.write_text("report.md", f"{trial.number}\n" * 1000)

    with run_dir.locked():
        ports = SearchPorts(evaluator=_SlowEvaluator(diary), place=study_place(run_dir, url=None), on_trial=on_trial)
        space = make_landscape(ONE_NODE, seed=LANDSCAPE_SEED).problem(max_trials=max_trials, early_end=False)
        run_search(space, ports=ports, done=run_dir.read_trials())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
