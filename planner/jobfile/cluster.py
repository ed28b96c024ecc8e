"""The cluster section of a job file to a ClusterSpec: by name, from a file, by looking, or as written out before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.catalog import (
    ClusterRequest,
    load_cluster_request,
    load_gpu,
    match_device_name,
    read_cluster_file,
    resolve_cluster,
    usual_node,
)
from planner.catalog.hardware import chosen_link, failure_figures, gib_to_bytes, mixed_request, nodes_request
from planner.catalog.hardware_schema import PriceFigures
from planner.catalog.hostfile import Host, read_hostfile, slots_of_each
from planner.errors import InputError
from planner.jobfile.machine import MachineFacts
from planner.jobfile.schema import ClusterSection
from planner.spec import ClusterSpec, DeviceKind, GpuSpec
from planner.spec.codec import DecodeError, from_plain, to_plain

THIS_MACHINE = "auto"
_OF_ALIKE_NODES = ("nodes", "gpus_per_node", "intra_node_link", "host_memory_gib", "memory_gib", "price_per_gpu_hour")
MAX_FIGURE = 1e18  # bytes, FLOP/s, bytes/s of one device or node; counts are far below


def cluster_of(
    section: ClusterSection, *, folder: Path, machine: MachineFacts | None, prices: Mapping[str, PriceFigures]
) -> ClusterSpec:
    """Resolve the section; paths are relative to `folder`, `prices` by GPU hold where nothing nearer gives one.

    InputError for what does not exist or contradicts itself.
    """
    if section.resolved is not None:
        return _written_out(section)
    by_gpu = {load_gpu(name).name: price for name, price in prices.items()}
    if section.groups is not None:
        return _mixed(section, by_gpu=by_gpu)
    request = _with_section(_source(section, folder=folder, machine=machine), section)
    hosts = hosts_of(section, folder=folder)
    if hosts:
        request = replace(request, nodes=len(hosts), gpus_per_node=hosts[0].slots)
    if section.gpu == THIS_MACHINE and machine is not None and (request.gpus_per_node or 0) > machine.num_devices:
        raise InputError(
            f"cluster.gpus_per_node is {request.gpus_per_node}, but this machine has {machine.num_devices}",
            why="gpu: auto means this machine",
            fix="lower gpus_per_node, or name the GPU of the machine that is meant",
        )
    if request.groups:
        _refuse_sizes_of_groups(section)
    elif request.price is None:
        request = replace(request, price=by_gpu.get(request.gpu.name))
    return resolve_cluster(request)


def hosts_of(section: ClusterSection, *, folder: Path) -> tuple[Host, ...]:
    """The nodes by name, where the section has a hostfile; all with the same number of slots."""
    if section.hostfile is None:
        return ()
    path = folder / section.hostfile
    hosts = read_hostfile(path)
    slots_of_each(hosts, label=str(path))
    return hosts


def _mixed(section: ClusterSection, *, by_gpu: Mapping[str, PriceFigures]) -> ClusterSpec:
    """Groups written out in the job file."""
    groups = tuple(
        entry
        if entry.price_per_gpu_hour is not None
        else entry.model_copy(update={"price_per_gpu_hour": by_gpu.get(nodes_request(entry).gpu.name)})
        for entry in section.groups or ()
    )
    request = mixed_request(groups, link=chosen_link(section.inter_node_link))
    return resolve_cluster(replace(request, failures=failure_figures(section)))


def _refuse_sizes_of_groups(section: ClusterSection) -> None:
    """What each group of a cluster file says for itself cannot be changed from outside."""
    said = [key for key in _OF_ALIKE_NODES if getattr(section, key) is not None]
    if said:
        raise InputError(
            f"cluster.{said[0]} is given beside a cluster of several groups of nodes",
            why="each group has its own",
            fix="change it in the groups of the cluster file, or write groups: into the job file",
        )


def _source(section: ClusterSection, *, folder: Path, machine: MachineFacts | None) -> ClusterRequest:
    if section.file is not None:
        return read_cluster_file(folder / section.file)
    if section.name is not None:
        return load_cluster_request(section.name)
    name = section.gpu or ""
    if name == THIS_MACHINE:
        return _this_machine(machine)
    return ClusterRequest(gpu=load_gpu(name), usual=usual_node(name))


def _with_section(request: ClusterRequest, section: ClusterSection) -> ClusterRequest:
    """What the job file says goes before what its source says."""
    return replace(
        request,
        nodes=section.nodes[-1] if section.nodes else request.nodes,  # several sizes: the largest
        gpus_per_node=section.gpus_per_node or request.gpus_per_node,
        intra_node_link=chosen_link(section.intra_node_link) or request.intra_node_link,
        inter_node_link=chosen_link(section.inter_node_link) or request.inter_node_link,
        host_memory_bytes=gib_to_bytes(section.host_memory_gib) or request.host_memory_bytes,
        memory_cap_bytes=gib_to_bytes(section.memory_gib) or request.memory_cap_bytes,
        price=section.price_per_gpu_hour or request.price,
        failures=failure_figures(section, below=request.failures),
    )


def _this_machine(machine: MachineFacts | None) -> ClusterRequest:
    if machine is None:
        raise InputError(
            "cluster.gpu is auto, but this machine was not looked at",
            why="auto takes the GPUs, memory and host from this machine",
            fix="name the GPU, as in gpu: h100-sxm-80gb",
        )
    if machine.device is DeviceKind.CPU:
        gpu = load_gpu("cpu")
    else:
        found = match_device_name(machine.gpu_name, total_bytes=machine.whole_bytes or machine.total_bytes)
        if found is None:
            raise InputError(
                f"the GPU of this machine, {machine.gpu_name!r}, is not in the catalog",
                why="its bandwidth and peak rates are needed to order candidates",
                fix="describe it with planner probe --out cluster.yaml and write cluster: {file: cluster.yaml}; or add "
                "gpus/<name>.yaml with device_names to your catalog folder",
            )
        gpu = _slice_of(found, machine) if machine.whole_bytes else found
    seen = replace(
        gpu,
        memory_nominal_bytes=max(machine.total_bytes, machine.usable_bytes),
        memory_usable_bytes=machine.usable_bytes,
        source=f"{gpu.source}; memory seen on this machine",
    )
    return ClusterRequest(
        gpu=seen,
        usual=usual_node(gpu.name),
        gpus_per_node=machine.num_devices,
        host_memory_bytes=machine.host_memory_bytes,
        is_this_machine=True,
    )


def _slice_of(gpu: GpuSpec, machine: MachineFacts) -> GpuSpec:
    """A MIG slice as a device: its share of the multiprocessors computes, and of the memory's bandwidth it has as much
    as of the memory."""
    share, memory_share = machine.share_fraction, machine.total_bytes / machine.whole_bytes
    return replace(
        gpu,
        memory_bandwidth_bytes_per_s=gpu.memory_bandwidth_bytes_per_s * memory_share,
        peak_fp32_flops_per_s=gpu.peak_fp32_flops_per_s * share,
        peak_fp16_flops_per_s=gpu.peak_fp16_flops_per_s * share,
        peak_bf16_flops_per_s=gpu.peak_bf16_flops_per_s * share,
        peak_fp8_flops_per_s=gpu.peak_fp8_flops_per_s * share,
        source=f"{gpu.source}; a MIG slice with {share:.3g} of the compute and {memory_share:.3g} of the memory",
    )


def _written_out(section: ClusterSection) -> ClusterSpec:
    try:
        cluster = from_plain(ClusterSpec, section.resolved, path="cluster.resolved")
        _check_figures(to_plain(cluster), path="cluster.resolved")
        return cluster
    except DecodeError as problem:
        raise InputError(
            str(problem),
            why="cluster.resolved holds every figure of the cluster, as the planner wrote it",
            fix="copy it whole from a plan folder's job.yaml, or write gpu: and nodes: instead",
        ) from None


def _check_figures(value: Any, *, path: str) -> None:
    """Records take any number; a file written by hand must not bring in what no cluster has."""
    if isinstance(value, dict):
        for key, item in value.items():
            _check_figures(item, path=f"{path}.{key}")
    elif value in ("nan", "inf", "-inf"):  # how the codec writes a float that is no number
        raise DecodeError(f"{path}: {value} is not a figure")
    elif isinstance(value, (int, float)) and not 0 <= value <= MAX_FIGURE:
        raise DecodeError(f"{path}: {value} is not a figure a cluster can have")
