"""GPUs, links and clusters: from catalog files in human units to records in bytes, seconds and FLOP/s.

Owns the turning of units (once, here) and which links and host a GPU usually comes with. Leaves what a job file says of
its cluster to `planner.jobfile`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from planner.catalog.entries import Entry, default_folders, find_entry, fold, list_entries, unknown_name
from planner.catalog.groups import join_groups
from planner.catalog.hardware_schema import (
    ClusterFile,
    GpuChoice,
    GpuFile,
    GroupEntry,
    LinkChoice,
    LinkFile,
    NamedFile,
    NodesEntry,
    PriceFigures,
    SourcedFigures,
)
from planner.catalog.strict import validate
from planner.catalog.yaml_text import read_yaml
from planner.errors import InputError
from planner.resources import CatalogFolder
from planner.spec import ClusterSpec, DeviceKind, GpuSpec, LinkSpec, weakest
from planner.spec._record import record

BYTES_PER_GIB = 1 << 30
BYTES_PER_GB = 1e9
FLOPS_PER_TFLOP = 1e12

Folders = tuple[CatalogFolder, ...]
F = TypeVar("F", bound=NamedFile)


@record
class NodeDefaults:
    """The node a GPU usually sits in."""

    gpus_per_node: int
    intra_node_link: LinkSpec
    inter_node_link: LinkSpec
    host_memory_bytes_per_gpu: int


@record
class FailureFigures:
    """Of one node: the mean time between its failures, what it writes to where checkpoints lie. 0: not said."""

    mtbf_s: float = 0.0
    checkpoint_write_bytes_per_s: float = 0.0


NOTHING_SAID = FailureFigures()


@record
class ClusterRequest:
    """What is said of a cluster; None: as usual for the GPU. `memory_cap_bytes` caps one rank."""

    gpu: GpuSpec
    usual: NodeDefaults
    nodes: int = 1
    gpus_per_node: int | None = None
    intra_node_link: LinkSpec | None = None
    inter_node_link: LinkSpec | None = None
    host_memory_bytes: int | None = None
    memory_cap_bytes: int | None = None
    name: str = ""
    is_this_machine: bool = False
    price: PriceFigures | None = None
    failures: FailureFigures = FailureFigures()
    groups: tuple[ClusterSpec, ...] = ()


def load_gpu(name: str, *, folders: Folders | None = None) -> GpuSpec:
    """The GPU of this name or alias; InputError with near matches for another."""
    return gpu_record(_load("gpus", name, GpuFile, folders))


def load_link(name: str, *, folders: Folders | None = None) -> LinkSpec:
    """The link of this name or alias; InputError with near matches for another."""
    return link_record(_load("links", name, LinkFile, folders))


def load_cluster(name: str, *, nodes: int | None = None, folders: Folders | None = None) -> ClusterSpec:
    """The cluster of this name, with `nodes` nodes where given."""
    request = load_cluster_request(name, folders=folders)
    return resolve_cluster(request if nodes is None else replace(request, nodes=nodes))


def load_cluster_request(name: str, *, folders: Folders | None = None) -> ClusterRequest:
    """What the catalog says of the cluster of this name, before it is resolved."""
    return cluster_request(_load("clusters", name, ClusterFile, folders), folders=folders)


def read_cluster_file(path: Path, *, folders: Folders | None = None) -> ClusterRequest:
    """A cluster file of the user's."""
    document = read_yaml(path, what="cluster file")
    return cluster_request(validate(ClusterFile, document, what="cluster file"), folders=folders)


def usual_node(name: str, *, folders: Folders | None = None) -> NodeDefaults:
    """The links, GPUs per node and host memory that the GPU of this name usually comes with."""
    return node_defaults(_load("gpus", name, GpuFile, folders), folders=folders)


def match_device_name(device_name: str, *, total_bytes: int, folders: Folders | None = None) -> GpuSpec | None:
    """The catalog's GPU that a driver calls `device_name`, nearest in memory when several bear it; None: unknown."""
    asked = folders if folders is not None else default_folders()
    wanted = _fold_device_name(device_name)
    known = [read_entry(entry, GpuFile) for entry in list_entries("gpus", asked)]
    records = [gpu_record(file) for file in known if wanted in map(_fold_device_name, file.device_names)]
    return min(records, key=lambda gpu: abs(gpu.memory_nominal_bytes - total_bytes), default=None)


