"""All accelerators of this machine in one answer, whoever made them; and what of them could not be seen, in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from planner.probe import nvml
from planner.probe.amd import probe_amd
from planner.probe.files import read_line
from planner.probe.nvidia import GpuState, NvidiaReport, probe_nvidia
from planner.probe.nvidia_smi import ask_program, ask_slices
from planner.probe.pci import AMD, INTEL, NVIDIA, numa_node, pcie_link, plugged_gpus
from planner.probe.records import GpuDetails, GpuSight, SeenGpu

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_MAKERS = ((NVIDIA, "NVIDIA"), (AMD, "AMD"))
_NO_LIBRARY = (
    "NVLink versions, clocks and the fabric's state: nvidia-ml-py is not installed (pip install nvidia-ml-py), "
    "so nvidia-smi was asked"
)


def look_at_gpus(environment: Mapping[str, str], root: Path = Path("/")) -> GpuSight:
    """The GPUs that a program started in `environment` could use; NVIDIA's before AMD's."""
    visible = environment.get(_VISIBLE, "")
    if "MIG-" in visible:
        whole = {name: value for name, value in environment.items() if name != _VISIBLE}
        return _only_slices(look_at_gpus(whole, root), visible)
    nvidia = probe_nvidia(environment)
    if nvidia.gpus:
        return _nvidia_sight(nvidia, environment, root)
    amd = probe_amd(environment, root)
    if amd.gpus:
        return amd
    problem = nvidia.note or amd.problem or _without_driver(root)
    unseen = ("GPUs of Intel and others: only NVIDIA's and AMD's are looked for",) if plugged_gpus(INTEL, root) else ()
    return GpuSight(problem=problem, unseen=unseen)


def _only_slices(sight: GpuSight, visible: str) -> GpuSight:
    """Of the GPUs only the MIG slices that the variable names, by the beginnings of their identifiers."""
    wanted = tuple(word.strip() for word in visible.split(",") if word.strip())
    kept = []
    for gpu in sight.gpus:
        slices = tuple(one for one in gpu.details.mig_slices if one.uuid.startswith(wanted))
        if slices:
            kept.append(replace(gpu, details=replace(gpu.details, mig_slices=slices)))
    if kept:
        return replace(sight, gpus=tuple(kept), pairs=())
    return GpuSight(problem=f"{_VISIBLE}={visible!r} names no MIG slice of this machine", unseen=sight.unseen)


def slice_states(report: NvidiaReport, environment: Mapping[str, str]) -> tuple[GpuState, ...]:
    """The MIG slices as devices, where every GPU is cut into some; () where there is a whole GPU."""
    library = nvml.ask_library(report.gpus) if nvml.is_installed() else None
    if library is not None:
        found = {index: item.mig_slices for index, item in library.details.items()}
    else:
        found = ask_slices(report.gpus, environment)
    if not all(found.get(gpu.index) for gpu in report.gpus):
        return ()
    parts = [(gpu, one) for gpu in report.gpus for one in found[gpu.index]]
    return tuple(
        GpuState(
            index=place,
            uuid=one.uuid,
            name=f"{gpu.name} MIG {one.profile}",
            total_bytes=one.total_bytes,
            free_bytes=one.free_bytes,
        )
        for place, (gpu, one) in enumerate(parts)
    )


def _without_driver(root: Path) -> str:
    """GPUs that are plugged in, or handed to this container, and that no driver shows."""
    for vendor, maker in _MAKERS:
        plugged = plugged_gpus(vendor, root)
        if plugged:
            count = f"{len(plugged)} {maker} GPU{'s' if len(plugged) > 1 else ''}"
            return f"{count} plugged in ({', '.join(plugged[:8])}), but no driver shows them here"
    return ""


def _nvidia_sight(report: NvidiaReport, environment: Mapping[str, str], root: Path) -> GpuSight:
    library = nvml.ask_library(report.gpus) if nvml.is_installed() else None
    if library is not None:
        details, pairs, cuda = library.details, library.pairs, library.cuda_version
        unseen: tuple[str, ...] = ()
    else:
        program = ask_program(report.gpus, environment)
        details, pairs, cuda = program.details, program.pairs, program.cuda_version
        unseen = (_NO_LIBRARY, *program.unseen)
    shown = {gpu.index for gpu in report.gpus}
    gpus = tuple(_seen(gpu, details.get(gpu.index, GpuDetails()), root) for gpu in report.gpus)
    return GpuSight(
        gpus=gpus,
        pairs=tuple(pair for pair in pairs if {pair.first, pair.second} <= shown),
        vendor="nvidia",
        source="NVML" if library is not None else "nvidia-smi",
        driver_version=report.driver_version,
        cuda_version=cuda,
        unseen=(*((report.note,) if report.note else ()), *unseen, *_unnamed(gpus)),
    )


def _seen(gpu: GpuState, details: GpuDetails, root: Path) -> SeenGpu:
    """With what /sys knows where the driver did not tell."""
    slot, told = pcie_link(details.pci_address, root), details.pcie
    merged = replace(
        slot,
        **{
            name: getattr(told, name)
            for name in ("generation", "max_generation", "width", "max_width")
            if getattr(told, name) is not None
        },
    )
    node = details.numa_node if details.numa_node is not None else numa_node(details.pci_address, root)
    names = tuple((one.pid, read_line(root / "proc" / str(one.pid) / "comm")) for one in gpu.processes)
    return SeenGpu(
        state=gpu,
        details=replace(details, pcie=merged, numa_node=node),
        process_names=tuple((pid, name) for pid, name in names if name),
    )


def _unnamed(gpus: tuple[SeenGpu, ...]) -> tuple[str, ...]:
    named = {pid for gpu in gpus for pid, _name in gpu.process_names}
    unnamed = sorted({one.pid for gpu in gpus for one in gpu.state.processes} - named)
    if not unnamed:
        return ()
    return (
        f"the names of processes {', '.join(map(str, unnamed[:8]))}: they run outside this container or have ended",
    )
