"""Network interfaces and InfiniBand ports as the kernel's /sys shows them."""

from __future__ import annotations

import re
from pathlib import Path

from planner.probe.files import read_line
from planner.probe.records import InfinibandPort, NetworkInterface, NetworkState

_ROOT = Path("/")
_MBIT = 1e6 / 8
_GBIT = 1e9 / 8
_PEER_MODULES = ("nvidia_peermem", "nv_peer_mem")


def look_at_network(root: Path = _ROOT) -> NetworkState:
    """Every interface but the loopback, and every InfiniBand or RoCE port."""
    unseen: list[str] = []
    base = root / "sys/class/net"
    folders = [folder for folder in sorted(base.iterdir()) if (folder / "operstate").exists()] if base.is_dir() else []
    if not folders:
        unseen.append("network interfaces: /sys/class/net shows none")
    interfaces = tuple(_interface(folder) for folder in folders if folder.name != "lo")
    if interfaces and not any(item.bytes_per_s for item in interfaces if item.is_up):
        unseen.append("the speed of the network: none of the interfaces that are up tells it (virtual ones do not)")
    return NetworkState(
        interfaces=interfaces, ports=_ports(root), has_gpu_direct=_has_peer_module(root), unseen=tuple(unseen)
    )


def _interface(folder: Path) -> NetworkInterface:
    speed = read_line(folder / "speed")  # Mbit/s; -1, or an error on reading, where there is none
    device = folder / "device"
    driver = device / "driver"
    return NetworkInterface(
        name=folder.name,
        is_up=read_line(folder / "operstate") in ("up", "unknown") and read_line(folder / "carrier") != "0",
        bytes_per_s=int(speed) * _MBIT if speed.isdecimal() and int(speed) else None,
        is_physical=device.exists(),
        driver=driver.resolve().name if driver.exists() else "",
        numa_node=_node(device / "numa_node"),
    )


def _ports(root: Path) -> tuple[InfinibandPort, ...]:
    base = root / "sys/class/infiniband"
    return tuple(_port(folder) for folder in sorted(base.glob("*/ports/*")) if folder.name.isdecimal())


def _port(folder: Path) -> InfinibandPort:
    state = read_line(folder / "state")  # 4: ACTIVE
    rate = re.match(r"([\d.]+) Gb", read_line(folder / "rate"))  # 400 Gb/sec (4X NDR)
    return InfinibandPort(
        device=folder.parents[1].name,
        port=int(folder.name),
        state=state.partition(":")[2].strip() or state,
        bytes_per_s=float(rate[1]) * _GBIT if rate else None,
        link_layer=read_line(folder / "link_layer"),
        numa_node=_node(folder.parents[1] / "device/numa_node"),
    )


def _has_peer_module(root: Path) -> bool | None:
    base = root / "sys/module"
    return any((base / name).exists() for name in _PEER_MODULES) if base.is_dir() else None


def _node(path: Path) -> int | None:
    text = read_line(path)
    return int(text) if text.isdecimal() else None