def resolve_cluster(request: ClusterRequest) -> ClusterSpec:
    """Fill what is not said with what is usual for the GPU."""
    if request.groups:
        joint = join_groups(request.groups, name=request.name, inter_node_link=request.inter_node_link)
        return replace(
            joint,
            mtbf_s=request.failures.mtbf_s or joint.mtbf_s,
            checkpoint_write_bytes_per_s=request.failures.checkpoint_write_bytes_per_s
            or joint.checkpoint_write_bytes_per_s,
        )
    gpus_per_node = request.gpus_per_node or request.usual.gpus_per_node
    return ClusterSpec(
        gpu=priced(_capped(request.gpu, request.memory_cap_bytes), request.price),
        nodes=request.nodes,
        gpus_per_node=gpus_per_node,
        intra_node_link=request.intra_node_link or request.usual.intra_node_link,
        inter_node_link=request.inter_node_link or request.usual.inter_node_link,
        host_memory_bytes=request.host_memory_bytes or request.usual.host_memory_bytes_per_gpu * gpus_per_node,
        name=request.name,
        is_this_machine=request.is_this_machine,
        mtbf_s=request.failures.mtbf_s,
        checkpoint_write_bytes_per_s=request.failures.checkpoint_write_bytes_per_s,
    )


def priced(gpu: GpuSpec, price: PriceFigures | None) -> GpuSpec:
    """The GPU at another price than the catalog's; None: at that."""
    if price is None:
        return gpu
    per_hour = price.usd_per_hour if price.usd_per_hour is not None else price.per_hour or 0.0
    source = price.source + (f", {price.date}" if price.date else "")
    return replace(gpu, price_per_hour=per_hour, price_currency=price.currency, price_source=source)


def _capped(gpu: GpuSpec, cap_bytes: int | None) -> GpuSpec:
    """The GPU with a rank's memory limited. On a CPU the cap is the memory: the catalog only guesses it."""
    if cap_bytes is None:
        return gpu
    if gpu.device is DeviceKind.CPU:
        nominal = max(gpu.memory_nominal_bytes, cap_bytes)
        return replace(gpu, memory_nominal_bytes=nominal, memory_usable_bytes=cap_bytes)
    if cap_bytes > gpu.memory_usable_bytes:
        usable = gpu.memory_usable_bytes / BYTES_PER_GIB
        raise InputError(
            f"memory_gib {cap_bytes / BYTES_PER_GIB:g} is more than the {usable:.2f} GiB that {gpu.name} offers",
            why="it caps what one rank may take, and a cap above the usable memory has no effect",
            fix="lower memory_gib or leave it out",
        )
    return replace(gpu, memory_usable_bytes=cap_bytes)


def cluster_request(file: ClusterFile, *, folders: Folders | None = None) -> ClusterRequest:
    """A cluster file with its names looked up."""
    request = nodes_request(file.groups[0] if file.groups else file, folders=folders)
    if file.groups:
        request = mixed_request(file.groups, link=chosen_link(file.inter_node_link, folders=folders), folders=folders)
        request = replace(request, failures=failure_figures(file))
    return replace(request, name=file.name, is_this_machine=file.this_machine)


def mixed_request(
    groups: tuple[GroupEntry, ...], *, link: LinkSpec | None, folders: Folders | None = None
) -> ClusterRequest:
    """Several kinds of nodes; `link`: what is said of the network between them."""
    requests = [nodes_request(group, folders=folders) for group in groups]
    clusters = tuple(resolve_cluster(request) for request in requests)
    return ClusterRequest(gpu=requests[0].gpu, usual=requests[0].usual, inter_node_link=link, groups=clusters)


def nodes_request(entry: NodesEntry, *, folders: Folders | None = None) -> ClusterRequest:
    """Alike nodes with their names looked up."""
    gpu_file = _chosen_gpu(entry.gpu, folders)
    if entry.memory is not None:
        gpu_file = gpu_file.model_copy(update={"memory": entry.memory})
    return ClusterRequest(
        gpu=gpu_record(gpu_file),
        usual=node_defaults(gpu_file, folders=folders),
        nodes=entry.nodes,
        gpus_per_node=entry.gpus_per_node,
        intra_node_link=chosen_link(entry.intra_node_link, folders=folders),
        inter_node_link=chosen_link(entry.inter_node_link, folders=folders),
        host_memory_bytes=gib_to_bytes(entry.host_memory_gib),
        memory_cap_bytes=gib_to_bytes(entry.memory_gib),
        price=entry.price_per_gpu_hour,
        failures=failure_figures(entry),
    )


def failure_figures(said: Any, *, below: FailureFigures = NOTHING_SAID) -> FailureFigures:
    """Of a section with `mtbf_hours` and `checkpoint_write_gb_per_s`; what it does not say is as `below` has it."""
    return FailureFigures(
        mtbf_s=(said.mtbf_hours or 0.0) * 3600.0 or below.mtbf_s,
        checkpoint_write_bytes_per_s=(said.checkpoint_write_gb_per_s or 0.0) * BYTES_PER_GB
        or below.checkpoint_write_bytes_per_s,
    )


