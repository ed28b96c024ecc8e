"""Launch files of an existing plan, again: for another launcher, or into another folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from planner.app.jobs import read_planned_job
from planner.app.write import launch_files
from planner.rundir import RunDir, names
from planner.spec import Launcher

_CARRIED = (names.DS_CONFIG, names.TASK, names.PLAN)


def emit_plan(plan_dir: Path, *, launcher: Launcher | None, out_dir: Path | None) -> tuple[Path, ...]:
    """Write the launch files for `launcher` (None: the plan's own) into the plan folder, or with all that they need
    into `out_dir`. Raises NotExpressible when the launcher cannot carry the plan."""
    run_dir = RunDir.open(plan_dir)
    plan, job = run_dir.read_plan(), read_planned_job(run_dir)
    chosen = launcher or plan.launcher
    job = replace(job, launch=replace(job.launch, launcher=chosen))
    files = launch_files(job, plan.candidate, job_path=run_dir.file(names.JOB))
    if out_dir is None:
        with run_dir.locked():
            return tuple(run_dir.write_text(file.path, file.text, executable=file.executable) for file in files)
    target = RunDir.create(out_dir, run_dir.job_hash)
    with target.locked():
        carried = tuple(target.write_text(name, run_dir.read_text(name)) for name in _CARRIED)
        return carried + tuple(target.write_text(f.path, f.text, executable=f.executable) for f in files)
