"""A job file on the disk to the resolved job: flags laid over it, this machine looked at, a factory traced."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import fields
from pathlib import Path

from planner.app.requests import PlanRequest
from planner.errors import InputError
from planner.jobfile import JobFile, MachineFacts, load_job, resolve_job
from planner.rundir import RunDir, names
from planner.spec import DeviceKind, JobSpec, TracedModule
from planner.spec.codec import DecodeError, from_plain
from planner.trial import Machine
from planner.trial.environment import worker_environment
from planner.trial.program import run_program

TRACE_TIMEOUT_S = 120.0  # importing torch takes seconds, tracing a factory's model the rest


def read_job(request: PlanRequest, *, machine: Machine) -> JobSpec:
    """The job of a request. Raises InputError for anything wrong in it, its factory included."""
    job_file = load_job(request.job_path, request.overrides + _flags(request))
    traced = trace_factory(job_file) if job_file.factory else None
    return resolve_job(job_file, machine=machine_facts(machine), traced=traced)


def read_planned_job(run_dir: RunDir) -> JobSpec:
    """The job that a plan folder was made for, from its `job.yaml`."""
    run_dir.read_text(names.JOB)  # says in our words when it is not there
    return resolve_job(load_job(run_dir.file(names.JOB)))


def machine_facts(machine: Machine) -> MachineFacts:
    """What `gpu: auto` needs of this machine."""
    return MachineFacts(**{field.name: getattr(machine, field.name) for field in fields(MachineFacts)})


def import_folders(job_path: Path) -> tuple[Path, ...]:
    """Where a job's own Python modules are looked for: beside the job file, then where the planner was started."""
    return (job_path.resolve().parent, Path.cwd())


def _flags(request: PlanRequest) -> tuple[str, ...]:
    """Command-line flags as the job-file settings they stand for."""
    settings = {
        "trials.mode": request.trial_mode.value if request.trial_mode is not None else None,
        "trials.max_trials": request.max_trials,
        "trials.time_budget": f"{request.time_budget_s:g}s" if request.time_budget_s is not None else None,
    }
    return tuple(f"{key}={value}" for key, value in settings.items() if value is not None)


def trace_factory(job_file: JobFile) -> TracedModule:
    """Size and memory of a factory's module, traced in a child program without a GPU.

    Raises InputError when the factory cannot be imported, raises, returns the wrong thing or does not return in time.
    """
    factory = job_file.factory
    command = [sys.executable, "-m", "planner.runtime.describe", "--factory", factory]
    command += ["--seq-len", str(job_file.schema.training.seq_len)]
    environment = worker_environment(DeviceKind.CPU, os.environ)
    paths = [str(folder) for folder in import_folders(job_file.path)]
    environment["PYTHONPATH"] = os.pathsep.join([*paths, environment.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    end = run_program(command, environment=environment, timeout_s=TRACE_TIMEOUT_S)
    if end.timed_out:
        raise _factory_error(factory, f"it did not return within {TRACE_TIMEOUT_S:.0f} s")
    try:
        answer = json.loads(end.output)
        return from_plain(TracedModule, answer)
    except (ValueError, DecodeError):
        raise _factory_error(factory, _last_line(end.error_tail) or f"exit code {end.exit_code}") from None


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:500] if lines else ""


def _factory_error(factory: str, why: str) -> InputError:
    return InputError(
        f"the model factory {factory!r} could not be traced",
        why=why,
        fix="it must be importable beside the job file and return (module, make_batch) or (module, make_batch, loss); "
        "see the README's section on models of your own",
    )
