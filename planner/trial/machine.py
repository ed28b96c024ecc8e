"""What this machine is, as far as trials are concerned: devices, what of them is usable, host, versions.

Asks the driver and the operating system, never torch, and opens no device. Leaves matching a device to the catalog, and
turning a machine into a cluster, to whoever asks.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
from collections.abc import Mapping
from pathlib import Path

from planner import __version__
from planner.probe.amd import probe_amd
from planner.probe.gpus import slice_states
from planner.probe.host import MAX_CPU_RANKS, cpu_name, host_memory, usable_cores
from planner.probe.nvidia import GpuState, probe_nvidia
from planner.spec import DeviceKind
from planner.spec._record import record

_PACKAGES = ("torch", "deepspeed", "transformers", "optuna")


@record
class Machine:
    """`usable_bytes` and `total_bytes` are of the least of its devices: the driver's free memory and total, not the
    label. On CPU a device is one rank's even share of the host's memory. `gpus` name who else holds memory there.
    `notes`: what could not be found out, and why, in sentences.
    """

    device: DeviceKind
    gpu_name: str  # as the driver spells it; "" on CPU
    cpu_name: str
    num_devices: int
    usable_bytes: int
    total_bytes: int
    host_memory_bytes: int
    host_available_bytes: int
    cpu_cores: int
    versions: tuple[tuple[str, str], ...]
    fingerprint: str  # equal on equal hardware and software, whatever else runs there
    whole_bytes: int = 0  # of the GPU that a MIG slice is part of; 0: it is a whole one
    share_fraction: float = 1.0  # of its compute
    gpus: tuple[GpuState, ...] = ()
    notes: tuple[str, ...] = ()

    def describe(self) -> str:
        """One line for people."""
        gib = 1 << 30
        host = f"{self.cpu_cores} cores, {self.host_memory_bytes / gib:.0f} GiB host memory"
        if self.device is DeviceKind.CPU:
            return f"{self.cpu_name}, {host}; up to {self.num_devices} CPU ranks of {self._usable()} each"
        busy = sum(1 for gpu in self.gpus if gpu.processes)
        others = f"; other processes hold memory on {busy} of them" if busy else ""
        return f"{self.num_devices} x {self.gpu_name}, {self._usable()} usable each; {host}{others}"

    def _usable(self) -> str:
        return f"{self.usable_bytes / (1 << 30):.1f} GiB"


def probe_machine(environment: Mapping[str, str] | None = None) -> Machine:
    """Look at this machine, as a program started in `environment` (default: this process's) would find it."""
    shell = os.environ if environment is None else environment
    nvidia = probe_nvidia(shell)
    if nvidia.gpus or nvidia.note:
        versions = _versions("nvidia-driver", nvidia.driver_version)
        notes = (nvidia.note,) if nvidia.note else ()
        if not nvidia.gpus:
            return _cpu_machine(versions, notes)
        return _gpu_machine(slice_states(nvidia, shell) or nvidia.gpus, versions, notes)
    amd = probe_amd(shell, Path("/"))
    versions = _versions("amdgpu-driver", amd.driver_version)
    if amd.gpus:
        return _gpu_machine(tuple(gpu.state for gpu in amd.gpus), versions, ())
    return _cpu_machine(versions, (amd.problem,) if amd.problem else ())


def probe_cpu() -> Machine:
    """This machine as trials on its CPU find it, whatever GPUs it has."""
    return _cpu_machine(_versions(), ())


def _versions(driver: str = "", driver_version: str = "") -> tuple[tuple[str, str], ...]:
    found = [("planner", __version__), ("python", platform.python_version())]
    for package in _PACKAGES:
        try:
            found.append((package, importlib.metadata.version(package)))
        except importlib.metadata.PackageNotFoundError:
            continue  # its absence is for the worker to report, with the traceback
    return tuple(found + ([(driver, driver_version)] if driver_version else []))


def _gpu_machine(gpus: tuple[GpuState, ...], versions: tuple[tuple[str, str], ...], notes: tuple[str, ...]) -> Machine:
    total, available = host_memory()
    names = sorted({gpu.name for gpu in gpus})
    if len(names) > 1:
        notes += (f"the GPUs differ ({', '.join(names)}); each is taken for the least of them",)
    least = min(gpus, key=lambda gpu: gpu.total_bytes)
    return Machine(
        device=DeviceKind.CUDA,
        gpu_name=least.name,
        cpu_name=cpu_name(),
        num_devices=len(gpus),
        usable_bytes=min(gpu.free_bytes for gpu in gpus),
        total_bytes=least.total_bytes,
        host_memory_bytes=total,
        host_available_bytes=available,
        cpu_cores=usable_cores(),
        versions=versions,
        fingerprint=_fingerprint("cuda", *(f"{gpu.name}/{_gib(gpu.total_bytes)}" for gpu in gpus), versions=versions),
        gpus=gpus,
        notes=notes,
    )


def _cpu_machine(versions: tuple[tuple[str, str], ...], notes: tuple[str, ...]) -> Machine:
    total, available = host_memory()
    cores = usable_cores()
    return Machine(
        device=DeviceKind.CPU,
        gpu_name="",
        cpu_name=cpu_name(),
        num_devices=MAX_CPU_RANKS,
        usable_bytes=available // MAX_CPU_RANKS,
        total_bytes=total // MAX_CPU_RANKS,
        host_memory_bytes=total,
        host_available_bytes=available,
        cpu_cores=cores,
        versions=versions,
        fingerprint=_fingerprint("cpu", cpu_name(), f"{cores}/{_gib(total)}", versions=versions),
        notes=notes,
    )


def _gib(size_bytes: int) -> int:
    return round(size_bytes / (1 << 30))


def _fingerprint(device: str, *hardware: str, versions: tuple[tuple[str, str], ...]) -> str:
    parts = [*hardware, *(f"{name}={version}" for name, version in versions if name not in ("planner", "optuna"))]
    return f"{device}-{hashlib.sha256('|'.join(parts).encode()).hexdigest()[:12]}"
