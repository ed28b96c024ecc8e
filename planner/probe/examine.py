"""Puts what was seen together: which devices a cluster file may count on, and what nobody could see. Pure."""

from __future__ import annotations

from dataclasses import replace

from planner.probe.host import MAX_CPU_RANKS
from planner.probe.records import (
    GpuSight,
    HostState,
    LinkMeasurement,
    MachineReport,
    MigSlice,
    NetworkState,
    SoftwareState,
    StaircaseResult,
)
from planner.spec import DeviceKind


def assemble(*, sight: GpuSight, host: HostState, network: NetworkState, software: SoftwareState) -> MachineReport:
    """The report. A node's usable memory is that of its least GPU: training runs on all of them alike."""
    unseen = (*sight.unseen, *network.unseen, *software.unseen, *_of_container(sight, host))
    if not sight.gpus:
        return _cpu_report(sight, host=host, network=network, software=software, unseen=unseen)
    slices = all_slices(sight)
    states = [gpu.state for gpu in sight.gpus]
    least = min(states, key=lambda state: state.total_bytes)
    report = MachineReport(
        device=DeviceKind.CUDA,
        device_name=least.name,
        num_devices=len(states),
        usable_bytes=min(state.free_bytes for state in states),
        total_bytes=least.total_bytes,
        sight=sight,
        host=host,
        network=network,
        software=software,
        unseen=unseen,
    )
    if not slices:
        return report
    return replace(
        report,
        device_name=f"{least.name} MIG {min(slices, key=lambda one: one.total_bytes).profile}",
        num_devices=len(slices),
        usable_bytes=min(one.free_bytes for one in slices),
        total_bytes=min(one.total_bytes for one in slices),
    )


def all_slices(sight: GpuSight) -> tuple[MigSlice, ...]:
    """The MIG slices where every GPU is cut into some; () when a whole GPU is left, which then counts alone."""
    if not all(gpu.details.mig_slices for gpu in sight.gpus):
        return ()
    return tuple(one for gpu in sight.gpus for one in gpu.details.mig_slices)


def _cpu_report(
    sight: GpuSight, *, host: HostState, network: NetworkState, software: SoftwareState, unseen: tuple[str, ...]
) -> MachineReport:
    """Processes of the CPU, each with an even share of the host's memory."""
    return MachineReport(
        device=DeviceKind.CPU,
        device_name=host.cpu_name,
        num_devices=MAX_CPU_RANKS,
        usable_bytes=host.available_bytes // MAX_CPU_RANKS,
        total_bytes=host.total_bytes // MAX_CPU_RANKS,
        sight=sight,
        host=host,
        network=network,
        software=software,
        unseen=unseen,
    )


def _of_container(sight: GpuSight, host: HostState) -> tuple[str, ...]:
    if not host.container:
        return ()
    where = "a container" if host.container == "a container" else f"a container ({host.container})"
    others = ", processes of others on its GPUs (their memory is seen, their names are not)" if sight.gpus else ""
    return (f"this runs in {where}: what the host itself has of memory limits and network{others} may stay hidden",)


def with_staircases(report: MachineReport, staircases: tuple[StaircaseResult, ...]) -> MachineReport:
    """The report with measured capacities in place of what the driver called free."""
    if not staircases:
        return report
    capacity = min(one.capacity_bytes for one in staircases)
    ended_by_memory = all(one.failed_batch for one in staircases)
    usable = min(capacity, report.total_bytes) if ended_by_memory and capacity > 0 else report.usable_bytes
    return replace(report, staircases=staircases, usable_bytes=usable)


def with_link(report: MachineReport, link: LinkMeasurement) -> MachineReport:
    """The report with the measured link between its devices."""
    return replace(report, link=link)
