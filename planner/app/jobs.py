"""A job file on the disk to the resolved job: flags laid over it, this machine looked at, a factory traced."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import fields, replace
from datetime import UTC, datetime

from planner.app.progress import Progress
from planner.app.requests import PlanRequest
from planner.errors import InputError
from planner.jobfile import JobFile, MachineFacts, defaults_sentence, load_job, resolve_job
from planner.probe.examine import assemble
from planner.probe.gpus import look_at_gpus
from planner.probe.host import look_at_host
from planner.probe.records import NetworkState, SoftwareState
from planner.rundir import RunDir, names
from planner.spec import DeviceKind, JobSpec, TracedModule
from planner.spec.codec import DecodeError, from_plain
from planner.trial import Machine, probe_cpu, probe_machine
from planner.trial.devices import with_devices_as_they_are
from planner.trial.environment import worker_environment
from planner.trial.program import ProgramEnd, run_program

SHORTEST_TRACE_S = 20.0  # importing torch alone takes seconds; beyond that a trace may last as long as a trial
_THREE_LINES = re.compile(r"error: (?P<error>.*)\nwhy: (?P<why>.*)\nfix: (?P<fix>.*)\s*\Z", re.DOTALL)


def load_requested(request: PlanRequest) -> JobFile:
    """The job file of a request, parsed, with its flags laid over it."""
    return load_job(
        request.job_path,
        request.overrides + _flags(request),
        cluster=request.cluster,
        site_defaults=request.site_defaults,
    )


def read_job(request: PlanRequest, *, console: Progress) -> tuple[JobSpec, Machine]:
    """The job of a request, and this machine as its trials find it. Site defaults that it takes are said.

    Raises InputError for anything wrong in the job, its factory included.
    """
    job_file = load_requested(request)
    if job_file.site_defaults:
        console.note(defaults_sentence(job_file.site_defaults))
    traced = trace_factory(job_file) if job_file.factory else None
    machine = look_at_this_machine()
    job = resolve_job(job_file, machine=machine_facts(machine), traced=traced, today=datetime.now(UTC).date())
    if not job_file.needs_machine:
        machine = machine_for(job, machine)
        _tell(machine, job, console)
        return job, machine
    machine = _without_gpu(machine)
    for note in machine.notes:
        console.note(note)
    return job, machine


def look_at_this_machine() -> Machine:
    """This machine with its devices as they are: MIG slices by themselves, and what is wrong with a GPU as notes."""
    machine = probe_machine()
    if machine.device is not DeviceKind.CUDA:
        return machine
    sight = look_at_gpus(os.environ)
    if not sight.gpus:  # the driver has gone since
        return machine
    host, software = look_at_host(os.environ), SoftwareState(python="")
    return with_devices_as_they_are(
        machine, assemble(sight=sight, host=host, network=NetworkState(), software=software)
    )


def _tell(machine: Machine, job: JobSpec, console: Progress) -> None:
    """What is wrong with the devices, where trials of the job would run on them."""
    if job.cluster.gpu.device is DeviceKind.CUDA:
        for note in machine.notes:
            console.note(note)


def _without_gpu(machine: Machine) -> Machine:
    """With a note where `gpu: auto` found no GPU: a plan for the CPU is seldom what was meant."""
    if machine.device is not DeviceKind.CPU:
        return machine
    because = f" ({'; '.join(machine.notes)})" if machine.notes else ""
    note = (
        f"gpu: auto found no GPU here{because}, so this plan is for {machine.num_devices} processes of the CPU; "
        "planner probe says what is missing"
    )
    return replace(machine, notes=(note,))


def machine_for(job: JobSpec, machine: Machine) -> Machine:
    """This machine as trials of the job find it: beside its GPUs it also has a CPU, which is what a CPU job runs on."""
    if job.cluster.gpu.device is DeviceKind.CPU and machine.device is not DeviceKind.CPU:
        return probe_cpu()
    return machine


def read_planned_job(run_dir: RunDir, overrides: tuple[str, ...] = ()) -> JobSpec:
    """The job that a plan folder was made for, from its `job.yaml`, with `key=value` overrides laid over it."""
    run_dir.read_text(names.JOB)  # says in our words when it is not there
    return resolve_job(load_job(run_dir.file(names.JOB), overrides))


def machine_facts(machine: Machine) -> MachineFacts:
    """What `gpu: auto` needs of this machine."""
    return MachineFacts(**{field.name: getattr(machine, field.name) for field in fields(MachineFacts)})


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
    paths = (*job_file.python_path, environment.get("PYTHONPATH", ""))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    limit_s = max(job_file.schema.trials.timeout, SHORTEST_TRACE_S)
    end = run_program(command, environment=environment, timeout_s=limit_s)
    if end.timed_out:
        raise InputError(
            f"the model factory {factory!r} could not be traced",
            why=f"it did not return within {limit_s:.0f} s",
            fix="see what it waits for; one that only takes long may take as long as a trial: raise trials.timeout",
        )
    try:
        answer = json.loads(end.output)
        return from_plain(TracedModule, answer)
    except (ValueError, DecodeError):
        raise _factory_error(factory, end) from None


def _factory_error(factory: str, end: ProgramEnd) -> InputError:
    """What the child said in our three lines, or the last words of whatever the factory did."""
    error = f"the model factory {factory!r} could not be traced"
    said = _THREE_LINES.search(end.error_tail)
    if said is not None:
        return InputError(f"{error}: {said['error']}", why=said["why"], fix=said["fix"].strip())
    ended = f" (exit code {end.exit_code})" if end.exit_code not in (0, 1) else ""
    return InputError(
        error,
        why=f"{end.last_words}{ended}",
        fix="it must be importable beside the job file and return (module, make_batch) or (module, make_batch, loss); "
        "configs/jobs/small_vision.py is a whole one",
    )
