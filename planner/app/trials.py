"""A real trial as the search sees it: render the config that would ship, run it on warm workers."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from planner.emit import render_ds_config_text, script_call
from planner.probe.nvidia import probe_nvidia
from planner.rundir import RunDir
from planner.search import hopeless_step_s
from planner.spec import Candidate, DeviceKind, JobSpec, Outcome, ScriptKind, TorchCompile, TrialRecord, TrialTask
from planner.trial import Machine, WarmPool
from planner.trial.devices import moved_memory

# A rank is capped when the job grants it less than this share of what the device has free.
_CAP_FRACTION = 0.98
# Compiling the layers of a 1.35 B model took 41 to 77 s on the H200 (whole model, nothing cached). The second step may
# compile what only then is seen to be needed, so two warm the trial up.
COMPILE_ALLOWANCE_S = 180.0
COMPILED_WARMUP_STEPS = 2
LAST_TRIAL_ALLOWANCE_S = 600.0  # writing and reading a checkpoint of tens of gigabytes, and a profile


# What a script of this kind imports, beside torch and DeepSpeed: seconds that its trials then do not take.
_SCRIPT_MODULES: dict[ScriptKind, tuple[str, ...]] = {
    ScriptKind.DEEPSPEED: (),
    ScriptKind.HUGGINGFACE: ("transformers.trainer", "accelerate.utils.deepspeed", "accelerate.commands.launch"),
    ScriptKind.ACCELERATE: ("accelerate.utils.deepspeed", "accelerate.commands.launch"),
}


class TrialEvaluator:
    """The search's `Evaluator` over a warm pool; logs go to the plan folder."""

    def __init__(
        self,
        job: JobSpec,
        *,
        pool: WarmPool,
        run_dir: RunDir,
        machine: Machine,
        on_start: Callable[[int, Candidate], None],
    ) -> None:
        self._job = job
        self._pool = pool
        self._run_dir = run_dir
        self._machine = machine
        self._on_start = on_start
        self._best: TrialRecord | None = None
        self._gpus = machine.gpus

    def other_processes(self) -> tuple[str, ...]:
        """What other processes did to the GPUs' memory since this was last asked, or since the machine was looked at;
        asked between two trials, when none of ours holds any."""
        if not self._gpus:
            return ()
        now = probe_nvidia(os.environ).gpus
        said, self._gpus = moved_memory(self._gpus, now), now or self._gpus
        return said

    def learn(self, best: TrialRecord | None) -> None:
        """The best trial so far: what is far slower need not run to its end."""
        self._best = best

    def evaluate(self, number: int, candidate: Candidate) -> Outcome:
        """Run the candidate's steps on all its ranks; every expected end is the outcome."""
        self._on_start(number, candidate)
        task = trial_task(candidate, job=self._job, machine=self._machine)
        limit_s = hopeless_step_s(candidate, self._best, self._job.objective)
        return self._pool.run(
            replace(task, hopeless_step_s=limit_s),
            timeout_s=trial_timeout_s(candidate, job=self._job),
            log_path=self._run_dir.log_file(number),
        )

    def evaluate_last(
        self, number: int, candidate: Candidate, *, check_checkpoint: bool, profile_dir: Path | None
    ) -> Outcome:
        """Run the winner once more, to its end, with what no other trial has to show."""
        self._on_start(number, candidate)
        task = trial_task(candidate, job=self._job, machine=self._machine)
        profile = str(profile_dir.resolve()) if profile_dir is not None else ""
        return self._pool.run(
            replace(task, check_checkpoint=check_checkpoint, profile_dir=profile),
            timeout_s=trial_timeout_s(candidate, job=self._job) + LAST_TRIAL_ALLOWANCE_S,
            log_path=self._run_dir.log_file(number),
        )


def trial_task(candidate: Candidate, *, job: JobSpec, machine: Machine) -> TrialTask:
    """The task of a trial: the very config that would ship, one warm-up step, the job's number of timed steps."""
    return TrialTask(
        model=job.model,
        training=job.training,
        candidate=candidate,
        device=job.cluster.gpu.device,
        ds_config_json=render_ds_config_text(candidate, job=job, deepspeed_version=deepspeed_version(machine)),
        steps=job.trials.steps,
        warmup_steps=1 if candidate.tuning.torch_compile is TorchCompile.NONE else COMPILED_WARMUP_STEPS,
        memory_limit_bytes=memory_limit_bytes(job, machine=machine),
        script=script_call(job, candidate),
    )


def trial_timeout_s(candidate: Candidate, *, job: JobSpec) -> float:
    """What one trial may take: the job's limit, and where something is compiled the time for that on top."""
    compiles = candidate.tuning.torch_compile is not TorchCompile.NONE
    return job.trials.timeout_s + (COMPILE_ALLOWANCE_S if compiles else 0.0)


def script_modules(job: JobSpec) -> tuple[str, ...]:
    """Modules that the job's own script will import, to be imported ahead."""
    return _SCRIPT_MODULES[job.launch.script_kind] if job.launch.command else ()


def memory_limit_bytes(job: JobSpec, *, machine: Machine) -> int:
    """The cap of one rank, 0 for none. On CPU ranks share the host, so each is held to what the job grants it."""
    granted = job.cluster.gpu.memory_usable_bytes
    if job.cluster.gpu.device is DeviceKind.CPU or granted < machine.usable_bytes * _CAP_FRACTION:
        return granted
    return 0


def deepspeed_version(machine: Machine) -> str:
    """The installed version, "" without one."""
    return dict(machine.versions).get("deepspeed", "")


def open_pool(device: DeviceKind, *, job: JobSpec) -> WarmPool:
    """A pool for this job: its model's code imported at the start, its environment and its own modules for ranks."""
    return WarmPool(
        device,
        model_types=() if job.model.factory else (job.model.model_type,),
        modules=script_modules(job),
        whole_shell=bool(job.launch.command),
        extra_python_path=tuple(map(Path, job.launch.python_path)),
        environment=dict(job.launch.environment),
    )
