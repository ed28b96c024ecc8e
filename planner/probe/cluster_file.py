"""A machine's report as the cluster file that `cluster: {file: …}` of a job reads. Pure.

Owns which GPU of the catalog the machine has, and what is written where the catalog has none.
"""

from __future__ import annotations

from typing import Any

from planner.catalog import load_gpu, match_device_name
from planner.jobfile.dump import flow_text
from planner.probe.examine import all_slices
from planner.probe.links import Choice, inter_node_link, intra_node_link
from planner.probe.records import MachineReport
from planner.spec import DeviceKind, GpuSpec, Precision
from planner.spec._record import record

_GIB = 1 << 30
_SAME_MEMORY_FRACTION = 0.1  # a GPU of the catalog whose memory differs by more is another product of that name
CPU_NAME = "cpu"
# FLOP of one multiprocessor in one clock, dense fp16 products summed in fp32, and its fp32 cores, by compute capability
# (NVIDIA's architecture papers; GeForce runs fp32 sums at half rate from 8.6 on).
_TENSOR_FLOP = {
    "7.0": 1024,
    "7.5": 1024,
    "8.0": 2048,
    "8.6": 1024,
    "8.9": 1024,
    "9.0": 4096,
    "10.0": 8192,
    "12.0": 1024,
}
_CORES = {"7.0": 64, "7.5": 64, "8.0": 64}
_USUAL_CORES = 128
_HALVED = ("8.6", "8.9", "12.0")
_HAS_FP8 = ("8.9", "9.0", "10.0", "12.0")


@record
class ClusterText:
    """`text` "" when the file cannot be written; `lacks` then says what is missing."""

    text: str
    lacks: str = ""


def catalog_gpu(report: MachineReport) -> GpuSpec | None:
    """The catalog's record of this machine's device; None when it has none."""
    if report.device is DeviceKind.CPU:
        return load_gpu(CPU_NAME)
    state = min((gpu.state for gpu in report.sight.gpus), key=lambda state: state.total_bytes)
    found = match_device_name(state.name, total_bytes=state.total_bytes)
    if found is None or abs(state.total_bytes / found.memory_nominal_bytes - 1) > _SAME_MEMORY_FRACTION:
        return None
    return found


def render_cluster_file(report: MachineReport, *, nodes: int) -> ClusterText:
    """The file for `nodes` nodes like this one."""
    gpu = _gpu(report)
    if gpu is None:
        return ClusterText(
            text="", lacks=f"the speed of {report.device_name!r}: it is not in the catalog and its driver does not tell"
        )
    inside, inside_words = intra_node_link(report)
    between, between_words = inter_node_link(report) if nodes > 1 else (None, "")
    lines = [
        f"# Written by `planner probe`: {nodes} x {report.num_devices} x {_comment(report.device_name)}.",
        "# A job reads it with `cluster: {file: <this file>}`, relative to the job file.",
        "name: probed",
        *_gpu_lines(gpu),
        f"nodes: {nodes}" + ("" if nodes == 1 else "  # alike: only this one was looked at"),
        f"gpus_per_node: {report.num_devices}",
        *_memory_lines(report, described=not isinstance(gpu, str)),
        *_link_lines("intra_node_link", inside, inside_words),
        *(_link_lines("inter_node_link", between, between_words) if nodes > 1 else ()),
        f"host_memory_gib: {_gib(report.host.total_bytes)}",
        f"source: {flow_text('planner probe, by looking at the machine' + _driver(report))}",
    ]
    return ClusterText(text="\n".join(lines) + "\n")


def _gpu(report: MachineReport) -> str | dict[str, Any] | None:
    """A catalog name, else a description; None when there is not enough for one."""
    known = catalog_gpu(report)
    slices = all_slices(report.sight) if report.sight.gpus else ()
    if known is not None and not slices:
        return known.name
    whole = known or _computed(report)
    if whole is None:
        return None
    share, memory_share = 1.0, 1.0
    if slices:
        share = min(one.share_fraction for one in slices)
        memory_share = min(1.0, report.total_bytes / min(gpu.state.total_bytes for gpu in report.sight.gpus))
    return _description(report, whole, share=share, memory_share=memory_share)


def _computed(report: MachineReport) -> GpuSpec | None:
    """A GPU of no catalog, from its clocks, width and cores as the driver tells them."""
    seen = min(report.sight.gpus, key=lambda gpu: gpu.state.total_bytes)
    details, name = seen.details, seen.state.name
    tensor = _TENSOR_FLOP.get(details.compute_capability)
    if tensor is None or not (details.memory_clock_mhz and details.memory_bus_bits):
        return None
    if not (details.sm_clock_mhz and details.num_cores):
        return None
    if details.compute_capability in _HALVED and "GeForce" in name:
        tensor //= 2
    clock = details.sm_clock_mhz * 1e6
    processors = details.num_cores // _CORES.get(details.compute_capability, _USUAL_CORES)
    fp16 = processors * tensor * clock
    return GpuSpec(
        name=_slug(name),
        memory_nominal_bytes=seen.state.total_bytes,
        memory_usable_bytes=max(1, seen.state.free_bytes),
        memory_bandwidth_bytes_per_s=2 * details.memory_clock_mhz * 1e6 * details.memory_bus_bits / 8,
        peak_fp32_flops_per_s=2 * details.num_cores * clock,
        peak_fp16_flops_per_s=fp16,
        peak_bf16_flops_per_s=fp16 if float(details.compute_capability) >= 8 else 0.0,
        peak_fp8_flops_per_s=2 * fp16 if details.compute_capability in _HAS_FP8 else 0.0,
        source=f"clocks, bus width and cores as the driver tells them; rates of compute capability "
        f"{details.compute_capability}",
    )


