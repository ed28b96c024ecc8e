"""MIG slices are devices of their own size, and what is wrong with a GPU is told before anything runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.app.jobs import machine_facts
from planner.jobfile import load_job, resolve_job
from planner.probe.examine import assemble
from planner.probe.host import look_at_host
from planner.probe.nvidia import GpuState, ProcessMemory
from planner.probe.records import (
    EccState,
    GpuDetails,
    GpuSight,
    MachineReport,
    MigSlice,
    NetworkState,
    SeenGpu,
    SoftwareState,
)
from planner.spec import DeviceKind
from planner.trial.devices import MOVED_BYTES, moved_memory, with_devices_as_they_are
from planner.trial.machine import Machine

GIB = 1 << 30
NAME = "NVIDIA H100 80GB HBM3"
SLICES = tuple(
    MigSlice(uuid=f"MIG-{n}", profile="1g.10gb", total_bytes=10 * GIB, free_bytes=free * GIB, share_fraction=1 / 7)
    for n, free in enumerate((9, 8))
)


def state(*, free: int = 79, processes: tuple[ProcessMemory, ...] = ()) -> GpuState:
    return GpuState(index=0, uuid="GPU-a", name=NAME, total_bytes=80 * GIB, free_bytes=free * GIB, processes=processes)


def gpu_report(gpu: GpuState, details: GpuDetails | None = None) -> MachineReport:
    """A machine with this GPU alone."""
    sight = GpuSight(gpus=(SeenGpu(state=gpu, details=details or GpuDetails()),), vendor="nvidia")
    return assemble(sight=sight, host=look_at_host({}), network=NetworkState(), software=SoftwareState(python="3.11"))


def machine(gpu: GpuState) -> Machine:
    return Machine(
        device=DeviceKind.CUDA,
        gpu_name=NAME,
        cpu_name="cpu",
        num_devices=1,
        usable_bytes=gpu.free_bytes,
        total_bytes=gpu.total_bytes,
        host_memory_bytes=100 * GIB,
        host_available_bytes=90 * GIB,
        cpu_cores=8,
        versions=(),
        fingerprint="cuda-1",
        gpus=(gpu,),
    )


def test_healthy_gpu_is_taken_as_it_is() -> None:
    gpu = state()
    assert with_devices_as_they_are(machine(gpu), gpu_report(gpu)) == machine(gpu)


@pytest.mark.parametrize(
    ("gpu", "details", "word"),
    [
        (state(free=50, processes=(ProcessMemory(pid=4242, used_bytes=29 * GIB),)), GpuDetails(), "4242"),
        (state(free=50), GpuDetails(), "by no process that can be seen"),
        (state(), GpuDetails(ecc=EccState(uncorrected=2)), "could not be corrected"),
        (state(), GpuDetails(ecc=EccState(rows_pending=True)), "waits to be replaced"),
    ],
)
def test_what_is_wrong_with_a_gpu_is_noted(gpu: GpuState, details: GpuDetails, word: str) -> None:
    found = with_devices_as_they_are(machine(gpu), gpu_report(gpu, details))
    (note,) = found.notes
    assert word in note
    assert replace(found, notes=()) == machine(gpu)


def test_slice_is_a_device_with_its_own_memory_and_its_share_of_the_rates(tmp_path: Path) -> None:
    details = GpuDetails(mig_enabled=True, mig_slices=SLICES)
    found = with_devices_as_they_are(machine(state()), gpu_report(state(), details))
    assert (found.num_devices, found.usable_bytes, found.total_bytes) == (1, 8 * GIB, 10 * GIB)
    assert any("2 MIG slices" in note for note in found.notes) and found.fingerprint != "cuda-1"
    path = tmp_path / "job.yaml"
    path.write_text(
        "model: {name: gpt2}\ntraining: {seq_len: 512, global_batch_size: 8}\ncluster: {gpu: auto, gpus_per_node: 1}\n"
    )
    job = resolve_job(load_job(path, (), site_defaults=False), machine=machine_facts(found), traced=None)
    whole = resolve_job(load_job(path, (), site_defaults=False), machine=machine_facts(machine(state())), traced=None)
    gpu, full = job.cluster.gpu, whole.cluster.gpu
    assert gpu.memory_usable_bytes == 8 * GIB and gpu.name == full.name
    assert gpu.peak_bf16_flops_per_s == pytest.approx(full.peak_bf16_flops_per_s / 7)
    assert gpu.memory_bandwidth_bytes_per_s == pytest.approx(full.memory_bandwidth_bytes_per_s / 8)


def test_memory_that_somebody_else_moves_between_trials_is_told() -> None:
    before = (state(free=79),)
    assert moved_memory(before, before) == ()
    (took,) = moved_memory(before, (state(free=60),))
    assert "took 19.0 GiB of GPU 0" in took
    (gave,) = moved_memory((state(free=60),), before)
    assert "gave back 19.0 GiB" in gave
    little = replace(state(), free_bytes=79 * GIB - MOVED_BYTES)
    assert moved_memory(before, (little,)) == ()
    assert moved_memory(before, (replace(state(free=1), uuid="GPU-new"),)) == ()
