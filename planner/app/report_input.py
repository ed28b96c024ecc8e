"""What a report is made from: a plan, its folder, and all that can be priced again.

Everything but the texts in the folder follows from job and trials, so that `planner report DIR` tells the same years
later. Owns the joining; the words are the report's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from planner.app.candidate_map import candidate_map
from planner.app.doubt import near_miss, sensitivity
from planner.app.draft import NUM_SHOWN, Draft, estimate_candidates, estimate_space, fitting
from planner.app.forecast import forecast_of
from planner.app.outlook import outlook_of
from planner.app.pin import find_pinned, pinned_layout
from planner.app.selection import Selection
from planner.app.uneven import setting_of
from planner.cost import REFERENCE_TRAINER, EstimateColumns, stage_profiles, stage_profiles_over_groups
from planner.emit import FILES, EmittedFile, explain_ds_config, explain_lines, render_ds_config
from planner.jobfile import parse_pin
from planner.redaction import hide_secrets
from planner.report import (
    CandidateRow,
    ExplainedLine,
    FileText,
    PinnedLayout,
    RejectionRow,
    ReportInput,
    TrialLog,
)
from planner.rundir import RunDir, names
from planner.spec import Candidate, JobSpec, Plan, StageProfile, TrialRecord
from planner.spec.columns import BoolColumn, find_row

_LOG_LINES, _LOG_CHARACTERS, _ALL_LOGS_CHARACTERS = 40, 6_000, 1_000_000
_FILE_CHARACTERS = 200_000  # a longer file is left to the folder


def report_input(
    plan: Plan, selection: Selection, *, draft: Draft, run_dir: RunDir, files: Iterable[EmittedFile]
) -> ReportInput:
    """What the report is made from. `files`: the emitted ones, as they are in the folder or will be."""
    job = draft.job
    estimates, fits = _calibrated(draft, selection)
    tried_keys = {trial.key for trial in selection.trials}
    open_rows = (draft.row(int(row)) for row in draft.order[: len(tried_keys) + NUM_SHOWN + 1])
    others = [row.candidate for row in open_rows if row.key not in tried_keys and row.key != plan.key]
    miss = near_miss(draft, estimates, fits=fits, selection=selection)
    second = _runner_up(plan, selection, draft=draft)
    known = (plan.candidate, *([miss.row.candidate] if miss is not None else []), *([second] if second else []))
    keep = tuple(row for candidate in known if (row := find_row(draft.columns, candidate)) is not None)
    return ReportInput(
        plan=plan,
        job=job,
        plan_dir=str(run_dir.path),
        launch_script=str(run_dir.path / names.LAUNCH),
        trials=selection.trials,
        tried=_rows(job, selection, tuple({trial.key: trial.candidate for trial in selection.trials}.values())),
        untried=_rows(job, selection, tuple(others[:NUM_SHOWN])),
        screened=tuple(draft.row(int(row)) for row in draft.order[::-1][:NUM_SHOWN] if draft.screened[row]),
        rejections=tuple(
            RejectionRow(rule=rejection.rule, count=rejection.count, sentence=rejection.sentence)
            for rejection in draft.space.rejections
        ),
        config_lines=config_lines(plan.candidate, job=job, deepspeed_version=dict(plan.versions).get("deepspeed", "")),
        outlook=outlook_of(draft),
        forecast=forecast_of(
            job, plan.candidate, step_time_s=plan.promise.step_time_s, kind=plan.promise.step_time_kind
        ),
        pinned=_pinned(plan, selection, draft=draft),
        stages=_stages(plan, selection, job=job),
        candidates=candidate_map(draft, estimates, fits=fits, trials=selection.trials, keep=keep),
        runner_up=next(iter(_rows(job, selection, (second,))), None) if second is not None else None,
        near_miss=miss,
        sensitivity=sensitivity(draft, estimates, fits=fits, selection=selection),
        logs=trial_logs(run_dir, selection.trials),
        files=tuple(file_text(file) for file in files if file.path in FILES and len(file.text) <= _FILE_CHARACTERS),
    )


def told_trials(run_dir: RunDir, *, machine: str) -> tuple[TrialRecord, ...]:
    """The trials that a report tells of: all of this machine in the folder, as they stand there, whoever asks."""
    return tuple(trial for trial in run_dir.read_trials() if trial.machine == machine)


def config_lines(candidate: Candidate, *, job: JobSpec, deepspeed_version: str) -> tuple[ExplainedLine, ...]:
    """Every setting of the emitted config with its reason."""
    config = render_ds_config(candidate, job=job, deepspeed_version=deepspeed_version)
    return tuple(
        ExplainedLine(key=key, value=json.dumps(_value_at(config, key)), why=why)
        for key, why in explain_ds_config(config)
    )


def trial_logs(run_dir: RunDir, trials: tuple[TrialRecord, ...]) -> tuple[TrialLog, ...]:
    """The ends of the trials' logs, secrets blotted out; where the folder has no log (it ran elsewhere, or the file was
    removed), what the outcome kept of it. Many trials share out what a report may hold. Trials of a shared study have
    numbers of their own, so that another planner's log name is no file here."""
    share = min(_LOG_CHARACTERS, _ALL_LOGS_CHARACTERS // max(len(trials), 1))
    return tuple(log for trial in trials if (log := _log(run_dir, trial, share)) is not None)


def _log(run_dir: RunDir, trial: TrialRecord, most: int) -> TrialLog | None:
    kept = str(getattr(trial.outcome, "log_tail", ""))
    text = run_dir.read_log_end(trial.log_name, most=most) if trial.log_name else ""
    text = text or kept
    if not text.strip():
        return None
    lines = text.rstrip().splitlines()
    shown = "\n".join(lines[-_LOG_LINES:])[-most:]
    return TrialLog(number=trial.number, text=hide_secrets(shown, ()), is_cut=len(shown) < len(text.rstrip()))


def _calibrated(draft: Draft, selection: Selection) -> tuple[EstimateColumns, BoolColumn]:
    """All candidates as the calibrated model prices them, and which of them a plan might promise."""
    if not selection.calibration.num_points:
        return draft.estimates, draft.fitting()
    estimates = estimate_space(draft.job, draft.columns, calibration=selection.calibration)
    return estimates, fitting(draft.job, estimates)


def _runner_up(plan: Plan, selection: Selection, *, draft: Draft) -> Candidate | None:
    """The candidate behind the plan's runner-up: a trial's, or the model's next best."""
    if plan.runner_up is None:
        return None
    for trial in selection.trials:
        if trial.key == plan.runner_up.key:
            return trial.candidate
    ranked = (draft.row(int(row)).candidate for row in draft.order[: 2 * NUM_SHOWN])
    return next((candidate for candidate in ranked if candidate.key == plan.runner_up.key), None)


def _stages(plan: Plan, selection: Selection, *, job: JobSpec) -> tuple[StageProfile, ...]:
    if job.cluster.groups:
        return stage_profiles_over_groups(plan.candidate, setting_of(job))
    return stage_profiles(
        plan.candidate,
        model=job.model,
        training=job.training,
        cluster=job.cluster,
        profile=REFERENCE_TRAINER,
        calibration=selection.calibration,
    )


def _pinned(plan: Plan, selection: Selection, *, draft: Draft) -> PinnedLayout | None:
    if not plan.pin:
        return None
    pinned = find_pinned(draft, parse_pin(plan.pin))
    return pinned_layout(draft, pinned, trials=selection.trials, calibration=selection.calibration)


def _rows(job: JobSpec, selection: Selection, candidates: tuple[Candidate, ...]) -> tuple[CandidateRow, ...]:
    estimates = estimate_candidates(job, candidates, calibration=selection.calibration) if candidates else ()
    return tuple(
        CandidateRow(key=candidate.key, candidate=candidate, estimate=estimate)
        for candidate, estimate in zip(candidates, estimates)
    )


def file_text(file: EmittedFile) -> FileText:
    """The lines with their reasons. What the job's environment keeps secret is blotted out: reports are passed on."""
    lines = tuple(hide_secrets(line, ()) for line in file.text.splitlines())
    return FileText(
        path=file.path, does=FILES.get(file.path, ""), lines=lines, whys=explain_lines(file.path, file.text)
    )


def _value_at(config: dict[str, object], dotted: str) -> object:
    value: object = config
    for part in dotted.split("."):
        value = value[part] if isinstance(value, dict) else None
    return value
