"""Holds a plan to its promise: runs the emitted `launch.sh` as it is for a few steps and compares.

Owns what is compared and how far it may differ. Leaves running the script to `trial.program`.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median

from planner.app.ability import decide_trials
from planner.app.jobs import read_planned_job
from planner.app.progress import Progress
from planner.app.requests import VerifyResult, VerifyRow
from planner.errors import InputError, PromiseBroken
from planner.rundir import RunDir, names
from planner.spec import JobSpec, Plan, Provenance, TrialMode
from planner.spec.codec import DecodeError, from_plain
from planner.spec.trainer import TrainerReport
from planner.trial import Machine, probe_machine
from planner.trial.environment import worker_environment
from planner.trial.program import run_program

START_S = 180.0  # importing on slow disks, before the first step
STEP_FACTOR = 4.0  # a step that takes longer than this many promised ones will not be waited for
# How far a cold run may be from a promise that was measured, and from one that was only computed. Time on a shared CPU
# moves by a third from run to run; a GPU's by a few percent. Slower or larger counts, faster or smaller does not.
TIME_TOLERANCE = {"cuda": 0.10, "cpu": 0.50}
MEMORY_TOLERANCE = {"cuda": 0.05, "cpu": 0.25}
COMPUTED_TOLERANCE = 0.50
LOSS_TOLERANCE = {"fp32": 1e-3, "bf16": 2e-2, "fp16": 2e-2}
VERIFY_LOG = f"{names.LOGS_DIR}/verify.log"


def verify_plan(plan_dir: Path, *, steps: int, console: Progress) -> VerifyResult:
    """Run the plan's own script for `steps` steps here. Raises TrialsUnavailable when this machine is not the target,
    InputError when the folder is no plan, PromiseBroken when the script does not run at all."""
    run_dir = RunDir.open(plan_dir)
    plan, job = run_dir.read_plan(), read_planned_job(run_dir)
    if job.launch.command:
        raise InputError(
            "a plan for a script of your own cannot be verified",
            why="verify reads the report of the reference trainer, and your script writes none",
            fix=f"run bash {shlex.quote(str(run_dir.file(names.LAUNCH)))} and compare with plan.yaml",
        )
    machine = probe_machine()
    decide_trials(replace(job, trials=replace(job.trials, mode=TrialMode.REAL)), machine)
    with run_dir.locked():
        console.stage(f"run {names.LAUNCH} for {steps} steps")
        report, command = _run(run_dir, plan=plan, job=job, steps=steps)
    rows = _compare(plan, job, report)
    return VerifyResult(
        plan_dir=run_dir.path,
        passed=all(row.passed for row in rows),
        rows=rows,
        command=command,
        log_path=run_dir.file(VERIFY_LOG),
        note=_note(plan, machine),
    )


def _note(plan: Plan, machine: Machine) -> str:
    if plan.machine != machine.fingerprint:
        return "the plan was made on another machine or with other versions than this one has"
    if plan.promise.step_time_kind is not Provenance.MEASURED:
        return "the promise was computed, not measured: wide tolerances apply"
    return ""


def _run(run_dir: RunDir, *, plan: Plan, job: JobSpec, steps: int) -> tuple[TrainerReport, str]:
    """Run the script in a process group of its own; its whole output is kept as `logs/verify.log`."""
    script = run_dir.file(names.LAUNCH)
    environment = worker_environment(job.cluster.gpu.device, os.environ)
    # Keep: the script sets the threads of a rank by the machine's cores; trials' workers start with one.
    environment = {name: value for name, value in environment.items() if not name.endswith("_NUM_THREADS")}
    environment["PYTHON"] = sys.executable
    limit_s = START_S + STEP_FACTOR * (steps + 1) * plan.promise.step_time_s
    with tempfile.TemporaryDirectory(prefix="meshplan-verify-") as scratch:
        report = Path(scratch) / "report.json"
        command = ["bash", str(script), "--steps", str(steps), "--no-checkpoint", "--report", str(report)]
        end = run_program(command, environment=environment, timeout_s=limit_s)
        run_dir.write_text(VERIFY_LOG, f"{end.output}\n{end.error_tail}\n")
        if end.timed_out:
            raise _broken(run_dir, f"it was not done after {limit_s:.0f} s")
        if end.exit_code != 0 or not report.is_file():
            raise _broken(run_dir, f"exit code {end.exit_code}: {_last_line(end.error_tail or end.output)}")
        try:
            return from_plain(TrainerReport, json.loads(report.read_text(encoding="utf-8"))), shlex.join(command[:-2])
        except (ValueError, DecodeError) as problem:
            raise _broken(run_dir, f"its report cannot be read: {problem}") from None


def _compare(plan: Plan, job: JobSpec, report: TrainerReport) -> tuple[VerifyRow, ...]:
    """Each promised figure beside what was seen. More time or memory than promised fails; less does not."""
    device, promise = job.cluster.gpu.device.value, plan.promise
    measured_time = promise.step_time_kind is Provenance.MEASURED
    measured_memory = promise.memory_kind is Provenance.MEASURED
    steps_s = [max(times) for times in zip(*(rank.step_times_s for rank in report.ranks))]
    used_bytes = max(max(rank.device_used_bytes, rank.peak_reserved_bytes) for rank in report.ranks)
    rows = [
        _row("sequences_per_step", job.training.global_batch_size, report.ranks[0].sequences_per_step, 0.0),
        _row(
            "step_time_s",
            promise.step_time_s,
            median(steps_s),
            TIME_TOLERANCE[device] if measured_time else COMPUTED_TOLERANCE,
            only_above=True,
        ),
        _row(
            "device_memory_bytes",
            promise.device_used_bytes,
            used_bytes,
            MEMORY_TOLERANCE[device] if measured_memory else COMPUTED_TOLERANCE,
            only_above=True,
        ),
    ]
    tolerance = LOSS_TOLERANCE[plan.candidate.precision.value]
    for step, (promised, seen) in enumerate(zip(promise.first_losses, report.losses), start=1):
        rows.append(_row(f"loss_of_step_{step}", promised, seen, tolerance))
    return tuple(rows)


def _row(name: str, promised: float, seen: float, tolerance: float, *, only_above: bool = False) -> VerifyRow:
    off = seen - promised if only_above else abs(seen - promised)
    passed = math.isfinite(seen) and off <= tolerance * abs(promised)
    return VerifyRow(name=name, promised=float(promised), seen=float(seen), tolerance_fraction=tolerance, passed=passed)


def _broken(run_dir: RunDir, why: str) -> PromiseBroken:
    return PromiseBroken(
        f"{names.LAUNCH} of the plan did not run",
        why=why,
        fix=f"read {run_dir.file(VERIFY_LOG)}; plan again if this machine or its software has changed",
    )


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:500] if lines else "no output"
