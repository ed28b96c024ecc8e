"""What the kernel's /sys tells of PCI devices without a vendor's library: slots, NUMA nodes, GPUs without a driver."""

from __future__ import annotations

import re
from pathlib import Path

from planner.probe.files import read_line
from planner.probe.records import PcieLink

_ROOT = Path("/")
NVIDIA, AMD, INTEL = "0x10de", "0x1002", "0x8086"
# Transfer rate of one lane in GT/s, by generation (PCI-SIG).
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
_DISPLAY = ("0x0300", "0x0302", "0x0380", "0x1200")  # VGA, 3D and other display controllers; processing accelerators


def pcie_link(address: str, root: Path = _ROOT) -> PcieLink:
    """The slot of a PCI device (`0000:4e:00.0`); all None where /sys does not show it."""
    folder = device_folder(address, root)
    return PcieLink(
        generation=_generation(folder / "current_link_speed"),
        max_generation=_generation(folder / "max_link_speed"),
        width=_positive(folder / "current_link_width"),
        max_width=_positive(folder / "max_link_width"),
    )


def numa_node(address: str, root: Path = _ROOT) -> int | None:
    """The NUMA node of a PCI device; None where the kernel does not know one (it writes -1)."""
    return _positive(device_folder(address, root) / "numa_node", zero=True)


def device_folder(address: str, root: Path = _ROOT) -> Path:
    """Its folder in /sys. NVML writes eight digits of domain, the kernel four."""
    domain, _, rest = address.lower().partition(":")
    return root / "sys/bus/pci/devices" / f"{domain[-4:]}:{rest}"


def plugged_gpus(vendor: str, root: Path = _ROOT) -> tuple[str, ...]:
    """Addresses of this vendor's GPUs in the machine, with or without a driver."""
    base = root / "sys/bus/pci/devices"
    folders = sorted(base.iterdir()) if base.is_dir() else []
    return tuple(
        folder.name
        for folder in folders
        if read_line(folder / "vendor") == vendor and read_line(folder / "class")[:6] in _DISPLAY
    )


def _generation(path: Path) -> int | None:
    found = re.match(r"\d+(\.\d+)?", read_line(path))
    return _GENERATIONS.get(float(found[0])) if found else None


def _positive(path: Path, *, zero: bool = False) -> int | None:
    text = read_line(path)
    number = int(text) if text.lstrip("-").isdecimal() else -1
    return number if number > 0 or (zero and number == 0) else None