def _description(report: MachineReport, whole: GpuSpec, *, share: float, memory_share: float) -> dict[str, Any]:
    """As a file of the catalog has it; a MIG slice has its share of the whole."""
    part = "" if share == 1.0 else f", a slice's share ({share:.3g} of compute, {memory_share:.3g} of memory)"
    source = f"{whole.source or whole.name}{part}"[:900]
    peaks = {
        f"{precision.value}_tflops": _figure(whole.peak_flops_per_s(precision) * share / 1e12)
        for precision in Precision
    }
    links = _usual_links(report)
    return {
        "name": _slug(report.device_name),
        "device_names": [report.device_name[:100]],
        "memory": {
            "nominal_gib": _gib(report.total_bytes, up=True),
            "usable_gib": _gib(report.usable_bytes),
            "kind": "measured",
            "source": _memory_source(report),
        },
        "bandwidth": {
            "gb_per_s": _figure(whole.memory_bandwidth_bytes_per_s * memory_share / 1e9),
            "kind": "computed",
            "source": source,
        },
        "peak": {**peaks, "kind": "computed", "source": source},
        "intra_node_link": links[0],
        "inter_node_link": links[1],
        "gpus_per_node": report.num_devices,
    }


def _usual_links(report: MachineReport) -> tuple[str, str]:
    """What stands in for links that were not seen: a PCIe slot and a common network."""
    generation = min((gpu.details.pcie.max_generation or 4 for gpu in report.sight.gpus), default=4)
    return f"pcie{min(6, max(3, generation))}", "ethernet-100"


def _gpu_lines(gpu: str | dict[str, Any]) -> list[str]:
    if isinstance(gpu, str):
        return [f"gpu: {gpu}"]
    lines = ["gpu:"]
    for key, value in gpu.items():
        if isinstance(value, dict):
            lines += [f"  {key}:", *(f"    {name}: {flow_text(item)}" for name, item in value.items())]
        else:
            lines.append(f"  {key}: {flow_text(value)}")
    return lines


def _memory_lines(report: MachineReport, *, described: bool) -> list[str]:
    """The memory that was found, unless the description of the GPU has it already."""
    if described:
        return []
    return [
        "memory:  # of one GPU, its least" if report.device is DeviceKind.CUDA else "memory:  # of one process",
        f"  nominal_gib: {_gib(max(report.total_bytes, report.usable_bytes), up=True)}",
        f"  usable_gib: {_gib(report.usable_bytes)}",
        "  kind: measured",
        f"  source: {flow_text(_memory_source(report))}",
    ]


def _memory_source(report: MachineReport) -> str:
    reached = min((one.capacity_bytes for one in report.staircases), default=-1)
    if report.usable_bytes == min(reached, report.total_bytes):
        return "planner probe --stress: a training step's batch was raised until memory ended"
    if report.device is DeviceKind.CPU:
        return f"planner probe: an even share of the host's available memory for each of {report.num_devices} processes"
    held = any(gpu.state.processes for gpu in report.sight.gpus)
    return f"planner probe: free by {report.sight.source}" + (", beside other processes" if held else "")


def _link_lines(key: str, choice: Choice | None, words: str) -> list[str]:
    if choice is None:
        return [f"# {key}: {_comment(words)}"]
    if isinstance(choice, str):
        return [f"{key}: {choice}  # {_comment(words)}"]
    return [f"{key}:  # {_comment(words)}", *(f"  {name}: {flow_text(value)}" for name, value in choice.items())]


def _driver(report: MachineReport) -> str:
    return f" (driver {report.sight.driver_version})" if report.sight.driver_version else ""


def _gib(size_bytes: int, *, up: bool = False) -> float:
    """To a thousandth, down (or up): usable memory is never said to be more than it is."""
    thousandths = size_bytes * 1000 // _GIB + (1 if up and size_bytes * 1000 % _GIB else 0)
    return max(0.001, thousandths / 1000)


def _figure(value: float) -> float:
    return float(f"{value:.4g}")


def _slug(name: str) -> str:
    words = "".join(letter if letter.isalnum() else "-" for letter in name.lower().removeprefix("nvidia "))
    return "-".join(filter(None, words.split("-")))[:100] or "gpu"


def _comment(text: str) -> str:
    return " ".join(text.split())
