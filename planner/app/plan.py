"""The main job: from a job file to a plan folder. The steps are those of `planning`."""

from __future__ import annotations

from dataclasses import replace

from planner.app.jobs import load_requested, read_job
from planner.app.mixed import use_of_mixed
from planner.app.planning import outline_of, plan_in, prepare
from planner.app.progress import Progress
from planner.app.requests import PlanRequest, PlanResult
from planner.app.submit import is_to_be_submitted, submit_search
from planner.errors import InputError
from planner.jobfile import job_hash
from planner.rundir import RunDir, is_folder


def plan_job(request: PlanRequest, *, console: Progress) -> PlanResult:
    """Plan one job file into its folder; with `dry_run`, only say what would be tried.

    Raises PlannerError for every expected end that is not a plan; what had ended by then stays in the folder.
    """
    console.stage("read the job")
    job_file = load_requested(request)
    if is_to_be_submitted(job_file, request):
        return submit_search(request, job_file, console=console)
    job, machine = read_job(request, console=console)
    if job.cluster.groups and request.pin:
        raise InputError(
            "--pin is not for a cluster of several groups of nodes",
            why="a layout stands on one kind of node, or on groups in an order that the planner chooses",
            fix="plan one group alone to hold a layout against it",
        )
    job, uses = use_of_mixed(job, console=console)
    planning = replace(prepare(request, console=console, job=job, machine=machine), uses=uses)
    if request.dry_run:
        resumed = request.resume and is_folder(request.out_dir)
        done = RunDir.open(request.out_dir).read_trials() if resumed else ()
        return PlanResult(plan_dir=request.out_dir, outline=outline_of(planning, done))
    run_dir = RunDir.create(request.out_dir, job_hash(planning.job))
    with run_dir.locked():
        return plan_in(run_dir, planning)
