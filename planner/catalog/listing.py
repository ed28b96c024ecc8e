"""What the catalog holds, as tables for `planner list`: names, figures, where each entry comes from.

Column names end in their unit (`memory_usable_bytes`). `folder` is user, site or shipped: the first of them that has
an entry of a name hides the others.
"""

from __future__ import annotations

from typing import TypeAlias

from planner.catalog.entries import default_folders, list_entries
from planner.catalog.hardware import Folders, cluster_request, gpu_record, link_record, read_entry, resolve_cluster
from planner.catalog.hardware_schema import ClusterFile, GpuFile, LinkFile
from planner.catalog.models import read_model_config
from planner.spec._record import record

Cell: TypeAlias = str | int | float | bool


@record
class Listing:
    """A table; `rows` are in alphabetical order of their first cell, the name."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


_GPU_COLUMNS = (
    "name",
    "aliases",
    "memory_nominal_bytes",
    "memory_usable_bytes",
    "memory_bandwidth_bytes_per_s",
    "peak_fp32_flops_per_s",
    "peak_fp16_flops_per_s",
    "peak_bf16_flops_per_s",
    "peak_fp8_flops_per_s",
    "price_per_hour",
    "price_currency",
    "price_source",
    "intra_node_link",
    "inter_node_link",
    "kind",
    "folder",
    "source",
)


def list_gpus(*, folders: Folders | None = None) -> Listing:
    """Every GPU of the catalog with its figures."""
    rows = []
    for entry in list_entries("gpus", folders or default_folders()):
        file = read_entry(entry, GpuFile)
        gpu = gpu_record(file)
        figures = tuple(getattr(gpu, column) for column in _GPU_COLUMNS[2:12])
        links = (file.intra_node_link, file.inter_node_link)
        rows.append((gpu.name, ", ".join(file.aliases), *figures, *links, gpu.kind.value, entry.origin, gpu.source))
    return Listing(columns=_GPU_COLUMNS, rows=tuple(rows))


def list_links(*, folders: Folders | None = None) -> Listing:
    """Every link of the catalog: one direction, per GPU."""
    rows: list[tuple[Cell, ...]] = []
    for entry in list_entries("links", folders or default_folders()):
        file = read_entry(entry, LinkFile)
        link = link_record(file)
        figures = (link.bandwidth_bytes_per_s, link.latency_s, link.efficiency_fraction)
        rows.append((link.name, ", ".join(file.aliases), *figures, link.kind.value, entry.origin, link.source))
    columns = (
        "name",
        "aliases",
        "bandwidth_bytes_per_s",
        "latency_s",
        "efficiency_fraction",
        "kind",
        "folder",
        "source",
    )
    return Listing(columns=columns, rows=tuple(rows))


def list_clusters(*, folders: Folders | None = None) -> Listing:
    """Every cluster of the catalog, with what its GPU usually comes with filled in."""
    rows: list[tuple[Cell, ...]] = []
    for entry in list_entries("clusters", folders or default_folders()):
        file = read_entry(entry, ClusterFile)
        cluster = resolve_cluster(cluster_request(file, folders=folders))
        links = (cluster.intra_node_link.name, cluster.inter_node_link.name)
        sizes = (cluster.gpu.name, cluster.nodes, cluster.gpus_per_node)
        rows.append((file.name, *sizes, *links, cluster.host_memory_bytes, entry.origin, file.source))
    columns = (
        "name",
        "gpu",
        "nodes",
        "gpus_per_node",
        "intra_node_link",
        "inter_node_link",
        "host_memory_bytes",
        "folder",
        "source",
    )
    return Listing(columns=columns, rows=tuple(rows))


def list_models(*, folders: Folders | None = None) -> Listing:
    """Every model of the catalog, with its exact parameter count and whether the runtime can split it."""
    rows: list[tuple[Cell, ...]] = []
    for entry in list_entries("models", folders or default_folders()):
        model = read_model_config(entry.path, name=entry.name)
        shape = (model.num_layers, model.hidden_size, model.num_heads, model.num_kv_heads, model.vocab_size)
        kind = (model.family.value, model.model_type)
        rows.append((model.name, *kind, model.num_parameters, *shape, not model.tensor_parallel_refusal, entry.origin))
    columns = (
        "name",
        "family",
        "model_type",
        "num_parameters",
        "num_layers",
        "hidden_size",
        "num_heads",
        "num_kv_heads",
        "vocab_size",
        "can_be_split",
        "folder",
    )
    return Listing(columns=columns, rows=tuple(rows))
