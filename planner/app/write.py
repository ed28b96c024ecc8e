"""A validated choice as the files of its plan folder, and the same as a report's input.

Owns what goes into which file. `plan.yaml` is written last: a folder that has one is complete.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from planner import __version__
from planner.app.checkpoint_route import CONVERT_SCRIPT
from planner.app.draft import Draft, estimate_candidates
from planner.app.fallbacks import fallback_files
from planner.app.forecast import with_interval
from planner.app.origin import Origin
from planner.app.pin import Pinned
from planner.app.report_input import report_input
from planner.app.selection import NO_TRIAL, Selection
from planner.app.trials import deepspeed_version
from planner.app.write_run import run_promise
from planner.emit import (
    EmittedFile,
    LaunchPaths,
    render_conversion,
    render_ds_config_text,
    render_launch,
    render_task_text,
    stage_groups,
)
from planner.jobfile import job_hash
from planner.redaction import hide_url_passwords
from planner.report import ReportInput, render_report_html, render_report_markdown
from planner.rundir import RunDir, names
from planner.spec import (
    PLAN_FORMAT,
    Candidate,
    Fallback,
    JobSpec,
    Launcher,
    OutOfMemory,
    Plan,
    SearchSummary,
    ValidationStep,
)
from planner.spec._record import record
from planner.spec.replan import CheckpointWay, SurvivalPlan
from planner.trial import Machine, installed_packages


@record
class PlanParts:
    """All that a plan folder is written from."""

    selection: Selection
    validation: tuple[ValidationStep, ...]
    job: JobSpec
    machine: Machine
    draft: Draft
    trials_note: str
    pinned: Pinned | None = None
    uses: tuple[str, ...] = ()  # of a mixed cluster, all that were looked at, in words
    fallbacks: tuple[Fallback, ...] = ()
    origin: Origin | None = None  # an earlier plan that this one takes the place of
    survive: tuple[SurvivalPlan, ...] = ()
    survival_files: tuple[EmittedFile, ...] = ()  # of the plans for fewer nodes


def write_plan_folder(run_dir: RunDir, parts: PlanParts) -> tuple[Plan, ReportInput, tuple[Path, ...]]:
    """Write every file of the plan; each is whole or not there. An earlier plan's `plan.yaml` goes first, so that at no
    moment it stands beside files that are not its own."""
    job = parts.job
    plan = plan_of(parts)
    emitted = (*emitted_files(plan, parts, plan_dir=run_dir.path), *_conversion(plan, job))
    report = report_input(plan, parts.selection, draft=parts.draft, run_dir=run_dir, files=emitted)
    files = (
        *emitted,
        *parts.survival_files,
        EmittedFile(path=names.REPORT_MARKDOWN, text=render_report_markdown(report)),
        EmittedFile(path=names.REPORT_HTML, text=render_report_html(report)),
    )
    run_dir.remove_plan()
    _forget_survival(run_dir)
    return plan, report, (*write_files(run_dir, files), run_dir.write_plan(plan))


def _forget_survival(run_dir: RunDir) -> None:
    """Take away the plans for fewer nodes of an earlier planning in this folder, so that none stands beside a main plan
    that is not its own: a folder without `plan.yaml` is no plan."""
    for path in run_dir.path.glob(f"{names.SURVIVE_DIR}/*/{names.PLAN}"):
        path.unlink(missing_ok=True)
    run_dir.file(names.SURVIVE_SCRIPT).unlink(missing_ok=True)


def emitted_files(plan: Plan, parts: PlanParts, *, plan_dir: Path, folder: str = "") -> tuple[EmittedFile, ...]:
    """What a run is started from, in `folder` of the plan folder. Checkpoints in `plan_dir` go where it goes."""
    candidate, version = plan.candidate, deepspeed_version(parts.machine)
    job = with_interval(parts.job, candidate, step_time_s=plan.promise.step_time_s)
    promise = run_promise(plan.promise, plan.estimate)
    trained = portable_job(job, plan_dir, folder=folder)
    return (
        EmittedFile(path=names.DS_CONFIG, text=render_ds_config_text(candidate, job=job, deepspeed_version=version)),
        EmittedFile(path=names.TASK, text=render_task_text(candidate, job=trained, promise=promise)),
        *fallback_files(parts.fallbacks, job=trained, machine=parts.machine),
        *launch_files(job, candidate, script=names.LAUNCH),
    )


def _conversion(plan: Plan, job: JobSpec) -> tuple[EmittedFile, ...]:
    """The script for checkpoints of the plan before, or of a run on fewer nodes, where they need one."""
    replanned = plan.replanned is not None and bool(plan.replanned.checkpoint.script)
    survived = any(one.checkpoint is CheckpointWay.CONVERT for one in plan.survive)
    return (conversion_script(job, plan.candidate),) if replanned or survived else ()


def conversion_script(job: JobSpec, candidate: Candidate) -> EmittedFile:
    """The script that makes a checkpoint of another layout fit for the candidate."""
    return render_conversion(job, candidate, paths=launch_paths(CONVERT_SCRIPT))


def portable_job(job: JobSpec, plan_dir: Path, *, folder: str = "") -> JobSpec:
    """The job as the trainer, which starts in the plan folder (or a `folder` in it), is told of it: checkpoints that
    lie inside the plan folder are named from there, so that they go where it goes. Any other place keeps its absolute
    name, and so does every place on Kubernetes, whose pods see the plan folder read-only and checkpoints on a volume.
    """
    if job.launch.launcher is Launcher.KUBERNETES and not job.launch.command:
        return job
    checkpoints = Path(os.path.normpath(job.training.checkpoint_dir))
    if not job.training.checkpoint_dir or not checkpoints.is_relative_to(plan_dir.resolve()):
        return job
    inside = os.path.relpath(checkpoints, plan_dir.resolve() / folder)
    return replace(job, training=replace(job.training, checkpoint_dir=inside))


def write_files(run_dir: RunDir, files: Iterable[EmittedFile]) -> tuple[Path, ...]:
    """Write each file whole; the paths written."""
    return tuple(run_dir.write_text(file.path, file.text, executable=file.executable) for file in files)


def launch_files(job: JobSpec, candidate: Candidate, *, script: str) -> tuple[EmittedFile, ...]:
    """The start script for the job's launcher, named `script`, and what it reads."""
    return render_launch(job, candidate, launcher=job.launch.launcher, paths=launch_paths(script))


