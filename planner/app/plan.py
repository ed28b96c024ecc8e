"""The main job: from a job file to a plan folder. The steps are those of `planning`."""

from __future__ import annotations

from planner.app.jobs import read_job
from planner.app.planning import outline_of, plan_in, prepare
from planner.app.progress import Progress
from planner.app.requests import PlanRequest, PlanResult
from planner.jobfile import job_hash
from planner.rundir import RunDir, is_folder


def plan_job(request: PlanRequest, *, console: Progress) -> PlanResult:
    """Plan one job file into its folder; with `dry_run`, only say what would be tried.

    Raises PlannerError for every expected end that is not a plan; what had ended by then stays in the folder.
    """
    console.stage("read the job")
    job, machine = read_job(request, console=console)
    planning = prepare(request, console=console, job=job, machine=machine)
    if request.dry_run:
        resumed = request.resume and is_folder(request.out_dir)
        done = RunDir.open(request.out_dir).read_trials() if resumed else ()
        return PlanResult(plan_dir=request.out_dir, outline=outline_of(planning, done))
    run_dir = RunDir.create(request.out_dir, job_hash(planning.job))
    with run_dir.locked():
        return plan_in(run_dir, planning)
