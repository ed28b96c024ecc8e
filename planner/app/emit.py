"""Launch files of an existing plan, again: for another launcher, or into another folder."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from planner.app.jobs import read_planned_job
from planner.app.write import launch_files, write_files
from planner.emit import EmittedFile
from planner.errors import InputError
from planner.jobfile import dump_job, job_hash
from planner.rundir import RunDir, names
from planner.spec import JobSpec, Launcher, Plan


def emit_plan(
    plan_dir: Path, *, launcher: Launcher | None, out_dir: Path | None, overrides: tuple[str, ...] = ()
) -> tuple[Path, ...]:
    """Write the launch files for `launcher` (None: the job's own) into the plan folder, or with all that they need
    into `out_dir`, which is then a plan folder for that launcher.

    In the plan folder another launcher's start script is `launch/<launcher>.sh`: `launch.sh` stays the one that the
    plan was made with. Raises NotExpressible when the launcher cannot carry the plan, InputError for an override that
    would change more than how the plan is started.
    """
    run_dir = RunDir.open(plan_dir)
    plan = run_dir.read_plan()
    job = _with_launcher(_planned_job(run_dir, overrides), launcher)
    chosen = job.launch.launcher
    if out_dir is not None:
        return _write_elsewhere(run_dir, out_dir, plan=replace(plan, launcher=chosen), job=job)
    script = names.LAUNCH if chosen is plan.launcher else f"{names.LAUNCH_DIR}/{chosen.value}.sh"
    with run_dir.locked():
        trained = _as_trained(job, run_dir.read_text(names.TASK))
        return write_files(run_dir, launch_files(trained, plan.candidate, script=script))


def _planned_job(run_dir: RunDir, overrides: tuple[str, ...]) -> JobSpec:
    job = read_planned_job(run_dir, overrides)
    if overrides and job_hash(job) != job_hash(read_planned_job(run_dir)):
        raise InputError(
            "--set would change what was planned",
            why="model, training, cluster, search, command and environment decide the plan",
            fix="set only how it is started: launch.*, slurm.* and kubernetes.*; or plan again",
        )
    return job


def _with_launcher(job: JobSpec, launcher: Launcher | None) -> JobSpec:
    return replace(job, launch=replace(job.launch, launcher=launcher or job.launch.launcher))


def _as_trained(job: JobSpec, task_text: str) -> JobSpec:
    """The job with the checkpoint folder that the plan's task names, for a launcher that has to know where it lies."""
    if job.launch.launcher is not Launcher.KUBERNETES or not job.training.checkpoint_dir:
        return job
    told = str(json.loads(task_text)["training"]["checkpoint_dir"])
    return replace(job, training=replace(job.training, checkpoint_dir=told))


def _run_files(plan: Plan) -> tuple[str, ...]:
    """What the ranks read: of the plan, and of each fallback."""
    folders = ("", *(f"{fallback.folder}/" for fallback in plan.fallbacks))
    return tuple(f"{folder}{name}" for folder in folders for name in (names.DS_CONFIG, names.TASK))


def _text_elsewhere(run_dir: RunDir, name: str) -> str:
    """A file of the plan as it is right in another folder: checkpoints above this one (those of the plan that a
    survival plan belongs to) are named in full."""
    text = run_dir.read_text(name)
    if Path(name).name != names.TASK:
        return text
    task = json.loads(text)
    told = task["training"]["checkpoint_dir"]
    if Path(told).parts[:1] != ("..",):
        return text
    place = os.path.normpath(run_dir.path.resolve() / told)
    return text.replace(f'"checkpoint_dir": {json.dumps(told)}', f'"checkpoint_dir": {json.dumps(place)}')


def _write_elsewhere(run_dir: RunDir, out_dir: Path, *, plan: Plan, job: JobSpec) -> tuple[Path, ...]:
    """What a launch needs, and what makes the folder a plan's."""
    files = (
        *(EmittedFile(path=name, text=_text_elsewhere(run_dir, name)) for name in _run_files(plan)),
        EmittedFile(path=names.JOB, text=dump_job(job)),
        *launch_files(_as_trained(job, _text_elsewhere(run_dir, names.TASK)), plan.candidate, script=names.LAUNCH),
    )
    target = RunDir.create(out_dir, run_dir.job_hash)
    with target.locked():
        target.remove_plan()
        return (*write_files(target, files), target.write_plan(plan))
