"""The meter of one rank: how much memory each section of a trial took at most, on the device and on the host.

Owns reading peaks and starting them afresh. Leaves the steps' times to `worker_rank` and the phases' to the session.
On CPU "device memory" is the process's own resident memory: anonymous pages above what it held right after the fork,
without the text of shared libraries that it merely touched.
"""

from __future__ import annotations

import importlib
import importlib.util
import threading
from pathlib import Path
from typing import Any, Protocol

import psutil
import torch

from planner.runtime.worker_process import status_bytes
from planner.spec import DeviceKind
from planner.spec._record import record

_SAMPLING_PERIOD_S = 0.01


@record
class SectionPeaks:
    """The most of each during one section. `used_bytes` holds the context and what libraries hold themselves."""

    allocated_bytes: int
    reserved_bytes: int
    used_bytes: int
    host_bytes: int  # of the whole process, shared libraries included


@record
class MemoryNow:
    """What is held at this moment. `unusable_bytes`: reserved, but in split blocks that nobody uses. `limit_bytes`:
    what this process can have at most."""

    allocated_bytes: int
    reserved_bytes: int
    free_bytes: int
    limit_bytes: int
    unusable_bytes: int


class Meter(Protocol):
    """Made right after the fork, before the device is touched."""

    def allocated_bytes(self) -> int:
        """Allocated now."""
        ...

    def end_section(self) -> SectionPeaks:
        """The peaks since the last section ended (since the meter was made, for the first); the next one begins."""
        ...

    def now(self) -> MemoryNow:
        """What is held now."""
        ...

    def phase_peak_bytes(self) -> int:
        """The most allocated since the last such question (or section); the section's own peaks stay whole."""
        ...

    def allocator_retries(self) -> int:
        """How often the allocator had to give cached blocks back to satisfy a request."""
        ...


@record
class GpuMemory:
    """What the driver says of one GPU. `used_bytes` counts all processes, and what the driver keeps for itself."""

    uuid: str
    used_bytes: int
    total_bytes: int


def open_meter(device: DeviceKind, *, local_rank: int, gpus_before: tuple[GpuMemory, ...]) -> Meter:
    """The meter of this process's device. `gpus_before`: as `read_driver_memory` saw them before the trial."""
    return CudaMeter(local_rank, gpus_before) if device is DeviceKind.CUDA else CpuMeter()


class CpuMeter:
    """Reads the kernel's own high-water mark, which misses nothing; where it cannot be reset, samples instead."""

    def __init__(self, clear_refs: Path = Path("/proc/self/clear_refs")) -> None:
        self._clear_refs = clear_refs
        (self._start_bytes,) = status_bytes("RssAnon")
        self._sampler = None if self._reset_high_water() else _Sampler()
        self._carried_bytes = 0  # peak of the section's earlier phases

    def _reset_high_water(self) -> bool:
        try:
            self._clear_refs.write_text("5")  # proc(5): reset the peak resident set size
        except OSError:  # not permitted, or not offered by this kernel (some sandboxes)
            return False
        return True

    def allocated_bytes(self) -> int:
        (now,) = status_bytes("RssAnon")
        return max(0, now - self._start_bytes)

    def end_section(self) -> SectionPeaks:
        (high,) = status_bytes("VmHWM")
        peak = max(self._peak_bytes(), self._carried_bytes)
        self._carried_bytes = 0
        return SectionPeaks(allocated_bytes=peak, reserved_bytes=peak, used_bytes=peak, host_bytes=high)

    def phase_peak_bytes(self) -> int:
        peak = self._peak_bytes()
        self._carried_bytes = max(self._carried_bytes, peak)
        return peak

    def _peak_bytes(self) -> int:
        """The most since this was last asked."""
        high, anonymous, file_bytes, shared = status_bytes("VmHWM", "RssAnon", "RssFile", "RssShmem")
        if self._sampler is None:
            # File pages only grow while a program warms up, so those held now were held at the peak of the last step.
            peak = max(high - file_bytes - shared, anonymous) - self._start_bytes
            self._reset_high_water()
        else:
            peak = max(self._sampler.take_peak(), anonymous) - self._start_bytes
        return max(0, peak)

    def now(self) -> MemoryNow:
        held = self.allocated_bytes()
        available = int(psutil.virtual_memory().available)
        return MemoryNow(
            allocated_bytes=held,
            reserved_bytes=held,
            free_bytes=available,
            limit_bytes=held + available,
            unusable_bytes=0,
        )

    def allocator_retries(self) -> int:
        return 0


