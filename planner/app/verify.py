"""Holds a plan to its promise: runs the emitted start script as it is for a few steps and compares.

Owns which script is run and what its end means. Leaves running it to `trial.program`, judging figures to `comparison`.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from planner.app.ability import obstacle_to_trials
from planner.app.comparison import compare
from planner.app.final_trial import PROFILE_DIR
from planner.app.jobs import machine_for, read_planned_job
from planner.app.progress import Progress
from planner.app.requests import VerifyResult
from planner.app.trials import COMPILE_ALLOWANCE_S
from planner.app.verify_script import prepare_watch, read_watch
from planner.app.write import launch_files
from planner.emit import node_shape
from planner.errors import PromiseBroken, TrialsUnavailable
from planner.rundir import RunDir, names
from planner.spec import ClusterSpec, DeviceKind, JobSpec, Launcher, Plan, Provenance, TorchCompile
from planner.spec.codec import DecodeError, from_plain
from planner.spec.trainer import TrainerReport
from planner.trial import Machine, probe_machine
from planner.trial.environment import LOOPBACK_VARIABLES, worker_environment
from planner.trial.program import run_program

START_S = 180.0  # importing on slow disks, before the first step
PROFILE_S = 120.0  # writing a trace of some hundred megabytes
STEP_FACTOR = 4.0  # a step that takes longer than this many promised ones will not be waited for
VERIFY_LOG = f"{names.LOGS_DIR}/verify.log"
VERIFY_SCRIPT = f"{names.LAUNCH_DIR}/verify.sh"  # for plans whose own script hands the run to a scheduler
_SCHEDULERS = (Launcher.SLURM, Launcher.SRUN, Launcher.KUBERNETES)


def verify_plan(plan_dir: Path, *, steps: int, console: Progress, profile: bool = False) -> VerifyResult:
    """Run the plan's script for `steps` steps here. Raises TrialsUnavailable when this machine is not the target,
    InputError when the folder is no plan, PromiseBroken when the script does not run at all."""
    run_dir = RunDir.open(plan_dir)
    plan, job = run_dir.read_plan(), read_planned_job(run_dir)
    machine = machine_for(job, probe_machine())
    _refuse_what_cannot_run(run_dir, plan, job, machine)
    with run_dir.locked():
        script = _script(run_dir, plan=plan, job=job)
        console.stage(f"run {script.relative_to(run_dir.path)} for {steps} steps")
        report, command = _run(run_dir, script=script, plan=plan, steps=steps, profile=profile)
    load_per_core = os.getloadavg()[0] / (os.cpu_count() or 1)
    rows = compare(plan, job, report, load_per_core=load_per_core)
    return VerifyResult(
        plan_dir=run_dir.path,
        passed=not any(row.is_broken for row in rows),
        rows=rows,
        command=command,
        log_path=run_dir.file(VERIFY_LOG),
        note=_note(plan, machine, load_per_core=load_per_core),
    )


def _refuse_what_cannot_run(run_dir: RunDir, plan: Plan, job: JobSpec, machine: Machine) -> None:
    obstacle = obstacle_to_trials(_cluster_used(plan, job), machine)
    if obstacle:
        raise TrialsUnavailable(
            "this machine is not the one the plan is for", why=obstacle, fix="run planner verify on the target machine"
        )


def _cluster_used(plan: Plan, job: JobSpec) -> ClusterSpec:
    """The part of the job's cluster that the plan takes: less than all where fewer GPUs or nodes do."""
    shape = node_shape(job, plan.candidate)
    return replace(job.cluster, nodes=shape.nodes, gpus_per_node=shape.processes_per_node)


def _script(run_dir: RunDir, *, plan: Plan, job: JobSpec) -> Path:
    """The plan's own script or, where that one only submits, the same run started here."""
    if plan.launcher not in _SCHEDULERS:
        return run_dir.file(names.LAUNCH)
    here = replace(job, launch=replace(job.launch, launcher=Launcher.TORCHRUN))
    (file,) = launch_files(here, plan.candidate, script=VERIFY_SCRIPT)
    return run_dir.write_text(file.path, file.text, executable=file.executable)


