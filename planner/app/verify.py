"""Holds a plan to its promise: runs the emitted `launch.sh` as it is for a few steps and compares.

Owns what is compared and how far it may differ. Leaves running the script to `trial.program`.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.app.ability import decide_trials
from planner.app.jobs import read_planned_job
from planner.app.progress import Progress
from planner.app.requests import VerifyResult, VerifyRow
from planner.errors import InputError, PromiseBroken
from planner.rundir import RunDir, names
from planner.spec import DeviceKind, JobSpec, Plan, Provenance, TrialMode
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
        report, command = _run(run_dir, plan=plan, steps=steps)
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


def _run(run_dir: RunDir, *, plan: Plan, steps: int) -> tuple[dict[str, Any], str]:
    script = run_dir.file(names.LAUNCH)
    with tempfile.TemporaryDirectory(prefix="meshplan-verify-") as scratch:
        report_path = Path(scratch) / "report.json"
        command = ["bash", str(script), "--steps", str(steps), "--report", str(report_path), "--no-checkpoint"]
        environment = worker_environment(_device(run_dir), os.environ)
        environment = {name: value for name, value in environment.items() if not name.endswith("_NUM_THREADS")}
        environment["PYTHON"] = sys.executable
        limit_s = START_S + STEP_FACTOR * (steps + 1) * plan.promise.step_time_s
        end = run_program(command, environment=environment, timeout_s=limit_s)
        run_dir.write_text(VERIFY_LOG, f"{end.output}\n{end.error_tail}\n")
        said = " ".join(command)
        if end.timed_out:
            raise _broken(run_dir, f"it was not done after {limit_s:.0f} s")
        if end.exit_code != 0 or not report_path.is_file():
            raise _broken(run_dir, f"exit code {end.exit_code}: {_last_line(end.error_tail or end.output)}")
        report: dict[str, Any] = json.loads(report_path.read_text(encoding="utf-8"))
        return report, said


def _device(run_dir: RunDir) -> DeviceKind:
    return read_planned_job(run_dir).cluster.gpu.device
