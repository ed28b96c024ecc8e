"""The winner's last trial, for what no other trial has to show: that a checkpoint fits too, and what `--profile` asks.

A job that saves checkpoints must have room for it, so the winner saves and loads one; where that does not fit, the next
candidate is the winner, and shows the same. Owns when that is done and how often. Leaves running it to the evaluator.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

from planner.app.draft import Draft
from planner.app.forecast import target_of
from planner.app.progress import Progress
from planner.app.trials import TrialEvaluator
from planner.rundir import RunDir, trial_log_name
from planner.search import SearchResult, choose_winner
from planner.spec import JobSpec, Measured, TrialRecord
from planner.spec._record import record

MAX_FINALS = 3
# Weights in the training precision, fp32 master weights and two moments; the frozen rest of LoRA is saved as well.
CHECKPOINT_BYTES_PER_PARAMETER = 14
_ROOM_FACTOR = 1.2
PROFILE_DIR = "profile"


@record
class Finals:
    """What the last trial is for. `profile_dir`: None without `--profile`."""

    evaluator: TrialEvaluator
    run_dir: RunDir
    draft: Draft
    machine: str
    console: Progress
    profile_dir: Path | None = None

    @property
    def job(self) -> JobSpec:
        return self.draft.job


def with_final_trial(result: SearchResult, finals: Finals) -> SearchResult:
    """The result with the last trials of those that would win; as it is where there is nothing to show."""
    checks = checks_checkpoint(finals.job, folder=finals.run_dir.path, console=finals.console)
    if not checks and finals.profile_dir is None:
        return result
    shown: set[str] = set()
    for _ in range(MAX_FINALS):
        winner = _winner(result, finals.draft)
        if winner is None or winner.key in shown:
            return result
        shown.add(winner.key)
        what = " and ".join([*(["a checkpoint"] if checks else []), *(["a profile"] if finals.profile_dir else [])])
        finals.console.note(f"one more trial of {winner.key}, with {what}")
        last = _run(winner, finals, checks=checks)
        finals.console.trial_ended(last, best=winner)
        result = replace(result, trials=(*result.trials, _believed(winner, last)))
    return result


def checks_checkpoint(job: JobSpec, *, folder: Path, console: Progress) -> bool:
    """Whether the winner saves and loads a checkpoint: the job saves some, and the plan folder's disk has room."""
    if not job.training.checkpoint_dir or job.launch.command:
        return False
    needed = int(job.model.num_parameters * CHECKPOINT_BYTES_PER_PARAMETER * _ROOM_FACTOR)
    free = shutil.disk_usage(folder).free
    if free >= needed:
        return True
    console.note(
        f"whether a checkpoint fits into memory was not tried: it takes {needed / 2**30:.0f} GiB on the disk of "
        f"{folder}, which has {free / 2**30:.0f} free"
    )
    return False


def _winner(result: SearchResult, draft: Draft) -> TrialRecord | None:
    """Of several trials of one candidate the last one counts."""
    last = {trial.key: trial for trial in result.trials}
    choice = choose_winner(
        tuple(last.values()),
        objective=draft.job.objective,
        target=target_of(draft.job),
        memory_headroom_fraction=draft.job.memory_headroom_fraction,
        usable_bytes=draft.estimates.usable_bytes,
    )
    return choice.winner if choice is not None else None


def _believed(winner: TrialRecord, last: TrialRecord) -> TrialRecord:
    """The last trial with the step time of the one that won: it is judged by its memory. Two runs of one candidate
    differ in speed by chance, and a third candidate must not win by that."""
    ran, again = winner.outcome, last.outcome
    if not isinstance(ran, Measured) or not isinstance(again, Measured):
        return last
    outcome = replace(
        again,
        step_time_s=ran.step_time_s,
        step_time_spread_s=ran.step_time_spread_s,
        tokens_per_s=ran.tokens_per_s,
    )
    return replace(last, outcome=outcome)


def _run(winner: TrialRecord, finals: Finals, *, checks: bool) -> TrialRecord:
    number = max(trial.number for trial in finals.run_dir.read_trials()) + 1
    started_at_s, before_s = time.time(), time.monotonic()
    outcome = finals.evaluator.evaluate_last(
        number, winner.candidate, check_checkpoint=checks, profile_dir=finals.profile_dir
    )
    last = TrialRecord(
        number=number,
        key=winner.key,
        candidate=winner.candidate,
        outcome=outcome,
        started_at_s=started_at_s,
        duration_s=max(time.monotonic() - before_s, 0.0),
        machine=finals.machine,
        log_name=trial_log_name(number),
        worker=winner.worker,
    )
    finals.run_dir.append_trial(last)
    return last
