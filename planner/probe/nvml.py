"""NVIDIA GPUs in detail through NVML (`nvidia-ml-py`): slots, links, error counts, slices, how they are set.

Every question is asked by itself: what one driver or GPU does not answer is None and the rest stands. Opens no device.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from itertools import combinations
from typing import Any

from planner.probe.nvidia import GpuState
from planner.probe.records import EccState, GpuDetails, GpuPair, MigSlice, PcieLink
from planner.spec._record import record

_MAX_NVLINKS = 18
_TO_SWITCH = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH
# One NVLink, one direction, by version (NVIDIA's data sheets: 6 of V100, 12 of A100, 18 of H100 and B200).
NVLINK_BYTES_PER_S = {1: 20e9, 2: 25e9, 3: 25e9, 4: 25e9, 5: 50e9}
# nvmlGpuTopologyLevel_t as `nvidia-smi topo -m` spells it.
_LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
# nvmlClocksThrottleReasons: those of the hardware and of heat. Idle, user's clocks and the software power cap are
# everyday.
_THROTTLES = {
    0x08: "the hardware slows it (heat, power brake or external trigger)",
    0x20: "it is too hot (software)",
    0x40: "it is too hot (hardware)",
    0x80: "the power supply asks it to brake",
}
_FABRIC_STATES = {1: "not started", 2: "in progress", 3: "completed"}
_PRODUCT_OF_SLICES = 7  # compute slices of a whole GPU under MIG


@record
class LibraryDetails:
    """By index of the GPU. `cuda_version`: the newest that the driver runs."""

    details: dict[int, GpuDetails]
    pairs: tuple[GpuPair, ...]
    cuda_version: str


def is_installed() -> bool:
    """Whether NVML's Python binding can be imported."""
    return importlib.util.find_spec("pynvml") is not None


def ask_library(gpus: Sequence[GpuState]) -> LibraryDetails | None:
    """Details of these GPUs; None when NVML does not start."""
    library = _Library(importlib.import_module("pynvml"))
    if not library.start():
        return None
    try:
        handles = {gpu.index: library.ask("nvmlDeviceGetHandleByIndex", gpu.index) for gpu in gpus}
        known = {index: handle for index, handle in handles.items() if handle is not None}
        return LibraryDetails(
            details={index: _details(library, handle) for index, handle in known.items()},
            pairs=tuple(_pair(library, known, first, second) for first, second in combinations(sorted(known), 2)),
            cuda_version=_cuda_version(library.ask("nvmlSystemGetCudaDriverVersion")),
        )
    finally:
        library.ask("nvmlShutdown")


