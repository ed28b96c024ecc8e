"""Why this plan: the choice in sentences, from records alone."""

from __future__ import annotations

import math

from planner.report.forecast import explain_forecast
from planner.report.input import ReportInput
from planner.report.units import (
    format_bytes,
    format_count,
    format_fraction,
    format_seconds,
    format_tokens_per_s,
    plural,
)
from planner.report.wording import (
    OBJECTIVE_SUPERLATIVES,
    describe_differences,
    largest_saving,
    short_candidate,
)
from planner.spec.candidate import Candidate
from planner.spec.estimate import Estimate
from planner.spec.kinds import Launcher, Objective, Provenance
from planner.spec.plan import RunnerUp
from planner.spec.runs import together
from planner.spec.trial import Measured, TrialRecord

# A cause is named when the model sees at least this share of the lead that the trials show.
_SEEN_FRACTION = 0.5


def explain_choice(report: ReportInput) -> tuple[str, str, str]:
    """What was chosen, by how much over the next and why, and how far its memory is from the limit."""
    return explain_winner(report), explain_lead(report), explain_memory(report)


def explain_cautions(report: ReportInput) -> tuple[str, ...]:
    """What a person about to start the run should know: how long all of it takes, and what it will not do."""
    training, plan = report.job.training, report.plan
    if report.job.launch.command:
        if any(
            isinstance(trial.outcome, Measured) and trial.outcome.kind is Provenance.MEASURED for trial in report.trials
        ):
            return ("The trials ran your own script, with whatever it does beside its steps.", *_needed_there(report))
        return (
            "Your own script was not run: figures are those of the reference trainer on the same model.",
            *_needed_there(report),
        )
    whole_s = training.steps * plan.promise.step_time_s
    gpus = plan.candidate.layout.world_size
    said = []
    if not explain_forecast(report.forecast):
        said.append(
            f"All {format_count(training.steps)} steps of the job take about {format_seconds(whole_s)} "
            f"({_device_hours(gpus * whole_s / 3600)})."
        )
    if not training.data.path:
        said.append("The job names no data (training.data): the run trains on synthetic tokens.")
    if not training.checkpoint_dir:
        said.append("The job names no checkpoint folder (training.checkpoint): nothing of the run is saved.")
    return (*said, *_needed_there(report))


def _needed_there(report: ReportInput) -> tuple[str, ...]:
    """What has to be where the run starts, for a plan that was not measured on its own machine: the paths are those of
    the machine that planned."""
    job, plan = report.job, report.plan
    if job.cluster.nodes == 1 and plan.promise.step_time_kind is Provenance.MEASURED:
        return ()
    training = job.training
    named = (
        (job.launch.folder if job.launch.command else "", "the script's folder; SCRIPT_DIR names another"),
        (training.data.path, "training.data"),
        (training.run.eval_path, "its eval_path"),
        (training.run.pretrained, "training.pretrained"),
        ("" if job.launch.command else training.checkpoint_dir, "checkpoints, seen by all nodes"),
    )
    paths = [f"{path} ({what})" for path, what in named if path]
    software = "deepspeed" if job.launch.command else "meshplan and deepspeed"
    there = f", and these paths must be there: {'; '.join(paths)}" if paths else ""
    if plan.launcher is Launcher.KUBERNETES:
        return (f"The image needs {software} for its python3 (or the one that PYTHON names){there}.",)
    return (
        f"Every machine that it runs on needs the plan folder, and {software} installed for the interpreter that "
        f"PYTHON= names (PYTHON=/path/to/python bash launch.sh){there}.",
    )


def _device_hours(hours: float) -> str:
    return plural(round(hours), "device hour") if hours >= 0.5 else "less than a device hour"


def explain_winner(report: ReportInput) -> str:
    """The choice, its promise, and out of how many."""
    plan, promise, search = report.plan, report.plan.promise, report.plan.search
    superlative = OBJECTIVE_SUPERLATIVES[report.job.objective]
    speed = f"{format_tokens_per_s(promise.tokens_per_s)}, a step of {format_seconds(promise.step_time_s)}"
    legal = plural(search.num_candidates, "legal candidate")
    if search.num_candidates == 1:
        among = "the only legal candidate"
    elif plan.trial_number >= 0:
        num_tried = len({trial.key for trial in report.trials}) or search.num_trials
        among = f"{superlative} of {format_count(num_tried)} tried out of {legal}"
    else:
        cannot_fit = f", {format_count(search.num_screened)} of which cannot fit" if search.num_screened else ""
        among = f"{superlative} by the model of {legal}{cannot_fit}; none was tried"
    return f"{short_candidate(plan.candidate)}: {speed} ({promise.step_time_kind}), {among}."


def explain_lead(report: ReportInput) -> str:
    """By how much over the runner-up, in what they differ, and where the model sees the difference."""
    runner_up = report.plan.runner_up
    if runner_up is None:
        return "There is no runner-up: nothing else was found to fit."
    other = find_candidate(report, runner_up.key)
    named = short_candidate(other) if other is not None else runner_up.key
    speed = f"{format_tokens_per_s(runner_up.tokens_per_s)}, {runner_up.kind}"
    sentence = f"{_lead(report, runner_up)} ({named}; {speed})"
    if other is not None:
        sentence += f": {describe_differences(report.plan.candidate, other)}"
    return f"{sentence}{_noise_clause(report, runner_up) or _saving_clause(report, runner_up)}."


