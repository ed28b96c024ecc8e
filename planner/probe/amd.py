"""AMD GPUs: through the `amdsmi` library where it is installed, else as the kernel's driver shows them in /sys.

Opens no device. Partitions of a GPU (CPX and the like) are devices of their own in both.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

from planner.probe.files import read_line
from planner.probe.nvidia import GpuState, ProcessMemory
from planner.probe.pci import AMD, numa_node, pcie_link
from planner.probe.records import EccState, GpuDetails, GpuPair, GpuSight, SeenGpu
from planner.spec._record import record

_MIB = 1 << 20
_XGMI = 2  # AMDSMI_LINK_TYPE_XGMI
_VARIABLES = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
# Products that /sys names by number only (pci.ids, vendor 1002).
_PRODUCTS = {
    "0x74a1": "AMD Instinct MI300X",
    "0x74a0": "AMD Instinct MI300A",
    "0x74a5": "AMD Instinct MI325X",
    "0x75a0": "AMD Instinct MI350X",
    "0x7408": "AMD Instinct MI250X",
    "0x740c": "AMD Instinct MI250X",
    "0x740f": "AMD Instinct MI210",
    "0x738c": "AMD Instinct MI100",
}


@record
class _Card:
    gpu: SeenGpu
    has_xgmi: bool = False


def probe_amd(environment: Mapping[str, str], root: Path) -> GpuSight:
    """The AMD GPUs that a program started in this environment could use."""
    if importlib.util.find_spec("amdsmi") is not None:
        sight = _ask_library(root)
        if sight.gpus:
            return _only_visible(sight, environment)
        problem = sight.problem
    else:
        problem = ""
    sight = _ask_kernel(root)
    unseen = (
        *((f"amdsmi does not answer ({problem}): read from /sys instead",) if problem and sight.gpus else ()),
        *sight.unseen,
    )
    if sight.gpus:
        return _only_visible(_with(sight, unseen=unseen), environment)
    return GpuSight(problem=f"amdsmi: {problem}" if problem else "")


def _with(sight: GpuSight, *, gpus: tuple[SeenGpu, ...] | None = None, unseen: tuple[str, ...]) -> GpuSight:
    return GpuSight(
        gpus=sight.gpus if gpus is None else gpus,
        pairs=sight.pairs,
        vendor=sight.vendor,
        source=sight.source,
        driver_version=sight.driver_version,
        unseen=unseen,
    )


def _only_visible(sight: GpuSight, environment: Mapping[str, str]) -> GpuSight:
    """By number; the first of the variables that is set counts."""
    name = next((name for name in _VARIABLES if environment.get(name) is not None), "")
    words = [word.strip() for word in environment.get(name, "").split(",")]
    if not name or not all(word.isdecimal() for word in words if word):
        return sight
    wanted = [int(word) for word in words if word]
    chosen = tuple(gpu for index in wanted for gpu in sight.gpus if gpu.state.index == index)
    note = f"{name}={environment[name]!r} leaves {len(chosen)} of {len(sight.gpus)} GPUs"
    return _with(sight, gpus=chosen, unseen=(*sight.unseen, note))


def _ask_library(root: Path) -> GpuSight:
    smi: Any = importlib.import_module("amdsmi")
    try:
        smi.amdsmi_init()
    except Exception as problem:  # its own exceptions have no common name over its versions
        return GpuSight(problem=str(problem) or type(problem).__name__)
    try:
        handles = list(smi.amdsmi_get_processor_handles())
        gpus = tuple(_library_gpu(smi, index, handle, root) for index, handle in enumerate(handles))
        pairs = tuple(
            GpuPair(first=first, second=second, kind=_library_link(smi, handles[first], handles[second]))
            for first, second in combinations(range(len(handles)), 2)
        )
        driver = _ask(smi, "amdsmi_get_gpu_driver_info", handles[0]) if handles else None
    except Exception as problem:
        return GpuSight(problem=str(problem) or type(problem).__name__)
    finally:
        _ask(smi, "amdsmi_shut_down")
    version = str(driver.get("driver_version", "")) if isinstance(driver, Mapping) else ""
    return GpuSight(gpus=gpus, pairs=pairs, vendor="amd", source="amdsmi", driver_version=version)


def _ask(smi: Any, function: str, *arguments: Any) -> Any:
    """The answer, or None where this version, driver or GPU gives none."""
    try:
        return getattr(smi, function)(*arguments)
    except Exception:  # as above: what is not answered is not known
        return None


def _library_gpu(smi: Any, index: int, handle: Any, root: Path) -> SeenGpu:
    asic = _ask(smi, "amdsmi_get_gpu_asic_info", handle) or {}
    memory = smi.amdsmi_get_gpu_vram_usage(handle)  # Keep: without its memory a GPU is of no use; this one may raise
    total, used = int(memory["vram_total"]) * _MIB, int(memory["vram_used"]) * _MIB
    errors = _ask(smi, "amdsmi_get_gpu_total_ecc_count", handle) or {}
    address = str(_ask(smi, "amdsmi_get_gpu_device_bdf", handle) or "").lower()
    running = [one for one in _ask(smi, "amdsmi_get_gpu_process_list", handle) or () if isinstance(one, Mapping)]
    return SeenGpu(
        state=GpuState(
            index=index,
            uuid=str(_ask(smi, "amdsmi_get_gpu_device_uuid", handle) or ""),
            name=str(asic.get("market_name", "")) or "AMD GPU",
            total_bytes=total,
            free_bytes=max(0, total - used),
            processes=tuple(ProcessMemory(pid=int(one.get("pid", 0)), used_bytes=_held(one)) for one in running),
        ),
        details=GpuDetails(
            vendor="amd",
            pci_address=address,
            numa_node=numa_node(address, root),
            pcie=pcie_link(address, root),
            ecc=EccState(corrected=errors.get("correctable_count"), uncorrected=errors.get("uncorrectable_count")),
        ),
        process_names=tuple((int(one.get("pid", 0)), str(one["name"])) for one in running if one.get("name")),
    )


def _held(process: Mapping[str, Any]) -> int:
    usage = process.get("memory_usage")
    held: Any = usage.get("vram_mem", 0) if isinstance(usage, Mapping) else process.get("mem", 0)
    return held if isinstance(held, int) else 0


def _library_link(smi: Any, one: Any, other: Any) -> str:
    link = _ask(smi, "amdsmi_topo_get_link_type", one, other)
    kind: Any = link.get("type") if isinstance(link, Mapping) else None
    return "" if kind is None else "XGMI" if int(getattr(kind, "value", kind)) == _XGMI else "PHB"


def _ask_kernel(root: Path) -> GpuSight:
    base = root / "sys/class/drm"
    folders = sorted(base.glob("card[0-9]*/device"), key=_card_number) if base.is_dir() else []
    ours = [
        folder for folder in folders if read_line(folder / "vendor") == AMD and _number(folder / "mem_info_vram_total")
    ]
    cards = [_kernel_card(index, folder, root) for index, folder in enumerate(ours)]
    joined = [index for index, card in enumerate(cards) if card.has_xgmi]
    return GpuSight(
        gpus=tuple(card.gpu for card in cards),
        pairs=tuple(GpuPair(first=first, second=second, kind="XGMI") for first, second in combinations(joined, 2)),
        vendor="amd" if cards else "",
        source="/sys/class/drm",
        driver_version=read_line(root / "sys/module/amdgpu/version"),
        unseen=("which processes use the AMD GPUs: amdsmi is not installed",) if cards else (),
    )


def _card_number(folder: Path) -> int:
    found = re.search(r"\d+", folder.parent.name)
    return int(found[0]) if found else 0


def _kernel_card(index: int, folder: Path, root: Path) -> _Card:
    total, used = _number(folder / "mem_info_vram_total"), _number(folder / "mem_info_vram_used")
    address = folder.resolve().name
    errors = dict(re.findall(r"(ue|ce): (\d+)", read_line(folder / "ras/umc_err_count")))
    model = read_line(folder / "device")
    return _Card(
        gpu=SeenGpu(
            state=GpuState(
                index=index,
                uuid=read_line(folder / "unique_id"),
                name=read_line(folder / "product_name") or _PRODUCTS.get(model, f"AMD GPU {model}"),
                total_bytes=total,
                free_bytes=max(0, total - used),
            ),
            details=GpuDetails(
                vendor="amd",
                pci_address=address,
                numa_node=numa_node(address, root),
                pcie=pcie_link(address, root),
                ecc=EccState(
                    corrected=int(errors["ce"]) if "ce" in errors else None,
                    uncorrected=int(errors["ue"]) if "ue" in errors else None,
                ),
            ),
        ),
        has_xgmi=bool(read_line(folder / "xgmi_device_id")),
    )


def _number(path: Path) -> int:
    text = read_line(path)
    return int(text) if text.isdecimal() else 0