class _Library:
    """NVML with one way to fail: an unanswered question is None."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def start(self) -> bool:
        try:
            self._module.nvmlInit()
        except self._module.NVMLError:
            return False
        return True

    def ask(self, function: str, *arguments: Any) -> Any:
        """The answer; None when this NVML lacks the function, or the driver or the GPU does not answer."""
        if not hasattr(self._module, function):
            return None
        try:
            return getattr(self._module, function)(*arguments)
        except (self._module.NVMLError, TypeError):  # TypeError: an older binding takes other arguments
            return None

    def number(self, function: str, *arguments: Any) -> int | None:
        """A whole number; None for anything else."""
        value = self.ask(function, *arguments)
        return int(value) if isinstance(value, (int, float)) else None


def _details(library: _Library, handle: Any) -> GpuDetails:
    major_minor = library.ask("nvmlDeviceGetCudaComputeCapability", handle)
    mig = library.ask("nvmlDeviceGetMigMode", handle)
    reasons = library.number("nvmlDeviceGetCurrentClocksThrottleReasons", handle) or 0
    links = _active_links(library, handle)
    version = library.number("nvmlDeviceGetNvLinkVersion", handle, links[0]) if links else None
    return GpuDetails(
        pci_address=_address(library.ask("nvmlDeviceGetPciInfo", handle)),
        compute_capability=".".join(map(str, major_minor)) if major_minor else "",
        pcie=PcieLink(
            generation=library.number("nvmlDeviceGetCurrPcieLinkGeneration", handle),
            max_generation=library.number("nvmlDeviceGetMaxPcieLinkGeneration", handle),
            width=library.number("nvmlDeviceGetCurrPcieLinkWidth", handle),
            max_width=library.number("nvmlDeviceGetMaxPcieLinkWidth", handle),
        ),
        ecc=_ecc(library, handle),
        mig_enabled=bool(mig and mig[0] == 1),
        mig_slices=_slices(library, handle) if mig and mig[0] == 1 else (),
        persistence=_switch(library.number("nvmlDeviceGetPersistenceMode", handle)),
        compute_mode=_COMPUTE_MODES.get(library.number("nvmlDeviceGetComputeMode", handle) or 0, ""),
        power_limit_w=_watts(library.number("nvmlDeviceGetEnforcedPowerLimit", handle)),
        power_default_w=_watts(library.number("nvmlDeviceGetPowerManagementDefaultLimit", handle)),
        throttled=tuple(words for bit, words in _THROTTLES.items() if reasons & bit),
        nvlinks=None if links is None else len(links),
        nvlink_version=version,
        nvlink_bytes_per_s=NVLINK_BYTES_PER_S.get(version or 0),
        fabric_state=_fabric(library, handle),
        memory_clock_mhz=library.number("nvmlDeviceGetMaxClockInfo", handle, 2),
        memory_bus_bits=library.number("nvmlDeviceGetMemoryBusWidth", handle),
        sm_clock_mhz=library.number("nvmlDeviceGetMaxClockInfo", handle, 1),
        num_cores=library.number("nvmlDeviceGetNumGpuCores", handle),
    )


def _ecc(library: _Library, handle: Any) -> EccState:
    mode = library.ask("nvmlDeviceGetEccMode", handle)
    rows = library.ask("nvmlDeviceGetRemappedRows", handle)  # corrected, uncorrected, pending, failed
    retired = library.ask("nvmlDeviceGetRetiredPagesPendingStatus", handle)  # before Ampere
    return EccState(
        enabled=_switch(mode[0]) if mode else None,
        corrected=library.number("nvmlDeviceGetTotalEccErrors", handle, 0, 0),
        uncorrected=library.number("nvmlDeviceGetTotalEccErrors", handle, 1, 0),
        rows_pending=bool(rows[2]) if rows else _switch(retired),
        rows_failed=bool(rows[3]) if rows else None,
    )


def _slices(library: _Library, handle: Any) -> tuple[MigSlice, ...]:
    """The MIG devices that were made; a GPU under MIG without any runs nothing."""
    found = []
    for place in range(library.number("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        device = library.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, place)
        memory = library.ask("nvmlDeviceGetMemoryInfo", device) if device is not None else None
        if memory is None:
            continue
        attributes = library.ask("nvmlDeviceGetAttributes_v2", device) or library.ask("nvmlDeviceGetAttributes", device)
        slices = int(getattr(attributes, "gpuInstanceSliceCount", 0)) if attributes else 0
        total = int(memory.total)
        found.append(
            MigSlice(
                uuid=_text(library.ask("nvmlDeviceGetUUID", device)),
                profile=f"{slices or '?'}g.{round(total / (1 << 30))}gb",
                total_bytes=total,
                free_bytes=int(memory.free),
                share_fraction=min(1.0, (slices or 1) / _PRODUCT_OF_SLICES),
            )
        )
    return tuple(found)


def _active_links(library: _Library, handle: Any) -> list[int] | None:
    """The NVLinks that are up; None when the driver answers for none of them."""
    states = {link: library.number("nvmlDeviceGetNvLinkState", handle, link) for link in range(_MAX_NVLINKS)}
    if all(state is None for state in states.values()):
        return None
    return [link for link, state in states.items() if state == 1]


def _pair(library: _Library, handles: dict[int, Any], first: int, second: int) -> GpuPair:
    links = _links_between(library, handles[first], handles[second])
    level = library.number("nvmlDeviceGetTopologyCommonAncestor", handles[first], handles[second])
    kind = f"NV{links}" if links else _LEVELS.get(-1 if level is None else level, "")
    return GpuPair(first=first, second=second, kind=kind)


def _links_between(library: _Library, one: Any, other: Any) -> int:
    """NVLinks that lead from one GPU to the other, or into the switch that joins all."""
    target = _address(library.ask("nvmlDeviceGetPciInfo", other))
    count = 0
    for link in _active_links(library, one) or ():
        if library.number("nvmlDeviceGetNvLinkRemoteDeviceType", one, link) == _TO_SWITCH:
            count += 1
            continue
        remote = library.ask("nvmlDeviceGetNvLinkRemotePciInfo", one, link)
        count += bool(target) and _address(remote) == target
    return count


def _fabric(library: _Library, handle: Any) -> str:
    if not hasattr(library._module, "c_nvmlGpuFabricInfo_t"):
        return ""
    info = library._module.c_nvmlGpuFabricInfo_t()
    answer = library.ask("nvmlDeviceGetGpuFabricInfo", handle, info)
    state = getattr(answer if hasattr(answer, "state") else info, "state", 0)
    return _FABRIC_STATES.get(int(state), "")


def _address(info: Any) -> str:
    return _text(getattr(info, "busId", "")).lower() if info is not None else ""


def _cuda_version(number: Any) -> str:
    """12040 to 12.4."""
    return f"{number // 1000}.{number % 1000 // 10}" if isinstance(number, int) else ""


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _switch(value: Any) -> bool | None:
    return None if value is None else bool(value)


def _text(value: str | bytes | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""
