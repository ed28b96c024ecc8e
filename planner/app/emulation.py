"""An emulated trial as the search sees it: a candidate's ranks stood in for one after the other on one device here.

Owns what the device at hand can say of the target's (by the analytic model where they differ) and the order of work.
Leaves which ranks, and what they add up to, to `planner.trial.emulated`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from planner.app.draft import estimate_candidates
from planner.app.trials import deepspeed_version
from planner.rundir import RunDir
from planner.spec import Candidate, DeviceKind, Estimate, GpuSpec, JobSpec, Measured, Outcome, Provenance
from planner.spec._record import record
from planner.trial import Machine, WarmPool
from planner.trial.emulated import (
    Basis,
    EmulatedRole,
    emulated_outcome,
    emulated_roles,
    role_outcome,
    timed_steps,
)


@record
class Stage:
    """Where emulated trials run: the job, this machine, and the device of it that stands in (the target's own kind, or
    another that the catalog knows)."""

    job: JobSpec
    machine: Machine
    gpu: GpuSpec


@record
class Prospect:
    """What is known of a candidate before its roles run. `memory_limit_bytes` as `TrialTask` has it."""

    basis: Basis
    memory_limit_bytes: int
    micro_batch_s: float  # computed, on the device at hand


class EmulatedEvaluator:
    """The search's `Evaluator`; one process at a time, whatever the size of the cluster."""

    def __init__(
        self, stage: Stage, *, pool: WarmPool, run_dir: RunDir, on_start: Callable[[int, Candidate], None]
    ) -> None:
        self._stage = stage
        self._pool = pool
        self._run_dir = run_dir
        self._on_start = on_start

    def evaluate(self, number: int, candidate: Candidate) -> Outcome:
        """Emulate the candidate's roles; the first that does not run decides the outcome."""
        self._on_start(number, candidate)
        job, machine = self._stage.job, self._stage.machine
        prospect = prospect_of(candidate, stage=self._stage)
        roles = emulated_roles(
            candidate,
            job=job,
            deepspeed_version=deepspeed_version(machine),
            memory_limit_bytes=prospect.memory_limit_bytes,
            steps=timed_steps(wanted=job.trials.steps, micro_batch_s=prospect.micro_batch_s),
        )
        log_path = self._run_dir.log_file(number)
        measured: list[tuple[EmulatedRole, Measured]] = []
        log_path.write_text("", encoding="utf-8")
        for role in roles:
            outcome = role_outcome(self._run(role, log_path), role, basis=prospect.basis)
            if not isinstance(outcome, Measured):
                return outcome
            measured.append((role, outcome))
        return emulated_outcome(measured, candidate=candidate, job=job, basis=prospect.basis)

    def _run(self, role: EmulatedRole, log_path: Path) -> Outcome:
        own_log = log_path.with_name(f"{log_path.name}.part")
        try:
            return self._pool.run(role.task, timeout_s=self._stage.job.trials.timeout_s, log_path=own_log)
        finally:
            _append(own_log, log_path, heading=f"[emulated rank {role.rank}]")


def _append(part: Path, whole: Path, *, heading: str) -> None:
    if part.exists():
        with whole.open("a", encoding="utf-8") as log:
            log.write(f"{heading}\n{part.read_text(encoding='utf-8', errors='replace')}")
        part.unlink()


def prospect_of(candidate: Candidate, *, stage: Stage) -> Prospect:
    """What the device at hand can show of a candidate.

    Memory carries over: what a rank allocates does not depend on the device. What NCCL would hold is computed and
    added, and its room, and the context's, is kept free under the target's limit. Times of another device are scaled by
    the model's ratio of computing on both, and are then computed, not emulated.
    """
    job = stage.job
    target = job.cluster.gpu
    there = _estimate(candidate, job, target)
    here = there if stage.gpu.name == target.name else _estimate(candidate, job, stage.gpu)
    breakdown = there.memory.breakdown
    fixed_bytes = breakdown.communication_bytes + breakdown.context_bytes
    limit_bytes = max(1, target.memory_usable_bytes - fixed_bytes)
    room_bytes = _room_bytes(stage.machine) - breakdown.context_bytes
    basis = Basis(
        compute_scale=_computing_s(there) / _computing_s(here),
        step_end_scale=there.time.optimizer_s / here.time.optimizer_s if here.time.optimizer_s > 0 else 1.0,
        communication_bytes=breakdown.communication_bytes,
        holds_target=room_bytes >= limit_bytes,
        time_kind=Provenance.EMULATED if stage.gpu.name == target.name else Provenance.COMPUTED,
    )
    return Prospect(
        basis=basis,
        memory_limit_bytes=min(limit_bytes, room_bytes) if target.device is DeviceKind.CUDA else limit_bytes,
        micro_batch_s=_computing_s(here) / candidate.batch.gradient_accumulation_steps,
    )


def _room_bytes(machine: Machine) -> int:
    """What one process may use; on CPU it need not share the host with other ranks."""
    return machine.host_available_bytes if machine.device is DeviceKind.CPU else machine.usable_bytes


def _estimate(candidate: Candidate, job: JobSpec, gpu: GpuSpec) -> Estimate:
    (estimate,) = estimate_candidates(replace(job, cluster=replace(job.cluster, gpu=gpu)), (candidate,))
    return estimate


def _computing_s(estimate: Estimate) -> float:
    return max(estimate.time.compute_s + estimate.time.recompute_s + estimate.time.host_s, 1e-9)
