"""Plans again when hardware or software changed, with what still holds of the old plan. The old folder is only read.

Owns reading the old folder and the order of things. What is decided is pure and elsewhere: what changed (`changes`),
what the old plan is worth (`old_plan`), which trials hold (`earlier`), the checkpoint's way (`checkpoint_route`). The
planning itself is that of `plan` (`planning`).
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from planner.app.changes import Surroundings, find_changes
from planner.app.earlier import OldPlan, Sorted, carried_words, prior_calibration, sort_trials
from planner.app.jobs import read_job, read_planned_job
from planner.app.mixed import use_of_mixed
from planner.app.old_plan import judge_old_plan
from planner.app.origin import Origin
from planner.app.planning import Earlier, Planning, outline_of, plan_in, prepare
from planner.app.progress import Progress
from planner.app.replan_request import ReplanRequest, ReplanResult
from planner.app.requests import PlanRequest
from planner.app.target import cluster_overrides
from planner.errors import InputError
from planner.jobfile import job_hash
from planner.report.units import plural
from planner.rundir import RunDir, names
from planner.spec import JobSpec, Launcher, Plan, TrialRecord
from planner.spec._record import record
from planner.spec.replan import Change
from planner.trial import Machine

_KEPT_LOG = "kept-"  # before the log names of trials that an earlier plan ran


@record
class _Old:
    """The old folder, as it was read."""

    run_dir: RunDir
    plan: Plan
    job: JobSpec
    trials: tuple[TrialRecord, ...]

    def as_of(self) -> OldPlan:
        ran = self.plan.machine if self.trials else ""
        surroundings = Surroundings(
            cluster=self.job.cluster, versions=self.plan.versions, machine=ran, hosts=_hosts(self.job)
        )
        return OldPlan(job=self.job, trials=self.trials, surroundings=surroundings)


def replan(request: ReplanRequest, *, console: Progress) -> ReplanResult:
    """Plan again; when nothing changed the old plan is the answer, without a trial and without a new folder.

    Raises InputError for a folder that holds no whole plan of one job, and PlannerError for every end that planning
    has. The old folder is never changed.
    """
    console.stage("read the old plan")
    old = _read_old(request.plan_dir)
    planned = _plan_request(request, old, cluster_overrides(request.cluster, old.job.cluster))
    job, machine = _read_target(planned, console=console)
    now = Surroundings(
        cluster=job.cluster,
        versions=machine.versions,
        machine=machine.fingerprint if old.trials else "",
        hosts=_hosts(job),
    )
    changes = find_changes(old.as_of().surroundings, now)
    if not changes:
        _tell_unwritten(request, old, console=console)
        verdict = judge_old_plan(
            old.plan.candidate, old.job, calibration=prior_calibration(old.as_of(), ()), kept=old.trials
        )
        return ReplanResult(old_dir=old.run_dir.path, old_plan=old.plan, changes=(), old_here=verdict)
    return _plan_again(request, planned, old=old, target=(job, machine), changes=changes, console=console)


def _tell_unwritten(request: ReplanRequest, old: _Old, *, console: Progress) -> None:
    """Nothing changed, so nothing is written. Raises InputError for plans for lost nodes that the old plan lacks: they
    would be waited for in vain."""
    there = len(old.plan.survive)
    if request.survive is not None and request.survive > there:
        raise InputError(
            f"--survive {request.survive} has no effect: nothing that bears on the plan has changed",
            why=f"the old plan stands, with {plural(there, 'plan')} for lost nodes; nothing was written",
            fix=f"planner plan {old.run_dir.file(names.JOB)} --survive {request.survive} --out FOLDER",
        )
    if request.out_dir is not None:
        console.note(f"nothing was written to {request.out_dir}: the old plan stands as it is")


def _hosts(job: JobSpec) -> tuple[str, ...]:
    """The nodes by name, where a file of the plan holds them: only the deepspeed launcher reads one."""
    if job.launch.launcher is not Launcher.DEEPSPEED or job.cluster.nodes == 1:
        return ()
    return tuple(name for name, _slots in job.launch.hosts)


def _read_old(plan_dir: Path) -> _Old:
    run_dir = RunDir.open(plan_dir)
    plan, job, trials = run_dir.read_plan(), read_planned_job(run_dir), run_dir.read_trials()
    if job_hash(job) != plan.job_hash:
        raise InputError(
            f"{run_dir.file(names.JOB)} is not the job that the plan was made for",
            why="its hash is another than the one in plan.yaml: one of the two files was changed or copied there",
            fix="restore the folder from a copy, or plan the job anew: planner plan JOB.yaml",
        )
    if plan.trial_number >= 0 and all(trial.number != plan.trial_number for trial in trials):
        raise InputError(
            f"{run_dir.file(names.TRIALS)} lacks trial {plan.trial_number}, which the plan was chosen by",
            why="trials are missing, so what still holds of them cannot be known",
            fix="restore trials.jsonl from a copy, or plan the job anew: planner plan JOB.yaml",
        )
    return _Old(run_dir=run_dir, plan=plan, job=job, trials=trials)


def _plan_request(request: ReplanRequest, old: _Old, overrides: tuple[str, ...]) -> PlanRequest:
    return PlanRequest(
        job_path=old.run_dir.file(names.JOB),
        out_dir=request.out_dir or old.run_dir.path,  # corrected once the new cluster is known
        site_defaults=False,  # the old plan's job has every default filled in
        overrides=overrides,
        trial_mode=request.trial_mode,
        max_trials=request.max_trials,
        time_budget_s=request.time_budget_s,
        seed=request.seed,
        resume=request.resume,
        validate=request.validate,
        dry_run=request.dry_run,
    )


def _read_target(planned: PlanRequest, *, console: Progress) -> tuple[JobSpec, Machine]:
    """The old job on the new cluster. What is wrong with the cluster is said of `--cluster`, by which it was named."""
    try:
        job, machine = read_job(planned, console=console)
        if planned.overrides:  # the old cluster's groups are used as the old plan uses them
            job, _ = use_of_mixed(job, console=console)
        return job, machine
    except InputError as problem:
        error = problem.error.replace("--set cluster", "--cluster", 1)
        raise InputError(error, why=problem.why, fix=problem.fix) from None


def _plan_again(
    request: ReplanRequest,
    planned: PlanRequest,
    *,
    old: _Old,
    target: tuple[JobSpec, Machine],
    changes: tuple[Change, ...],
    console: Progress,
) -> ReplanResult:
    job, machine = target
    for change in changes:
        console.note(change.sentence)
    calibration = prior_calibration(old.as_of(), changes)
    carried = carried_words(calibration, changes, device=old.job.cluster.gpu.device)
    found = sort_trials(old.as_of(), job, machine=machine.fingerprint, changes=changes)
    verdict = judge_old_plan(old.plan.candidate, job, calibration=calibration, kept=found.kept)
    console.note(f"the old plan, {old.plan.key}: {verdict.sentence}")
    out_dir = request.out_dir or _usual_folder(old.run_dir.path, job)
    _refuse_inside(out_dir, old.run_dir.path)
    result = ReplanResult(
        old_dir=old.run_dir.path,
        old_plan=old.plan,
        changes=changes,
        old_here=verdict,
        num_kept=len(found.kept),
        num_prior=len(found.others),
        carried=carried,
    )
    origin = Origin(
        folder=str(old.run_dir.path),
        plan=old.plan,
        job=job,
        changes=changes,
        verdict=verdict,
        num_kept=len(found.kept),
        num_prior=len(found.others),
        carried=carried,
        new_folder=str(out_dir),
    )
    kept = _with_source(found, old)
    earlier = Earlier(trials=kept, calibration=calibration, origin=origin)
    planned = replace(planned, out_dir=out_dir, survive=_survive(request, old.plan, job))
    planning = prepare(planned, console=console, job=job, machine=machine, earlier=earlier)
    if old.trials:
        console.note(_kept_sentence(found, carried))
    if request.dry_run:
        return replace(result, outline=outline_of(planning, kept))
    return _written(result, planning, out_dir=out_dir, old=old)


def _survive(request: ReplanRequest, old: Plan, job: JobSpec) -> int:
    if request.survive is not None:
        return request.survive
    most = 0 if job.cluster.groups else job.cluster.nodes - 1
    return min(len(old.survive), most)


def _written(result: ReplanResult, planning: Planning, *, out_dir: Path, old: _Old) -> ReplanResult:
    run_dir = RunDir.create(out_dir, job_hash(planning.job))
    with run_dir.locked():
        _copy_logs(old.run_dir, run_dir, planning.earlier.trials)
        done = plan_in(run_dir, planning)
    summary = done.plan.replanned if done.plan is not None else None
    return replace(
        result, outline=done.outline, planned=done, checkpoint=summary.checkpoint if summary is not None else None
    )


def _usual_folder(old: Path, job: JobSpec) -> Path:
    """Beside the old one, named after the new cluster."""
    cluster = job.cluster
    return old.with_name(f"{old.name}-on-{cluster.nodes}x{cluster.gpus_per_node}-{cluster.gpu.name}")


def _refuse_inside(out_dir: Path, old: Path) -> None:
    here, there = out_dir.resolve(), old.resolve()
    if here == there or there in here.parents:
        raise InputError(
            f"the new plan would be written into the old one's folder {old}",
            why="the old plan is kept as it is",
            fix="choose another folder with --out",
        )


def _kept_sentence(found: Sorted, carried: str) -> str:
    kept, others = len(found.kept), len(found.others)
    words = f"{plural(kept, 'trial')} of the old plan still {'holds' if kept == 1 else 'hold'}" if kept else ""
    rest = f"{plural(others, 'trial')} of the old plan: they {carried}"
    return "; ".join(filter(None, (words, rest if others else "")))


def _with_source(found: Sorted, old: _Old) -> tuple[TrialRecord, ...]:
    """The kept trials, each with where it was measured; their logs come along under names of their own."""
    return tuple(
        replace(
            trial,
            kept_from=trial.kept_from or f"{old.run_dir.path}#{trial.number}",
            log_name=f"{_KEPT_LOG}{trial.log_name}" if trial.log_name else "",
            worker="",
        )
        for trial in found.kept
    )


def _copy_logs(old: RunDir, new: RunDir, kept: tuple[TrialRecord, ...]) -> None:
    """The logs of kept trials, where they are still there: what is missing is no reason not to plan."""
    for trial in kept:
        source = old.path / names.LOGS_DIR / trial.log_name.removeprefix(_KEPT_LOG)
        target = new.file(f"{names.LOGS_DIR}/{trial.log_name or '-'}")
        if trial.log_name and source.is_file() and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
