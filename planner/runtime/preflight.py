"""Before step 1: is there as much memory as the plan needs on this rank's device, and if not, who holds it?

Owns looking and saying. What follows (another try, a fallback) is the supervisor's.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import psutil

from planner.runtime.measure import GpuMemory
from planner.spec import DeviceKind, RunPromise
from planner.spec._record import record

GIB = 1 << 30
NUM_NAMED = 3  # holders named, largest first


class NotEnoughFreeMemory(Exception):
    """The device has less free memory than the plan needs, before the training has taken any."""


@record
class Holder:
    """A process that holds memory of the device. `used_bytes` 0: the driver does not say."""

    pid: int
    name: str
    used_bytes: int


@record
class FreeMemory:
    """What is free before this rank takes any, and who holds the rest."""

    free_bytes: int
    holders: tuple[Holder, ...]


def check_free_memory(promise: RunPromise, found: FreeMemory, *, sharing: int) -> str:
    """A sentence for the log; "" where the plan names no figure. `sharing`: ranks that take from the same memory.

    Raises NotEnoughFreeMemory when a measured need is more than what is free; a computed one is only warned of.
    """
    needed = promise.device_used_bytes * sharing
    if not needed:
        return ""
    figures = f"{found.free_bytes / GIB:.2f} GiB free, the plan needs {needed / GIB:.2f} GiB"
    if found.free_bytes >= needed:
        return f"preflight: {figures}"
    holders = "; ".join(
        f"process {holder.pid} ({holder.name}) holds {holder.used_bytes / GIB:.2f} GiB" for holder in found.holders
    )
    text = f"preflight: only {figures}; {holders or 'no other process is seen to hold it'}"
    if promise.is_measured:
        raise NotEnoughFreeMemory(text)
    return f"warning: {text}; the need was computed, not measured, so the run is tried"


def look_at_device(
    device: DeviceKind, *, uuid: str, gpus_before: tuple[GpuMemory, ...], fallback_free_bytes: int
) -> FreeMemory:
    """The device's free memory before this process opened it (NVML), else `fallback_free_bytes`; on CPU the host's."""
    if device is DeviceKind.CPU:
        return FreeMemory(free_bytes=int(psutil.virtual_memory().available), holders=_largest_processes())
    before = next((gpu for gpu in gpus_before if gpu.uuid == uuid), None)
    free = before.total_bytes - before.used_bytes if before is not None else fallback_free_bytes
    return FreeMemory(free_bytes=free, holders=_processes_on(uuid))


def _largest_processes() -> tuple[Holder, ...]:
    found = []
    for process in psutil.process_iter(["pid", "name", "memory_info"]):
        memory = process.info["memory_info"]
        if memory is not None and process.pid != psutil.Process().pid:
            found.append(Holder(pid=process.pid, name=process.info["name"] or "?", used_bytes=int(memory.rss)))
    return tuple(sorted(found, key=lambda holder: -holder.used_bytes)[:NUM_NAMED])


def _processes_on(uuid: str) -> tuple[Holder, ...]:
    if importlib.util.find_spec("pynvml") is None:
        return ()
    nvml: Any = importlib.import_module("pynvml")
    own = psutil.Process().pid
    try:
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        nvml.nvmlShutdown()
    except nvml.NVMLError as problem:
        print(f"[preflight] NVML does not name the processes of the device ({problem})", flush=True)
        return ()
    holders = [
        Holder(pid=entry.pid, name=_name_of(entry.pid), used_bytes=int(entry.usedGpuMemory or 0))
        for entry in running
        if entry.pid != own
    ]
    return tuple(sorted(holders, key=lambda holder: -holder.used_bytes)[:NUM_NAMED])


def _name_of(pid: int) -> str:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:  # of another container, or gone
        return "not visible from here"
