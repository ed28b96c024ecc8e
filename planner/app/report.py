"""The report of an existing plan folder, made again from its files alone."""

from __future__ import annotations

from pathlib import Path

from planner.app.draft import draft_plan
from planner.app.jobs import read_planned_job
from planner.app.report_input import report_input
from planner.app.selection import Selection, calibrate
from planner.emit import FILES, EmittedFile
from planner.report import ReportInput
from planner.rundir import RunDir, is_there


def load_report(plan_dir: Path) -> ReportInput:
    """Read plan, job and trials, and price the candidates again. Raises InputError for a folder that is no plan."""
    run_dir = RunDir.open(plan_dir)
    plan, job = run_dir.read_plan(), read_planned_job(run_dir)
    trials = tuple(trial for trial in run_dir.read_trials() if trial.machine == plan.machine)
    draft = draft_plan(job)
    selection = Selection(
        candidate=plan.candidate,
        promise=plan.promise,
        trial=next((trial for trial in trials if trial.number == plan.trial_number), None),
        runner_up=plan.runner_up,
        trials=trials,
        calibration=calibrate(draft, trials),
    )
    return report_input(plan, selection, draft=draft, run_dir=run_dir, files=emitted_files(run_dir))


def emitted_files(run_dir: RunDir) -> tuple[EmittedFile, ...]:
    """The emitted files as they are in the folder; one that was removed is left out."""
    return tuple(EmittedFile(path=path, text=run_dir.read_text(path)) for path in FILES if is_there(run_dir.file(path)))
