"""Launch files of an existing plan, again: for another launcher, or into another folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from planner.app.jobs import read_planned_job
from planner.app.write import launch_files
from planner.emit import EmittedFile
from planner.rundir import RunDir, names
from planner.spec import Launcher

# What a launch needs, and what makes the folder a plan's.
_CARRIED = (names.DS_CONFIG, names.TASK, names.JOB, names.PLAN)


def emit_plan(plan_dir: Path, *, launcher: Launcher | None, out_dir: Path | None) -> tuple[Path, ...]:
    """Write the launch files for `launcher` (None: the plan's own) into the plan folder, or with all that they need
    into `out_dir`. Raises NotExpressible when the launcher cannot carry the plan.

    In the plan folder another launcher's start script is `launch/<launcher>.sh`: `launch.sh` stays the one that the
    plan was made with.
    """
    run_dir = RunDir.open(plan_dir)
    plan, job = run_dir.read_plan(), read_planned_job(run_dir)
    chosen = launcher or plan.launcher
    job = replace(job, launch=replace(job.launch, launcher=chosen))
    own = chosen is plan.launcher or out_dir is not None
    script = names.LAUNCH if own else f"{names.LAUNCH_DIR}/{chosen.value}.sh"
    files = launch_files(job, plan.candidate, script=script)
    if out_dir is None:
        return _write(run_dir, files)
    target = RunDir.create(out_dir, run_dir.job_hash)
    carried = [EmittedFile(path=name, text=run_dir.read_text(name)) for name in _CARRIED]
    return _write(target, (*carried, *files))


def _write(run_dir: RunDir, files: tuple[EmittedFile, ...]) -> tuple[Path, ...]:
    with run_dir.locked():
        return tuple(run_dir.write_text(file.path, file.text, executable=file.executable) for file in files)