def chosen_link(choice: LinkChoice | None, *, folders: Folders | None = None) -> LinkSpec | None:
    """The record of a link that is named or described; None where nothing is said."""
    if choice is None:
        return None
    return link_record(choice.described) if choice.described else load_link(choice.catalog or "", folders=folders)


def _chosen_gpu(choice: GpuChoice | None, folders: Folders | None) -> GpuFile:
    if choice is None:
        raise TypeError("the schema lets no nodes without a GPU through")
    return choice.described or _load("gpus", choice.catalog or "", GpuFile, folders)


def gpu_record(file: GpuFile) -> GpuSpec:
    """Units turned: GiB to bytes, GB/s to bytes/s, TFLOP/s to FLOP/s. The kind is the weakest of its groups."""
    host_link = file.host_link
    groups: tuple[tuple[str, SourcedFigures], ...] = (
        ("memory", file.memory),
        ("bandwidth", file.bandwidth),
        ("peak", file.peak),
    )
    gpu = GpuSpec(
        name=file.name,
        device=file.device,
        memory_nominal_bytes=int(file.memory.nominal_gib * BYTES_PER_GIB),
        memory_usable_bytes=int(file.memory.usable_gib * BYTES_PER_GIB),
        memory_bandwidth_bytes_per_s=file.bandwidth.gb_per_s * BYTES_PER_GB,
        peak_fp32_flops_per_s=_flops_per_s(file.peak.fp32_tflops),
        peak_fp16_flops_per_s=_flops_per_s(file.peak.fp16_tflops),
        peak_bf16_flops_per_s=_flops_per_s(file.peak.bf16_tflops),
        peak_fp8_flops_per_s=_flops_per_s(file.peak.fp8_tflops),
        host_link_bytes_per_s=host_link.gb_per_s * BYTES_PER_GB if host_link else 0.0,
        source="; ".join(f"{word} ({group.kind}): {group.source}" for word, group in groups),
        kind=weakest(*(group.kind for _, group in groups)),
    )
    return priced(gpu, file.price)


def _flops_per_s(tflops: float) -> float:
    return float(round(tflops * FLOPS_PER_TFLOP))


def link_record(file: LinkFile) -> LinkSpec:
    """Units turned: GB/s to bytes/s, microseconds to seconds."""
    return LinkSpec(
        name=file.name,
        bandwidth_bytes_per_s=file.gb_per_s * BYTES_PER_GB,
        latency_s=file.latency_us / 1e6,
        efficiency_fraction=file.efficiency_fraction,
        source=file.source,
        kind=file.kind,
    )


def node_defaults(file: GpuFile, *, folders: Folders | None = None) -> NodeDefaults:
    """The usual node of a GPU, its links looked up."""
    return NodeDefaults(
        gpus_per_node=file.gpus_per_node,
        intra_node_link=load_link(file.intra_node_link, folders=folders),
        inter_node_link=load_link(file.inter_node_link, folders=folders),
        host_memory_bytes_per_gpu=int(file.host_memory_gib_per_gpu * BYTES_PER_GIB),
    )


def gib_to_bytes(gib: float | None) -> int | None:
    """Bytes of a size in GiB; None stays None."""
    return None if gib is None else int(gib * BYTES_PER_GIB)


def _load(kind: str, name: str, schema: type[F], folders: Folders | None) -> F:
    """The file whose name or alias this is; the file name is tried before all files are read for their aliases."""
    asked = folders if folders is not None else default_folders()
    entry = find_entry(kind, name, asked)
    if entry is not None:
        return read_entry(entry, schema)
    files = [read_entry(other, schema) for other in list_entries(kind, asked)]
    wanted = fold(name)
    named = next((file for file in files if wanted in map(fold, file.aliases)), None)
    if named is not None:
        return named
    known = tuple(word for file in files for word in (file.name, *file.aliases))
    raise unknown_name(kind, name, known)


def read_entry(entry: Entry, schema: type[F]) -> F:
    """The file of an entry, strictly read; once per version of the file."""
    try:
        version = entry.path.stat().st_mtime_ns
    except OSError:
        version = 0  # a dangling link, say: reading it gives the error
    file: F = _read_cached(entry.path, schema, version)
    if fold(file.name) != entry.name:
        raise InputError(
            f"{entry.path} says its name is {file.name!r}",
            why="an entry of the catalog is found by its file's name",
            fix=f"write `name: {entry.name}` in it, or rename the file",
        )
    return file


@lru_cache(maxsize=1000)
def _read_cached(path: Path, schema: type[Any], modified_ns: int) -> Any:
    del modified_ns  # only part of the key: a changed file is read again
    return validate(schema, read_yaml(path, what="catalog file"), what="catalog file")


def _fold_device_name(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", " ", name.lower()).strip().removeprefix("nvidia ").removeprefix("tesla ")
