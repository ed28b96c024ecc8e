"""The winner's last trial, for what no other trial has to show: that a checkpoint fits too, and what `--profile` asks.

A job that saves checkpoints must have room for it, so the winner saves and loads one; where that does not fit, the next
candidate is the winner, and shows the same. Both runs of the winner count together: a checkpoint's memory is promised,
and a step that is neither the luckiest nor the last. Owns when that is done and how often. Leaves running it to the
evaluator.
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
from planner.report.units import format_bytes, format_seconds
from planner.rundir import RunDir, trial_log_name
from planner.search import SearchResult, choose_winner, memory_bytes
from planner.spec import JobSpec, Measured, Outcome, OutOfMemory, Phase, TrialPolicy, TrialRecord
from planner.spec._record import record
from planner.spec.runs import together

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
    """The result with the last trials of those that would win; as it is where there is nothing to show. One of them may
    go beyond the limits of the search, more only where those leave room; what the log shows already is not run again.
    """
    checks = checks_checkpoint(finals.job, folder=finals.run_dir.path, console=finals.console)
    if not checks and finals.profile_dir is None:
        return result
    earlier = _shown_before(result.trials)
    shown = set(earlier) if finals.profile_dir is None else set()
    for number in range(MAX_FINALS):
        winner = _winner(result, finals.draft)
        if winner is None or winner.key in shown:
            return result
        if (number or earlier) and not _has_room(result.trials, finals.job.trials):
            break
        shown.add(winner.key)
        what = " and ".join([*(["a checkpoint"] if checks else []), *(["a profile"] if finals.profile_dir else [])])
        finals.console.note(f"one more trial of {winner.key}, with {what}")
        last = _run(winner, finals, checks=checks)
        finals.console.trial_ended(last, best=winner)
        result = replace(result, trials=(*result.trials, last))
        _note_together(result.trials, winner.key, finals.console)
    winner = _winner(result, finals.draft)
    if checks and winner is not None and winner.key not in shown:
        finals.console.note(
            f"whether a checkpoint of {winner.key} fits was not tried: {len(shown | earlier)} other candidate(s) had a "
            "last trial, and the limits leave no more"
        )
    return result


def _shown_before(trials: tuple[TrialRecord, ...]) -> frozenset[str]:
    """The candidates whose checkpoint was tried, in this run or one before, however that ended."""
    return frozenset(trial.key for trial in trials if _tried_checkpoint(trial.outcome))


def _tried_checkpoint(outcome: Outcome) -> bool:
    if isinstance(outcome, Measured):
        return any(rank.checkpoint_peak_bytes for rank in outcome.ranks)
    return isinstance(outcome, OutOfMemory) and outcome.phase in (Phase.CHECKPOINT_SAVE, Phase.CHECKPOINT_LOAD)


def _has_room(trials: tuple[TrialRecord, ...], policy: TrialPolicy) -> bool:
    spent_s = sum(trial.duration_s for trial in trials)
    return len(trials) < policy.max_trials and spent_s < policy.time_budget_s


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
    choice = choose_winner(
        result.trials,
        objective=draft.job.objective,
        target=target_of(draft.job),
        memory_headroom_fraction=draft.job.memory_headroom_fraction,
        usable_bytes=draft.estimates.usable_bytes,
    )
    return choice.winner if choice is not None else None


def _note_together(trials: tuple[TrialRecord, ...], key: str, console: Progress) -> None:
    """Say what counts where a candidate ran more than once."""
    numbers = [trial.number for trial in trials if trial.key == key and isinstance(trial.outcome, Measured)]
    found = together(trials, key)
    if found is None or len(numbers) < 2:
        return
    measured = found[1]
    console.note(
        f"trials {', '.join(map(str, numbers[:-1]))} and {numbers[-1]} are runs of one candidate: what counts is the "
        f"median of all their steps, {format_seconds(measured.step_time_s)} (± "
        f"{format_seconds(measured.step_time_spread_s)}), and the most memory, {format_bytes(memory_bytes(measured))}"
    )


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