class _Sampler:
    """Looks at the anonymous resident memory every hundredth of a second, from a thread of its own."""

    def __init__(self) -> None:
        self._peak_bytes = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        pause = threading.Event()
        while not pause.wait(_SAMPLING_PERIOD_S):
            self._peak_bytes = max(self._peak_bytes, *status_bytes("RssAnon"))

    def take_peak(self) -> int:
        peak, self._peak_bytes = self._peak_bytes, 0
        return peak


class CudaMeter:
    """The caching allocator's peaks, and the driver's view of what is held outside it.

    `used` = (total - free - what other processes held before) - reserved now + most reserved: the driver is asked once
    at the end of a section, when cached blocks may have been given back, so the allocator's part is taken at its peak.
    """

    def __init__(self, local_rank: int, gpus_before: tuple[GpuMemory, ...]) -> None:
        self._device = local_rank
        self._before_by_uuid = {gpu.uuid: gpu for gpu in gpus_before}
        self._carried = (0, 0)  # most allocated and reserved in the section's earlier phases

    def allocated_bytes(self) -> int:
        return int(torch.cuda.memory_allocated(self._device))

    def end_section(self) -> SectionPeaks:
        torch.cuda.synchronize(self._device)
        free, total = torch.cuda.mem_get_info(self._device)
        carried_allocated, carried_reserved = self._carried
        self._carried = (0, 0)
        peak_reserved = max(carried_reserved, int(torch.cuda.max_memory_reserved(self._device)))
        outside = total - free - self._others_bytes(total) - int(torch.cuda.memory_reserved(self._device))
        peaks = SectionPeaks(
            allocated_bytes=max(carried_allocated, int(torch.cuda.max_memory_allocated(self._device))),
            reserved_bytes=peak_reserved,
            used_bytes=max(0, outside) + peak_reserved,
            host_bytes=status_bytes("VmHWM")[0],
        )
        torch.cuda.reset_peak_memory_stats(self._device)
        return peaks

    def allocator_retries(self) -> int:
        return int(torch.cuda.memory_stats(self._device).get("num_alloc_retries", 0))

    def phase_peak_bytes(self) -> int:
        allocated = int(torch.cuda.max_memory_allocated(self._device))  # the host's own books: nothing is waited for
        reserved = int(torch.cuda.max_memory_reserved(self._device))
        self._carried = (max(self._carried[0], allocated), max(self._carried[1], reserved))
        torch.cuda.reset_peak_memory_stats(self._device)
        return allocated

    def now(self) -> MemoryNow:
        free, total = torch.cuda.mem_get_info(self._device)
        stats = torch.cuda.memory_stats(self._device)
        return MemoryNow(
            allocated_bytes=int(torch.cuda.memory_allocated(self._device)),
            reserved_bytes=int(torch.cuda.memory_reserved(self._device)),
            free_bytes=free,
            limit_bytes=total,
            unusable_bytes=int(stats.get("inactive_split_bytes.all.current", 0)),
        )

    def _others_bytes(self, total_bytes: int) -> int:
        """Held by others before this process came. The driver's `used` also counts what it keeps for itself, which is
        the part of its total that CUDA does not show."""
        uuid = f"GPU-{torch.cuda.get_device_properties(self._device).uuid}"
        before = self._before_by_uuid.get(uuid)
        if before is None:  # no NVML, or a MIG slice: all that is used counts as ours
            return 0
        kept_by_driver = max(0, before.total_bytes - total_bytes)
        return max(0, before.used_bytes - kept_by_driver)


def read_driver_memory() -> tuple[GpuMemory, ...]:
    """Every GPU as NVML tells, which opens no context; none without NVML. Not to be called in a forked child."""
    if importlib.util.find_spec("pynvml") is None:
        return ()
    nvml: Any = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
        gpus = []
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = nvml.nvmlDeviceGetUUID(handle)
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            name = uuid if isinstance(uuid, str) else uuid.decode()
            gpus.append(GpuMemory(uuid=name, used_bytes=int(memory.used), total_bytes=int(memory.total)))
        nvml.nvmlShutdown()
    except nvml.NVMLError as problem:
        print(f"[meter] NVML does not answer ({problem}); memory of other processes is counted as the trial's")
        return ()
    return tuple(gpus)
