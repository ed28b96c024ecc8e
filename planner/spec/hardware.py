"""GPUs, links and clusters. Inside: bytes, seconds, FLOP/s, bytes/s; the catalog's loader turns human units once."""

from __future__ import annotations

from planner.spec._record import record, require
from planner.spec.kinds import DeviceKind, Precision, Provenance

# The figures of a GPU of which more is better.
GPU_CAPACITIES = (
    "memory_nominal_bytes",
    "memory_usable_bytes",
    "memory_bandwidth_bytes_per_s",
    "peak_fp32_flops_per_s",
    "peak_fp16_flops_per_s",
    "peak_bf16_flops_per_s",
    "peak_fp8_flops_per_s",
    "host_link_bytes_per_s",
)


@record
class GpuSpec:
    """One accelerator (or, for `device` cpu, one process of this machine's CPU).

    `memory_nominal_bytes` is the label; `memory_usable_bytes` what a process can really allocate, context included.
    Peaks are dense (no sparsity factor). A peak of 0 means the device has no such units.
    """

    name: str
    device: DeviceKind = DeviceKind.CUDA
    memory_nominal_bytes: int
    memory_usable_bytes: int
    memory_bandwidth_bytes_per_s: float
    peak_fp32_flops_per_s: float
    peak_fp16_flops_per_s: float
    peak_bf16_flops_per_s: float
    peak_fp8_flops_per_s: float = 0.0
    host_link_bytes_per_s: float = 0.0  # PCIe or C2C, one direction
    price_per_hour: float = 0.0  # of one GPU, in `price_currency`; 0: unknown
    price_currency: str = "USD"
    price_source: str = ""  # whose price, and of when
    source: str = ""
    kind: Provenance = Provenance.COMPUTED

    def __post_init__(self) -> None:
        require(0 < self.memory_usable_bytes <= self.memory_nominal_bytes, "usable memory is at most the nominal")
        require(self.memory_bandwidth_bytes_per_s > 0, "memory bandwidth is positive")

    def peak_flops_per_s(self, precision: Precision) -> float:
        """Dense peak of matrix products in this precision; 0 where the device lacks it."""
        return {
            Precision.FP32: self.peak_fp32_flops_per_s,
            Precision.FP16: self.peak_fp16_flops_per_s,
            Precision.BF16: self.peak_bf16_flops_per_s,
            Precision.FP8: self.peak_fp8_flops_per_s,
        }[precision]


@record
class LinkSpec:
    """A link as one GPU sees it: one direction, per GPU. `efficiency_fraction` is the share large messages reach."""

    name: str
    bandwidth_bytes_per_s: float
    latency_s: float
    efficiency_fraction: float = 0.8
    source: str = ""
    kind: Provenance = Provenance.COMPUTED

    def __post_init__(self) -> None:
        require(self.bandwidth_bytes_per_s > 0 and self.latency_s >= 0, "a link needs a bandwidth and a latency")
        require(0 < self.efficiency_fraction <= 1, "a link's efficiency is a share of its bandwidth")


@record
class ClusterSpec:
    """`nodes` alike nodes of `gpus_per_node` GPUs. The inter-node link is the share of one GPU.

    `groups`: the kinds of nodes of a mixed cluster, in the order their nodes are numbered. The cluster's own figures
    are then what every GPU of every group can do at least, and `nodes` counts them all. (): all nodes are alike.
    """

    gpu: GpuSpec
    nodes: int
    gpus_per_node: int
    intra_node_link: LinkSpec
    inter_node_link: LinkSpec
    host_memory_bytes: int  # of one node
    name: str = ""
    is_this_machine: bool = False  # described by looking, not by name
    mtbf_s: float = 0.0  # mean time between failures of one node; 0: not said
    checkpoint_write_bytes_per_s: float = 0.0  # of one node to where checkpoints lie; 0: not said
    groups: tuple[ClusterSpec, ...] = ()

    def __post_init__(self) -> None:
        require(self.nodes >= 1 and self.gpus_per_node >= 1, "a cluster has at least one GPU")
        require(len(self.groups) != 1, "one kind of nodes is no mixed cluster")
        require(all(not group.groups for group in self.groups), "a group of nodes has no groups of its own")
        counted = sum(group.nodes for group in self.groups)
        require(not self.groups or counted == self.nodes, "a mixed cluster has the nodes of its groups")

    @property
    def world_size(self) -> int:
        return self.nodes * self.gpus_per_node
