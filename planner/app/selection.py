"""Which candidate the plan is about, what it promises, and which came next. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from planner.app.draft import Draft, estimate_candidates, nearest_to_fitting, what_would_fit
from planner.app.forecast import target_of
from planner.cost import Calibration, fit_calibration
from planner.errors import NoFeasiblePlan, PlannerError, TrialsUnavailable
from planner.report import CandidateRow
from planner.report.units import format_bytes
from planner.report.wording import outcome_sentence, outcome_word, short_candidate
from planner.search import Choice, SearchResult, choose_winner, memory_bytes
from planner.spec import (
    Candidate,
    Estimate,
    HostOutOfMemory,
    Measured,
    OutOfMemory,
    Promise,
    Provenance,
    RunnerUp,
    TimedOut,
    TrialRecord,
)
from planner.spec._record import record
from planner.spec.runs import one_per_candidate

NO_TRIAL = -1


@record
class Selection:
    """`trial`: the winning one (with all runs of its candidate together), None when the model alone decided."""

    candidate: Candidate
    promise: Promise
    trial: TrialRecord | None
    runner_up: RunnerUp | None
    trials: tuple[TrialRecord, ...] = ()
    num_pruned: int = 0
    stopped_because: str = ""
    calibration: Calibration = Calibration()


def choices_by_model(draft: Draft) -> Iterator[Selection]:
    """The candidates that fit with the headroom, best first by the analytic model alone.

    Raises NoFeasiblePlan when there is none.
    """
    ranked = draft.order[draft.fitting()[draft.order]].tolist()
    if not ranked:
        raise _none_fits_safely(draft)
    for place, row in enumerate(ranked):
        chosen = draft.row(row)
        second = draft.row(ranked[place + 1]) if place + 1 < len(ranked) else None
        yield Selection(
            candidate=chosen.candidate,
            promise=_computed_promise(chosen.estimate, draft.calibration),
            trial=None,
            runner_up=_computed_runner_up(second) if second is not None else None,
            calibration=draft.calibration,
        )


def choices_by_trials(draft: Draft, result: SearchResult) -> Iterator[Selection]:
    """The candidates that may win by their trials, best first; the runs of one candidate count together.

    Raises NoFeasiblePlan or TrialsUnavailable, saying why, when there is none.
    """
    usable_bytes = draft.estimates.usable_bytes
    calibration = calibrate(draft, result.trials)
    left = {trial.key: trial for trial in one_per_candidate(result.trials)}
    choice = _winner(draft, left)
    if choice is None:
        raise _no_winner(draft, result)
    while choice is not None:
        winner, second = choice.winner, choice.runner_up
        yield Selection(
            candidate=winner.candidate,
            promise=measured_promise(winner, usable_bytes=usable_bytes),
            trial=winner,
            runner_up=_measured_runner_up(second) if second is not None else None,
            trials=result.trials,
            num_pruned=result.num_pruned,
            stopped_because=result.stopped_because,
            calibration=calibration,
        )
        del left[winner.key]
        choice = _winner(draft, left)


def _winner(draft: Draft, trials: dict[str, TrialRecord]) -> Choice | None:
    return choose_winner(
        tuple(trials.values()),
        objective=draft.job.objective,
        memory_headroom_fraction=draft.job.memory_headroom_fraction,
        usable_bytes=draft.estimates.usable_bytes,
        target=target_of(draft.job),
    )


def _computed_promise(estimate: Estimate, calibration: Calibration) -> Promise:
    """Memory may be corrected where step times are not: trials on another GPU still tell what a rank allocates."""
    return Promise(
        step_time_s=estimate.step_time_s,
        step_time_kind=estimate.kind,
        tokens_per_s=estimate.tokens_per_s,
        device_used_bytes=estimate.memory.device_used_bytes,
        memory_kind=Provenance.FITTED if calibration.corrects_memory else estimate.kind,
        usable_bytes=estimate.memory.usable_bytes,
    )


def _computed_runner_up(row: CandidateRow) -> RunnerUp:
    return RunnerUp(key=row.key, tokens_per_s=row.estimate.tokens_per_s, kind=row.estimate.kind)


def calibrate(draft: Draft, trials: tuple[TrialRecord, ...]) -> Calibration:
    """What trials teach the model about this machine and model: those measured, and those that ran out of memory; each
    candidate once."""
    tried = [trial for trial in one_per_candidate(trials) if isinstance(trial.outcome, Measured | OutOfMemory)]
    if not tried:
        return draft.calibration
    candidates = tuple(trial.candidate for trial in tried)
    ends = list(zip(estimate_candidates(draft.job, candidates), (trial.outcome for trial in tried)))
    return fit_calibration(
        [(estimate, end) for estimate, end in ends if isinstance(end, Measured)],
        ran_out=[estimate for estimate, end in ends if isinstance(end, OutOfMemory)],
    )


def measured_promise(trial: TrialRecord, *, usable_bytes: int) -> Promise:
    """What a measured candidate lets the plan promise: the figures of all its runs together."""
    measured = trial.outcome
    if not isinstance(measured, Measured):
        raise TypeError(f"trial {trial.number} was not measured")
    return Promise(
        step_time_s=measured.step_time_s,
        step_time_kind=measured.step_time_kind,
        tokens_per_s=measured.tokens_per_s,
        device_used_bytes=memory_bytes(measured),
        memory_kind=measured.kind,
        usable_bytes=usable_bytes,
        # An emulated rank's losses are not those of the job.
        first_losses=measured.ranks[0].losses if measured.kind is Provenance.MEASURED else (),
    )


def _measured_runner_up(trial: TrialRecord) -> RunnerUp:
    measured = trial.outcome
    if not isinstance(measured, Measured):
        raise TypeError(f"trial {trial.number} was not measured")
    return RunnerUp(key=trial.key, tokens_per_s=measured.tokens_per_s, kind=measured.step_time_kind)


def _none_fits_safely(draft: Draft) -> NoFeasiblePlan:
    nearest = nearest_to_fitting(draft)
    memory, name = nearest.estimate.memory, short_candidate(nearest.candidate)
    headroom = draft.job.memory_headroom_fraction
    return NoFeasiblePlan(
        f"none of the {len(draft.columns)} legal candidates is sure to fit into memory",
        why=f"the nearest, {name}, may need up to {format_bytes(memory.high_bytes)} (computed) of "
        f"{format_bytes(memory.usable_bytes)} usable with {headroom:.0%} to be kept free",
        fix=f"try it with --trials real on the target, or lower memory_headroom; or {what_would_fit(draft.job)}",
        tally=(("too-large-for-memory", len(draft.columns)),),
    )


def _no_winner(draft: Draft, result: SearchResult) -> PlannerError:
    """No trial may win: out of memory is a finding about the job, anything else about this machine."""
    if not result.trials:
        return TrialsUnavailable(
            "no trial was run",
            why=result.stopped_because,
            fix="allow more with --max-trials or --time-budget, or decide without trials: --trials none",
        )
    tally = tuple(sorted(Counter(outcome_word(trial.outcome) for trial in result.trials).items()))
    ends = "they ended so: " + ", ".join(f"{count} {word}" for word, count in tally)
    if any(isinstance(trial.outcome, OutOfMemory | HostOutOfMemory | Measured) for trial in result.trials):
        return NoFeasiblePlan(
            f"none of the {len(result.trials)} trials ran within the memory that may be used",
            why=f"{ends}; {result.stopped_because}",
            fix=_more_memory(draft, result),
            tally=tally,
        )
    last = result.trials[-1].outcome
    why = f"{ends}; the last: {outcome_sentence(last)}"
    fix = "read the logs under logs/ in the plan folder"
    if isinstance(last, TimedOut):
        fix = "allow each trial more time (trials.timeout), or fewer steps (trials.steps)"
    return TrialsUnavailable(f"none of the {len(result.trials)} trials ran", why=why, fix=fix)


def _more_memory(draft: Draft, result: SearchResult) -> str:
    """What may help when memory was the trouble, nearest first."""
    ways = ["allow more trials (--max-trials, --time-budget)"] if result.num_untried else []
    if any(isinstance(trial.outcome, Measured) for trial in result.trials):
        ways.append("lower memory_headroom")
    return "; or ".join([*ways, what_would_fit(draft.job)])
