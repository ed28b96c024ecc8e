"""What a device at hand can show of a candidate for another cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.app.draft import draft_plan, estimate_candidates
from planner.app.emulation import Prospect, Stage, prospect_of
from planner.catalog import load_gpu
from planner.spec import Candidate, DeviceKind, Estimate, JobSpec, Provenance
from planner.trial import Machine
from tests.unit.app.test_ability import CPU, EIGHT_H100, GIB, H200
from tests.unit.jobfile.jobs import MINIMAL, job_of

H100_NAME, H200_NAME = "h100-sxm-80gb", "h200-sxm-141gb"
ONE_H200 = replace(H200, usable_bytes=139 * GIB)
ONE_H100 = replace(H200, gpu_name="NVIDIA H100 80GB HBM3", usable_bytes=79 * GIB, total_bytes=81559 << 20)


def best_of(job: JobSpec) -> tuple[Candidate, Estimate]:
    draft = draft_plan(job)
    candidate = draft.row(int(draft.order[0])).candidate
    return candidate, estimate_candidates(job, (candidate,))[0]


def prospect(job: JobSpec, machine: Machine, gpu: str) -> tuple[Prospect, Estimate]:
    candidate, estimate = best_of(job)
    stand_in = job.cluster.gpu if machine.device is DeviceKind.CPU else load_gpu(gpu)
    return prospect_of(candidate, stage=Stage(job=job, machine=machine, gpu=stand_in)), estimate


def test_same_gpu_shows_memory_and_time_and_leaves_room_for_nccl(tmp_path: Path) -> None:
    job = job_of(tmp_path, EIGHT_H100.replace(H100_NAME, H200_NAME), "cluster.nodes=2")
    found, estimate = prospect(job, ONE_H200, H200_NAME)
    memory = estimate.memory.breakdown
    assert (found.basis.compute_scale, found.basis.step_end_scale) == (1.0, 1.0)
    assert found.basis.time_kind is Provenance.EMULATED
    assert found.basis.communication_bytes == memory.communication_bytes > 0
    fixed = memory.communication_bytes + memory.context_bytes
    assert found.memory_limit_bytes == job.cluster.gpu.memory_usable_bytes - fixed
    assert found.basis.holds_target
    assert found.micro_batch_s > 0.0


def test_larger_gpu_is_held_to_the_targets_memory_and_its_times_are_scaled(tmp_path: Path) -> None:
    job = job_of(tmp_path, EIGHT_H100, "cluster.nodes=2")
    found, estimate = prospect(job, ONE_H200, H200_NAME)
    assert found.basis.time_kind is Provenance.COMPUTED
    assert found.basis.holds_target
    assert found.memory_limit_bytes < 80 * GIB
    assert 1.0 <= found.basis.compute_scale < 1.2  # an H100 has the same units and slower memory
    assert found.basis.step_end_scale > 1.1
    assert found.basis.communication_bytes == estimate.memory.breakdown.communication_bytes


def test_smaller_gpu_cannot_hold_the_targets_memory(tmp_path: Path) -> None:
    job = job_of(tmp_path, EIGHT_H100.replace(H100_NAME, H200_NAME), "cluster.nodes=2")
    found, _estimate = prospect(job, ONE_H100, H100_NAME)
    assert not found.basis.holds_target
    assert found.memory_limit_bytes < 79 * GIB
    assert found.basis.compute_scale <= 1.0


@pytest.mark.parametrize(("available", "holds"), [(16 * GIB, True), (1 * GIB, False)])
def test_cpu_rank_is_held_to_what_the_job_grants_if_the_host_has_it(
    tmp_path: Path, available: int, holds: bool
) -> None:
    job = job_of(tmp_path, MINIMAL, "cluster.gpus_per_node=8", "cluster.memory_gib=2")
    found, _estimate = prospect(job, replace(CPU, host_available_bytes=available), "cpu")
    assert found.memory_limit_bytes == 2 * GIB
    assert found.basis.holds_target is holds
    assert (found.basis.communication_bytes, found.basis.time_kind) == (0, Provenance.EMULATED)