def launch_paths(script: str) -> LaunchPaths:
    """How a script of the plan folder finds what it needs, and by what it was made."""
    made_with = (Path(sys.argv[0]).name, *map(hide_url_passwords, sys.argv[1:]))  # `plan JOB` and `planner plan JOB`
    return LaunchPaths(script=script, python=sys.executable, made_with=made_with)


def refuse_unlaunchable(draft: Draft) -> None:
    """Render the start files of the simplest candidate once, before anything is tried: what a launcher cannot carry at
    all (a name, an environment value, an option) is refused now and not after the trials.

    Raises what `render_launch` raises. A refusal that depends on the layout (a script that is not told its tensor
    split, say) may not hold for the simplest, and is met when a plan is chosen.
    """
    columns = draft.columns
    row = int(
        np.lexsort((columns.checkpointed_layers != 0, columns.tensor_parallel_size * columns.pipeline_parallel_size))[0]
    )
    launch_files(draft.job, draft.row(row).candidate, script=names.LAUNCH)


def plan_of(parts: PlanParts) -> Plan:
    """The contents of `plan.yaml`."""
    selection, job, machine = parts.selection, parts.job, parts.machine
    (estimate,) = estimate_candidates(job, (selection.candidate,), calibration=selection.calibration)
    return Plan(
        format=PLAN_FORMAT,
        planner_version=__version__,
        job_hash=job_hash(job),
        candidate=selection.candidate,
        key=selection.candidate.key,
        promise=selection.promise,
        estimate=estimate,
        trial_number=selection.trial.number if selection.trial is not None else NO_TRIAL,
        runner_up=selection.runner_up,
        search=_summary(parts),
        validation=parts.validation,
        launcher=job.launch.launcher,
        versions=machine.versions,
        hardware=_hardware(parts),
        machine=machine.fingerprint,
        pin=parts.pinned.pin.text if parts.pinned is not None else "",
        packages=installed_packages(),
        fallbacks=parts.fallbacks,
        replanned=parts.origin.summary(selection.candidate) if parts.origin is not None else None,
        survive=parts.survive,
    )


def _summary(parts: PlanParts) -> SearchSummary:
    draft, selection = parts.draft, parts.selection
    note = parts.trials_note + (f"; {selection.stopped_because}" if selection.stopped_because else "")
    return SearchSummary(
        num_candidates=draft.num_candidates,
        num_screened=int(draft.screened.sum()),
        num_trials=len(selection.trials),
        num_out_of_memory=sum(isinstance(trial.outcome, OutOfMemory) for trial in selection.trials),
        rejected=tuple((rejection.rule, rejection.count) for rejection in draft.space.rejections),
        left_out_axes=tuple((axis.axis, axis.reason) for axis in draft.space.left_out_axes),
        trials_note=note,
    )


def _hardware(parts: PlanParts) -> tuple[tuple[str, str], ...]:
    cluster, machine = parts.job.cluster, parts.machine
    return (
        ("target", f"{_nodes(parts.job)} x {cluster.gpus_per_node} x {cluster.gpu.name}"),
        ("intra_node_link", cluster.intra_node_link.name),
        ("inter_node_link", cluster.inter_node_link.name),
        *(("group", words) for words in stage_groups(parts.job, parts.selection.candidate)),
        *(("considered", words) for words in parts.uses),
        ("planned_on", machine.describe()),
        *(("note", note) for note in machine.notes),
    )


def _nodes(job: JobSpec) -> str:
    """How many nodes the job may take: one number, or from where to where."""
    counts = job.node_counts
    return f"{counts[0]} to {counts[-1]} ({len(counts)} sizes)" if counts else str(job.cluster.nodes)
