"""The gates between a choice and a plan: our rules, DeepSpeed's own parser, and an engine that makes two steps.

Parsing alone accepts about fifteen combinations that the engine refuses or hangs on, so the last gate runs. A winning
trial has run the very config on the very layout, and is that gate.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from planner.app.selection import Selection
from planner.app.trials import deepspeed_version, open_pool
from planner.emit import reduced_differences, reduced_task, render_ds_config, without_auto
from planner.errors import TrialsUnavailable
from planner.rules import ConfigContext, Consumer, Severity, check_config
from planner.spec import Candidate, DeviceKind, JobSpec, Measured, Outcome, Provenance, ScriptKind, ValidationStep
from planner.trial import Machine
from planner.trial.environment import worker_environment
from planner.trial.program import run_program

PARSE_TIMEOUT_S = 120.0
REDUCED_TIMEOUT_S = 180.0


def validate_selection(
    selection: Selection, *, job: JobSpec, machine: Machine, log_path: Path
) -> tuple[ValidationStep, ...]:
    """All gates in order; the first that fails ends it. A plan that fails raises nothing: the steps say it.

    Raises TrialsUnavailable when this environment cannot run the gates at all.
    """
    steps = [check_rules(selection.candidate, job=job, machine=machine)]
    if steps[-1].passed:
        steps += parse_configs((selection.candidate,), job=job, machine=machine)
    if steps[-1].passed:
        steps.append(_run(selection, job=job, machine=machine, log_path=log_path))
    return tuple(steps)


def check_rules(candidate: Candidate, *, job: JobSpec, machine: Machine) -> ValidationStep:
    """The rules of DeepSpeed's version on the candidate's config. NotExpressible when it has none."""
    version = deepspeed_version(machine)
    config = render_ds_config(candidate, job=job, deepspeed_version=version)
    layout = candidate.layout
    context = ConfigContext(
        world_size=layout.world_size,
        tensor_parallel_size=layout.tensor_parallel_size,
        pipeline_parallel_size=layout.pipeline_parallel_size,
        deepspeed_version=version,
        client_optimizer=job.launch.script_kind is not ScriptKind.DEEPSPEED,
        consumer=Consumer.DEEPSPEED if job.launch.script_kind is ScriptKind.DEEPSPEED else Consumer.HUGGINGFACE,
        consumer_stated=True,
    )
    findings = check_config(config, context)
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if errors:
        return ValidationStep(name="rules", passed=False, detail=f"{errors[0].key}: {errors[0].message}")
    return ValidationStep(
        name="rules", passed=True, detail=f"no rule of DeepSpeed {context.deepspeed_version} is broken"
    )


def parse_configs(candidates: tuple[Candidate, ...], *, job: JobSpec, machine: Machine) -> tuple[ValidationStep, ...]:
    """DeepSpeed's own config classes on each candidate's config, in one child program, for the candidate's own
    data-parallel world."""
    version = deepspeed_version(machine)
    environment = worker_environment(DeviceKind.CPU, os.environ)
    with tempfile.TemporaryDirectory(prefix="meshplan-") as scratch:
        command = [sys.executable, "-m", "planner.runtime.parse_config"]
        for number, candidate in enumerate(candidates):
            config = Path(scratch) / f"{number}.json"
            # Hugging Face replaces its "auto" values before DeepSpeed sees them.
            filled = without_auto(render_ds_config(candidate, job=job, deepspeed_version=version))
            config.write_text(json.dumps(filled), encoding="utf-8")
            command += ["--config", str(config), "--data-parallel-size", str(candidate.layout.data_parallel_size)]
        end = run_program(command, environment=environment, timeout_s=PARSE_TIMEOUT_S)
    if end.timed_out:
        raise _unavailable(f"DeepSpeed's parser gave no answer within {PARSE_TIMEOUT_S:.0f} s")
    try:
        answers = [json.loads(line) for line in end.output.splitlines()]
    except ValueError:
        answers = []
    if len(answers) != len(candidates):
        raise _unavailable(f"DeepSpeed's parser ended with exit code {end.exit_code}: {end.last_words}")
    return tuple(_parsed(answer) for answer in answers)


def _parsed(answer: dict[str, Any]) -> ValidationStep:
    detail = "DeepSpeed's own parser took it for the target's world size" if answer["ok"] else str(answer["error"])
    return ValidationStep(name="parse", passed=bool(answer["ok"]), detail=detail[:2000])


def _unavailable(why: str) -> TrialsUnavailable:
    return TrialsUnavailable(
        "the plan could not be validated here",
        why=why,
        fix="see that torch, deepspeed and transformers import in this environment; --no-validate plans without them",
    )


def _ran_what_ships(measured: Measured, job: JobSpec) -> bool:
    """An emulated trial ran the reference trainer, and so says nothing of a script of the user's own."""
    return not job.launch.command or measured.kind is Provenance.MEASURED


def _run(selection: Selection, *, job: JobSpec, machine: Machine, log_path: Path) -> ValidationStep:
    trial = selection.trial
    measured = trial.outcome if trial is not None and isinstance(trial.outcome, Measured) else None
    if trial is not None and measured is not None and _ran_what_ships(measured, job):
        steps = len(measured.ranks[0].step_times_s)
        who = "your script with this" if job.launch.command else "this"
        detail = f"trial {trial.number} ran {who} very config on the target layout for {steps} optimizer steps"
        return ValidationStep(name="initialize", passed=True, detail=detail)
    task = reduced_task(job, selection.candidate, deepspeed_version=deepspeed_version(machine))
    what = "; ".join(reduced_differences(job, selection.candidate))
    try:
        with open_pool(DeviceKind.CPU, job=job) as pool:
            outcome = pool.run(task, timeout_s=REDUCED_TIMEOUT_S, log_path=log_path)
    except TrialsUnavailable as problem:
        raise _unavailable(problem.why) from problem
    if isinstance(outcome, Measured):
        own = "; your own script was not run" if job.launch.command else ""
        return ValidationStep(name="initialize", passed=True, detail=f"a stand-in made its steps ({what}){own}")
    return ValidationStep(name="initialize", passed=False, detail=f"the stand-in ({what}) failed: {_said(outcome)}")


def _said(outcome: Outcome) -> str:
    message = getattr(outcome, "message", "")
    return f"{type(outcome).__name__}{': ' if message else ''}{message}"[:1500]