def _note(plan: Plan, machine: Machine, *, load_per_core: float) -> str:
    notes = []
    if plan.machine != machine.fingerprint:
        notes.append("the plan was made on another machine or with other versions than this one has")
    if plan.promise.step_time_kind is not Provenance.MEASURED:
        notes.append(f"the promise was {plan.promise.step_time_kind}, not measured: wide tolerances apply")
    if machine.device is DeviceKind.CPU and load_per_core > 1:
        notes.append(f"{load_per_core:.1f} processes wanted each core meanwhile, so a step was given more time")
    return "; ".join(notes)


def _run(run_dir: RunDir, *, script: Path, plan: Plan, steps: int, profile: bool) -> tuple[TrainerReport, str]:
    """What the trainer reported, and the command that ran it; its whole output is kept as `logs/verify.log`, and with
    `profile` what it wrote of its memory in `profile/`."""
    job = read_planned_job(run_dir)
    compiles = plan.candidate.tuning.torch_compile is not TorchCompile.NONE
    limit_s = START_S + STEP_FACTOR * (steps + 1) * plan.promise.step_time_s
    limit_s += (COMPILE_ALLOWANCE_S if compiles else 0.0) + (PROFILE_S if profile else 0.0)
    environment = _environment(plan, job)
    if job.launch.command:
        return _run_own_script(run_dir, script=script, plan=plan, job=job, steps=steps, limit_s=limit_s)
    profiled = ["--profile", str(run_dir.file(PROFILE_DIR))] if profile else []
    with tempfile.TemporaryDirectory(prefix="meshplan-verify-") as scratch:
        report = Path(scratch) / "report.json"
        command = ["bash", str(script), "--steps", str(steps), "--no-checkpoint", *profiled, "--report", str(report)]
        end = run_program(command, environment=environment, timeout_s=limit_s)
        run_dir.write_text(VERIFY_LOG, f"{end.output}\n{end.error_tail}\n")
        if end.timed_out:
            raise _broken(run_dir, script, f"it was not done after {limit_s:.0f} s")
        if end.exit_code != 0 or not report.is_file():
            raise _broken(run_dir, script, f"exit code {end.exit_code}: {end.last_words}")
        try:
            return from_plain(TrainerReport, json.loads(report.read_text(encoding="utf-8"))), shlex.join(command[:-2])
        except (ValueError, DecodeError) as problem:
            raise _broken(run_dir, script, f"its report cannot be read: {problem}") from None


def _run_own_script(
    run_dir: RunDir, *, script: Path, plan: Plan, job: JobSpec, steps: int, limit_s: float
) -> tuple[TrainerReport, str]:
    """The same of the user's script, which is ended from outside once it has made its steps."""
    with tempfile.TemporaryDirectory(prefix="meshplan-verify-") as scratch:
        folder = Path(scratch)
        watching = prepare_watch(
            folder, job=job, plan=plan, steps=steps, config_text=run_dir.read_text(names.DS_CONFIG)
        )
        command = ["bash", str(script)]
        end = run_program(command, environment=_environment(plan, job) | watching, timeout_s=limit_s)
        run_dir.write_text(VERIFY_LOG, f"{end.output}\n{end.error_tail}\n")
        if end.timed_out:
            raise _broken(run_dir, script, f"your script had not made {steps} steps after {limit_s:.0f} s")
        report = read_watch(folder, plan=plan, job=job, log=str(run_dir.file(VERIFY_LOG)))
        return report, shlex.join(command)


def _environment(plan: Plan, job: JobSpec) -> dict[str, str]:
    """That of trials, but for the threads: the script sets those of a rank by the machine's cores."""
    environment = worker_environment(job.cluster.gpu.device, os.environ, whole_shell=bool(job.launch.command))
    between_nodes = node_shape(job, plan.candidate).nodes > 1
    kept = {
        name: value
        for name, value in environment.items()
        if not name.endswith("_NUM_THREADS") and not (between_nodes and name in LOOPBACK_VARIABLES)
    }
    return {**kept, "PYTHON": sys.executable, "MESHPLAN_SUPERVISE": "off"}  # a fallback would hide a broken promise


def _broken(run_dir: RunDir, script: Path, why: str) -> PromiseBroken:
    return PromiseBroken(
        f"{script.relative_to(run_dir.path)} of the plan did not run",
        why=why,
        fix=f"read {run_dir.file(VERIFY_LOG)}; plan again if this machine or its software has changed",
    )
