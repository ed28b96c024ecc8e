"""What is wrong with the network for training over several nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from planner.probe.records import InfinibandPort, MachineReport
from planner.rules import Finding, Severity

_GBIT = 1e9 / 8
_FAST_ETHERNET_GBIT = 100


def network_faults(report: MachineReport, *, nodes: int) -> Iterator[Finding]:
    """Findings about the network; most of them only where there is more than one node."""
    ports = report.network.ports
    active = [port for port in ports if port.state == "ACTIVE"]
    yield from _ports(ports, active)
    if nodes > 1 and not active:
        yield from _no_infiniband(report, has_ports=bool(ports), nodes=nodes)
    if nodes > 1 and active and report.sight.vendor == "nvidia" and report.network.has_gpu_direct is False:
        yield Finding(
            code="machine-no-gpu-direct",
            severity=Severity.INFO,
            key="network.gpu_direct",
            message="the kernel module nvidia_peermem is not loaded",
            why="without it (or a driver and NCCL that use dma-buf instead) data between nodes passes through host "
            "memory",
            fix="modprobe nvidia_peermem (as root); NCCL_DEBUG=INFO then says GDRDMA for its channels",
        )
    if nodes > 1 and active and 0 < len(active) < report.num_devices and report.num_devices % len(active):
        yield Finding(
            code="machine-ports-uneven",
            severity=Severity.INFO,
            key="network.infiniband",
            message=f"{len(active)} active ports for {report.num_devices} GPUs",
            why="the GPUs do not share them evenly",
            fix="see that every port is up (ibstat)",
        )


def _ports(ports: tuple[InfinibandPort, ...], active: list[InfinibandPort]) -> Iterator[Finding]:
    down = [port for port in ports if port.state != "ACTIVE"]
    if down and active:
        names = ", ".join(f"{port.device}:{port.port} {port.state}" for port in down[:8])
        yield Finding(
            code="machine-infiniband-down",
            severity=Severity.INFO,
            key="network.infiniband",
            message=f"{len(down)} of {len(ports)} InfiniBand or RoCE ports are not active ({names})",
            why="nothing goes through them; some are not meant to be cabled",
            fix="compare with the other nodes (ibstat); a cable, a switch port or the subnet manager is missing",
        )
    rates = [port.bytes_per_s for port in active if port.bytes_per_s]
    if rates and min(rates) < max(rates):
        slow = next(port for port in active if port.bytes_per_s == min(rates))
        alike = [port for port in active if port.link_layer == slow.link_layer]
        if len(alike) > 1 and any((port.bytes_per_s or 0) > min(rates) for port in alike):
            yield Finding(
                code="machine-infiniband-slow",
                severity=Severity.WARNING,
                key="network.infiniband",
                message=f"{slow.device}:{slow.port} runs at {min(rates) / _GBIT:.0f} Gbit/s, "
                f"another port at {max(rates) / _GBIT:.0f}",
                why="a ring is as fast as its slowest link, unless NCCL is told to leave that port out",
                fix="look at its cable; or leave it out: NCCL_IB_HCA=^" + slow.device,
            )


def _no_infiniband(report: MachineReport, *, has_ports: bool, nodes: int) -> Iterator[Finding]:
    wired = [item for item in report.network.interfaces if item.is_up and item.bytes_per_s]
    best = max((item.bytes_per_s or 0 for item in wired), default=0.0) / _GBIT
    if best >= _FAST_ETHERNET_GBIT:
        return
    what = "its InfiniBand ports are not active" if has_ports else "there is no InfiniBand"
    seen = f"the fastest network seen has {best:.0f} Gbit/s" if best else "no network with a known speed was seen"
    yield Finding(
        code="machine-no-infiniband",
        severity=Severity.WARNING,
        key="network",
        message=f"{nodes} nodes, and {what}; {seen}",
        why="gradients and parameters of every step cross the network; over slow Ethernet it decides the step time",
        fix="in a container hand the devices in (--device /dev/infiniband, or the RDMA device plugin); otherwise plan "
        "with few bytes between nodes: tensor parallelism inside a node, gradient accumulation, ZeRO-1",
    )
