"""What is true of this machine's GPUs beyond their label, as a plan has to take it. Pure.

MIG slices are devices of their own size; other processes' memory, memory nobody owns up to, and errors of the memory
itself are told before anything runs. Looking is `probe`'s; this owns what a planning makes of it.
"""

from __future__ import annotations

from dataclasses import replace

from planner.probe.examine import all_slices
from planner.probe.faults_gpu import gpu_faults
from planner.probe.nvidia import GpuState
from planner.probe.records import MachineReport, MigSlice
from planner.rules import Severity
from planner.trial.machine import Machine

# Of the faults that `planner probe` knows, those that change what a trial on these devices measures, or ends it.
_TOLD = frozenset(
    {
        "machine-gpu-shared",
        "machine-gpu-memory-held",
        "machine-gpu-broken-memory",
        "machine-gpu-ecc-errors",
        "machine-gpu-needs-reset",
        "machine-mig-without-slices",
    }
)
MOVED_BYTES = 256 << 20  # of free memory between two trials: more than drivers and displays make up and give back


def with_devices_as_they_are(machine: Machine, report: MachineReport) -> Machine:
    """The machine with its MIG slices in place of the whole GPU, and with what is wrong with its devices as notes."""
    found = (one for one in gpu_faults(report) if one.code in _TOLD and one.severity is not Severity.INFO)
    notes = tuple(f"{one.message}: {one.why}; {one.fix}" for one in found)
    machine = replace(machine, notes=(*machine.notes, *notes))
    slices = all_slices(report.sight)
    return _of_slices(machine, slices) if slices else machine


def _of_slices(machine: Machine, slices: tuple[MigSlice, ...]) -> Machine:
    """CUDA shows one process one slice, so a plan is for one: the least of them, which any of them can stand in for."""
    least = min(slices, key=lambda one: (one.total_bytes, one.free_bytes))
    note = (
        f"the GPUs are cut into {len(slices)} MIG slices; the plan is for one ({least.profile}), since CUDA gives a "
        "process no more than one"
    )
    return replace(
        machine,
        num_devices=1,
        usable_bytes=min(least.free_bytes, least.total_bytes),
        total_bytes=least.total_bytes,
        whole_bytes=machine.total_bytes,
        share_fraction=least.share_fraction,
        fingerprint=f"{machine.fingerprint}-mig-{least.profile}",
        notes=(*machine.notes, note),
    )


def moved_memory(before: tuple[GpuState, ...], now: tuple[GpuState, ...]) -> tuple[str, ...]:
    """What somebody else took or gave back between two moments at which no trial ran, a sentence per GPU."""
    free_before = {gpu.uuid: gpu.free_bytes for gpu in before}
    return tuple(
        f"another process {'took' if moved > 0 else 'gave back'} {abs(moved) / 2**30:.1f} GiB of GPU {gpu.index} "
        "between two trials: memory and speed of the trials around it may be off"
        for gpu in now
        if abs(moved := free_before.get(gpu.uuid, gpu.free_bytes) - gpu.free_bytes) > MOVED_BYTES
    )