def explain_memory(report: ReportInput) -> str:
    """How far the worst rank is from the limit, and how much of that the job asked to keep free."""
    promise, search = report.plan.promise, report.plan.search
    left_bytes = promise.usable_bytes - promise.device_used_bytes
    sentence = (
        f"Its worst rank uses {format_bytes(promise.device_used_bytes)} of {format_bytes(promise.usable_bytes)} usable "
        f"({promise.memory_kind})"
    )
    if left_bytes >= 0:
        share = format_fraction(left_bytes / promise.usable_bytes)
        sentence += f", {format_bytes(left_bytes)} ({share}) from the limit"
    else:
        sentence += f", {format_bytes(-left_bytes)} over the limit"
    headroom = report.job.memory_headroom_fraction
    if headroom > 0:
        sentence += f"; the job asks for {format_fraction(headroom)} to be kept free"
    if search.num_out_of_memory:
        sentence += (
            f"; {format_count(search.num_out_of_memory)} of {plural(search.num_trials, 'trial')} ran out of memory"
        )
    return sentence + "."


def find_candidate(report: ReportInput, key: str) -> Candidate | None:
    """The candidate of this key, where the report holds one."""
    for trial in report.trials:
        if trial.key == key:
            return trial.candidate
    rows = (*report.tried, *report.untried, *report.screened)
    return next((row.candidate for row in rows if row.key == key), None)


def find_trial(report: ReportInput, key: str) -> tuple[TrialRecord, Measured] | None:
    """All runs of this key that came to their end, as one."""
    return together(report.trials, key)


def find_estimate(report: ReportInput, key: str) -> Estimate | None:
    """What the model says of this key, where the report holds it."""
    rows = (*report.tried, *report.untried, *report.screened)
    return next((row.estimate for row in rows if row.key == key), None)


def winning_trial(report: ReportInput) -> tuple[TrialRecord, Measured] | None:
    """All runs of the choice, as one: what the promise was made from; None for a plan chosen without a trial."""
    return together(report.trials, report.plan.key) if report.plan.trial_number >= 0 else None


def lead_fraction(report: ReportInput, runner_up: RunnerUp) -> float:
    """By which share of the runner-up's rate the choice is faster; negative when it is slower."""
    if runner_up.tokens_per_s <= 0:
        return math.inf
    return report.plan.promise.tokens_per_s / runner_up.tokens_per_s - 1


def _lead(report: ReportInput, runner_up: RunnerUp) -> str:
    lead = lead_fraction(report, runner_up)
    other = find_candidate(report, runner_up.key)
    if report.job.objective in (Objective.COST, Objective.DEADLINE) and other is not None:
        return _cost_lead(report.plan.candidate.layout.world_size / other.layout.world_size / (1 + lead), lead=lead)
    if abs(lead) < 0.0005:
        return "It is as fast as the next best"
    if lead > 0:
        return f"It is {format_fraction(lead)} faster than the next best"
    if report.job.objective is Objective.THROUGHPUT:
        return f"It is {format_fraction(-lead)} slower on paper than the next best"
    return f"It is {format_fraction(-lead)} slower than the next best by this objective"


def _cost_lead(ratio: float, *, lead: float) -> str:
    """`ratio`: a token's cost over the runner-up's, all GPUs at one price."""
    speed = f"{format_fraction(abs(lead))} {'faster' if lead > 0 else 'slower'}"
    if ratio > 1.0005:
        return f"A token costs {format_fraction(ratio - 1)} more than with the next best, at a speed {speed}"
    if ratio < 0.9995:
        return f"A token costs {format_fraction(1 - ratio)} less than with the next best, at a speed {speed}"
    return f"A token costs as much as with the next best, at a speed {speed}"


def _saving_clause(report: ReportInput, runner_up: RunnerUp) -> str:
    """Where the model sees the lead; nothing when the model does not see most of it, for then it is not the cause."""
    theirs, ours = find_estimate(report, runner_up.key), report.plan.estimate
    lead = lead_fraction(report, runner_up)
    if theirs is None or lead <= 0 or not math.isfinite(lead):
        return ""
    saving = largest_saving(ours.time, theirs.time)
    lead_s = report.plan.promise.step_time_s * lead  # the batch is the same, so the steps differ as the rates do
    seen_s = theirs.step_time_s - ours.step_time_s
    if saving is None or seen_s < _SEEN_FRACTION * lead_s:
        return ""
    label, saved_s = saving
    return f"; by the model it saves most on {label} ({format_seconds(saved_s)} a step)"


def _noise_clause(report: ReportInput, runner_up: RunnerUp) -> str:
    """A lead smaller than the two measurements' joint spread (robust standard deviations, added in squares)."""
    ours, theirs = winning_trial(report), find_trial(report, runner_up.key)
    if ours is None or theirs is None:
        return ""
    spread_s = math.hypot(ours[1].step_time_spread_s, theirs[1].step_time_spread_s)
    if abs(ours[1].step_time_s - theirs[1].step_time_s) >= spread_s:
        return ""
    return f"; the two are closer than their measurements' spread ({format_seconds(spread_s)}), so either would do"
