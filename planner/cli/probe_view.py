"""A probed machine on a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from planner.app.probe_request import ProbeResult
from planner.cli.tables import new_table
from planner.probe.records import GpuPair, MachineReport, SeenGpu
from planner.report.units import format_bytes, format_seconds, one_line, plural
from planner.spec import DeviceKind

_STYLES = {"error": "bold red", "warning": "bold yellow", "info": "bold blue"}
_SHOWN_PORTS = 8
_SHM = "/dev/shm"  # noqa: S108 - the name of what is shown


def probe_view(result: ProbeResult) -> Iterator[RenderableType]:
    """What was seen, what is wrong, what could not be seen, and the cluster file."""
    report = result.report
    yield from _devices(report)
    for name, words in _facts(report):
        yield Text.assemble((f"{name:<11}", "dim"), one_line(words))
    yield from _measured(report)
    yield from _findings(result)
    if report.unseen:
        yield Text("\ncould not be seen:", style="dim")
    for words in report.unseen:
        yield Text(f"  {one_line(words)}", style="dim")
    yield Text()
    if result.written is not None:
        yield Text.assemble(
            "wrote ", (str(result.written), "bold green"), "; a job reads it with ", "cluster: {file: …}"
        )
    elif result.cluster_file:
        yield Text("the cluster file (--out FILE writes it):", style="bold")
        yield Text(result.cluster_file.rstrip("\n"), no_wrap=True, overflow="ignore")
    else:
        yield Text(f"no cluster file: it lacks {result.lacks}", style="bold red")


def _devices(report: MachineReport) -> Iterator[RenderableType]:
    if report.device is DeviceKind.CPU:
        yield Text(f"no GPU; {one_line(report.host.cpu_name)}, {plural(report.host.cores, 'core')}", style="bold")
        yield Text(f"training runs as up to {report.num_devices} processes of {format_bytes(report.usable_bytes)} each")
        return
    yield Text(
        f"{report.num_devices} x {one_line(report.device_name)}, {format_bytes(report.usable_bytes)} usable each",
        style="bold",
    )
    table = new_table("gpu", "name", "total", "free", "processes", "PCIe", "NUMA", "NVLinks", "ECC errors")
    table.columns[1].justify = "left"
    for gpu in report.sight.gpus:
        table.add_row(*(Text(one_line(cell)) for cell in _cells(gpu)))
        for one in gpu.details.mig_slices:
            slice_cells = ("", f"  MIG {one.profile}", format_bytes(one.total_bytes), format_bytes(one.free_bytes))
            table.add_row(*(Text(one_line(cell)) for cell in (*slice_cells, "", "", "", "", "")))
    yield table


def _cells(gpu: SeenGpu) -> tuple[str, ...]:
    state, details = gpu.state, gpu.details
    pcie = details.pcie
    slot = f"{pcie.max_generation or '?'}.0 x{pcie.width or '?'}" if pcie.width or pcie.max_generation else ""
    errors = details.ecc.uncorrected
    return (
        str(state.index),
        state.name,
        format_bytes(state.total_bytes),
        format_bytes(state.free_bytes),
        str(len(state.processes)) if state.processes else "none",
        slot,
        "" if details.numa_node is None else str(details.numa_node),
        "" if details.nvlinks is None else str(details.nvlinks),
        "off" if details.ecc.enabled is False else "" if errors is None else str(errors),
    )


def _facts(report: MachineReport) -> Iterator[tuple[str, str]]:
    host, software = report.host, report.software
    limit = f" (limited; the machine has {format_bytes(host.machine_bytes)})" if host.limit_bytes else ""
    yield (
        "host",
        f"{plural(host.cores, 'core')} of {host.machine_cores}, {plural(max(1, len(host.numa_nodes)), 'NUMA node')}, "
        f"{format_bytes(host.total_bytes)} of memory{limit}, {format_bytes(host.available_bytes)} available",
    )
    if host.shm_total_bytes is not None:
        yield _SHM, f"{format_bytes(host.shm_total_bytes)}, {format_bytes(host.shm_free_bytes or 0)} free"
    if report.sight.pairs:
        yield "topology", _topology(report.sight.pairs)
    yield from _network(report)
    driver = report.sight.driver_version
    if driver:
        cuda = f", runs CUDA up to {report.sight.cuda_version}" if report.sight.cuda_version else ""
        yield "driver", f"{driver}{cuda} (by {report.sight.source})"
    built = f"CUDA {software.torch_cuda}" if software.torch_cuda else ""
    built = built or (f"ROCm {software.torch_hip}" if software.torch_hip else "CPU build")
    versions = [f"{name} {version}" for name, version in software.versions if name != "meshplan"]
    nccl = [f"NCCL {software.nccl}"] if software.nccl else []
    nvcc = [f"nvcc {software.toolkit_cuda}"] if software.toolkit_cuda else []
    yield "software", f"Python {software.python}, " + ", ".join([*versions, f"torch's {built}", *nccl, *nvcc])
    if software.ops_prebuilt or software.ops_buildable:
        yield (
            "DeepSpeed",
            f"operators built: {', '.join(software.ops_prebuilt) or 'none'}; "
            f"built on first use: {', '.join(software.ops_buildable) or 'none'}",
        )


def _topology(pairs: tuple[GpuPair, ...]) -> str:
    counts: dict[str, int] = {}
    for pair in pairs:
        counts[pair.kind or "unknown"] = counts.get(pair.kind or "unknown", 0) + 1
    return ", ".join(f"{plural(count, 'pair')} by {kind}" for kind, count in sorted(counts.items()))


def _network(report: MachineReport) -> Iterator[tuple[str, str]]:
    shown = [
        f"{item.name} {'up' if item.is_up else 'down'}"
        + (f" {item.bytes_per_s * 8 / 1e9:g} Gbit/s" if item.bytes_per_s else "")
        for item in report.network.interfaces
    ]
    if shown:
        yield "network", ", ".join(shown[:_SHOWN_PORTS])
    ports = [
        f"{port.device}:{port.port} {port.state}"
        + (f" {port.bytes_per_s * 8 / 1e9:g} Gbit/s" if port.bytes_per_s else "")
        + (f" ({port.link_layer})" if port.link_layer else "")
        for port in report.network.ports
    ]
    more = f" and {len(ports) - _SHOWN_PORTS} more" if len(ports) > _SHOWN_PORTS else ""
    yield "InfiniBand", ", ".join(ports[:_SHOWN_PORTS]) + more if ports else "none"


def _measured(report: MachineReport) -> Iterator[RenderableType]:
    if report.link is not None:
        table = new_table("all-reduce", "time", "bus bandwidth")
        for row in report.link.rows:
            cells = (
                format_bytes(row.message_bytes),
                format_seconds(row.time_s),
                f"{row.bus_bytes_per_s / 1e9:.3g} GB/s",
            )
            table.add_row(*map(Text, cells))
        yield Text()
        yield table
        yield Text(
            f"measured over {report.link.ranks} ranks ({report.link.backend}): "
            f"{report.link.bandwidth_bytes_per_s / 1e9:.3g} GB/s in large messages of all kinds, "
            f"{format_seconds(report.link.latency_s)} a step"
        )
    for one in report.staircases:
        ended = f"{one.failed_batch} did not" if one.failed_batch else "the time allowed ended it, not memory"
        yield Text(
            f"\nstaircase on device {one.device}: {format_bytes(one.capacity_bytes)} could be had "
            f"({format_bytes(one.context_bytes)} of it context); batch {one.largest_batch} fitted, {ended}; "
            f"{format_bytes(one.bytes_per_sample)} a sample"
        )


def _findings(result: ProbeResult) -> Iterator[RenderableType]:
    yield Text()
    if not result.findings:
        yield Text("nothing is wrong with it for training", style="bold green")
    for finding in result.findings:
        style = _STYLES.get(finding.severity, "")
        yield Text.assemble((f"{finding.severity}: ", style), one_line(finding.message), (f"  [{finding.code}]", "dim"))
        yield Text(f"  why: {one_line(finding.why)}")
        yield Text(f"  fix: {one_line(finding.fix)}")
