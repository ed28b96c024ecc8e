"""The report of an existing plan folder, made again from its files alone."""

from __future__ import annotations

from pathlib import Path

from planner.app.draft import draft_plan
from planner.app.jobs import read_planned_job
from planner.app.report_input import report_input, told_trials
from planner.app.selection import Selection, calibrate
from planner.emit import FILES, EmittedFile
from planner.report import ReportInput
from planner.rundir import RunDir, is_there
from planner.spec.runs import together


def load_report(plan_dir: Path) -> ReportInput:
    """Read plan, job and trials, and price the candidates again. Raises InputError for a folder that is no plan."""
    run_dir = RunDir.open(plan_dir)
    plan, job = run_dir.read_plan(), read_planned_job(run_dir)
    # Those that the plan was made from: not those of an earlier planning that it did not look at, nor later ones.
    trials = told_trials(run_dir, machine=plan.machine)[: plan.search.num_trials]
    draft, found = draft_plan(job), together(trials, plan.key)
    selection = Selection(
        candidate=plan.candidate,
        promise=plan.promise,
        trial=found[0] if found is not None and plan.trial_number >= 0 else None,
        runner_up=plan.runner_up,
        trials=trials,
        calibration=calibrate(draft, trials),
    )
    return report_input(plan, selection, draft=draft, run_dir=run_dir, files=emitted_files(run_dir))


def emitted_files(run_dir: RunDir) -> tuple[EmittedFile, ...]:
    """The emitted files as they are in the folder; one that was removed is left out."""
    return tuple(EmittedFile(path=path, text=run_dir.read_text(path)) for path in FILES if is_there(run_dir.file(path)))
