"""What a run goes on with when it runs out of memory: the steps down from the choice, priced, checked, and as files.

Owns which steps of `space.less_memory` are worth keeping: those that need less by the calibrated model, and that the
rules and DeepSpeed's own parser take.
"""

from __future__ import annotations

from planner.app.draft import estimate_candidates
from planner.app.selection import Selection
from planner.app.trials import deepspeed_version
from planner.app.validate import check_rules, parse_configs
from planner.app.write_run import run_promise
from planner.emit import EmittedFile, render_ds_config_text, render_task_text
from planner.errors import NotExpressible
from planner.rundir import names
from planner.space import less_memory
from planner.spec import Candidate, Fallback, JobSpec, Promise, ValidationStep
from planner.trial import Machine


def plan_fallbacks(selection: Selection, *, job: JobSpec, machine: Machine, validate: bool) -> tuple[Fallback, ...]:
    """The fallbacks of a choice, in order; none for the user's own script, which nobody can start with other settings.

    Without `validate` DeepSpeed's parser is not asked.
    """
    if job.launch.command:
        return ()
    kept = _cheaper(selection, job, machine)
    parsed: tuple[ValidationStep | None, ...] = (None,) * len(kept)
    if validate and kept:
        parsed = parse_configs(tuple(fallback.candidate for fallback in kept), job=job, machine=machine)
    fallbacks: list[Fallback] = []
    for fallback, step in zip(kept, parsed):
        if step is not None and not step.passed:
            continue
        number = len(fallbacks) + 1
        fallbacks.append(
            Fallback(
                candidate=fallback.candidate,
                key=fallback.key,
                folder=f"{names.FALLBACKS_DIR}/{number}-{fallback.key}",
                change=fallback.change,
                estimate=fallback.estimate,
                validation=(*fallback.validation, *(() if step is None else (step,))),
            )
        )
    return tuple(fallbacks)


def _cheaper(selection: Selection, job: JobSpec, machine: Machine) -> tuple[Fallback, ...]:
    """Steps that the rules take and that need less memory than the one kept before."""
    steps = less_memory(selection.candidate, job)
    if job.cluster.groups:  # another layout would need another partition of its own
        steps = tuple(step for step in steps if step.candidate.layout == selection.candidate.layout)
    candidates = (selection.candidate, *(step.candidate for step in steps))
    estimates = estimate_candidates(job, candidates, calibration=selection.calibration)
    kept: list[Fallback] = []
    least = estimates[0].memory.device_used_bytes
    for step, estimate in zip(steps, estimates[1:]):
        checked = _checked(step.candidate, job, machine)
        if estimate.memory.device_used_bytes >= least or checked is None:
            continue
        least = estimate.memory.device_used_bytes
        key = step.candidate.key
        kept.append(
            Fallback(
                candidate=step.candidate,
                key=key,
                folder="",
                change=step.change,
                estimate=estimate,
                validation=(checked,),
            )
        )
    return tuple(kept)


def _checked(candidate: Candidate, job: JobSpec, machine: Machine) -> ValidationStep | None:
    """The rules' verdict; None where a file cannot say it, or a rule refuses it."""
    try:
        step = check_rules(candidate, job=job, machine=machine)
    except NotExpressible:
        return None
    return step if step.passed else None


def fallback_files(fallbacks: tuple[Fallback, ...], *, job: JobSpec, machine: Machine) -> tuple[EmittedFile, ...]:
    """The two files of each."""
    version = deepspeed_version(machine)
    files = []
    for fallback in fallbacks:
        memory = fallback.estimate.memory
        promise = Promise(
            step_time_s=fallback.estimate.step_time_s,
            step_time_kind=fallback.estimate.kind,
            tokens_per_s=fallback.estimate.tokens_per_s,
            device_used_bytes=memory.device_used_bytes,
            memory_kind=fallback.estimate.kind,
            usable_bytes=memory.usable_bytes,
        )
        candidate = fallback.candidate
        config = render_ds_config_text(candidate, job=job, deepspeed_version=version)
        task = render_task_text(candidate, job=job, promise=run_promise(promise, fallback.estimate))
        files += [
            EmittedFile(path=f"{fallback.folder}/{names.DS_CONFIG}", text=config),
            EmittedFile(path=f"{fallback.folder}/{names.TASK}", text=task),
        ]
    return tuple(files)
