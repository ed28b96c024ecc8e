"""What a GPU, link or cluster file may hold, in human units; `hardware` turns them into records.

Every group of numbers has its `source` and `kind` (measured, emulated, fitted, computed = from a data sheet).
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from planner.catalog.documents import describe
from planner.catalog.strict import StrictModel, complain, word_parser
from planner.spec import DeviceKind, Provenance

KindWord = Annotated[Provenance, BeforeValidator(word_parser(Provenance))]
DeviceWord = Annotated[DeviceKind, BeforeValidator(word_parser(DeviceKind))]
Name = Annotated[str, Field(min_length=1, max_length=100)]
Source = Annotated[str, Field(min_length=1, max_length=1000, description="where the numbers come from")]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
MemoryGib = Annotated[float, Field(gt=0, le=1e6)]
GigabytesPerSecond = Annotated[float, Field(gt=0, le=1e6)]
Hours = Annotated[float, Field(gt=0, le=1e7)]
Teraflops = Annotated[float, Field(ge=0, le=1e6)]


class SourcedFigures(StrictModel):
    """A group of numbers of one origin."""

    source: Source
    kind: KindWord = Field(description="measured, emulated, fitted or computed")


class MemoryFigures(SourcedFigures):
    nominal_gib: MemoryGib = Field(description="all the memory the driver shows, in GiB")
    usable_gib: MemoryGib = Field(description="what a process can really allocate, its context included, in GiB")

    @model_validator(mode="after")
    def _usable_is_at_most_nominal(self) -> MemoryFigures:
        if self.usable_gib > self.nominal_gib:
            raise complain("has more usable than nominal memory", fix="swap or correct nominal_gib and usable_gib")
        return self


class BandwidthFigures(SourcedFigures):
    gb_per_s: GigabytesPerSecond = Field(description="decimal gigabytes per second, one direction")


class PeakFigures(SourcedFigures):
    """Dense peaks of matrix products; 0 where the device has no such units. fp32 is true fp32, not TF32."""

    fp32_tflops: Teraflops = Field(description="dense peak in fp32 (torch's default; not TF32)")
    fp16_tflops: Teraflops = Field(description="dense peak in fp16 with fp32 accumulation")
    bf16_tflops: Teraflops = Field(description="dense peak in bf16; 0 where the device has none")
    fp8_tflops: Teraflops = Field(default=0.0, description="dense peak in fp8; 0 where the device has none")


def parse_day(value: Any) -> str:
    """`2026`, `2026-11` or `2026-11-30`, as text; a validator for pydantic."""
    text = str(value) if isinstance(value, (str, int)) and not isinstance(value, bool) else ""
    if not re.fullmatch(r"(19|20)\d{2}(-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?)?", text, re.ASCII):
        raise complain(f"must be a date, found {describe(value)}", fix="write it like 2026-11-30, 2026-11 or 2026")
    return text


def parse_currency(value: Any) -> str:
    """Three capital letters; a validator for pydantic."""
    if isinstance(value, str) and re.fullmatch("[A-Z]{3}", value, re.ASCII):
        return value
    raise complain(f"must be a currency of three letters, found {describe(value)}", fix="write USD, EUR or the like")


class PriceFigures(StrictModel):
    """A price of one GPU for one hour: `usd_per_hour`, or `per_hour` in another `currency`."""

    usd_per_hour: float | None = Field(
        default=None, ge=0, le=1e5, description="price of one GPU for one hour, US dollars"
    )
    per_hour: float | None = Field(default=None, ge=0, le=1e5, description="price of one GPU for one hour")
    currency: Annotated[str, BeforeValidator(parse_currency)] = Field(
        default="USD", description="three letters, such as EUR; of per_hour"
    )
    source: Source = "no source given"
    date: Annotated[str, BeforeValidator(parse_day)] | None = Field(
        default=None, description="when this was the price: 2026-11-30, 2026-11 or 2026"
    )

    @model_validator(mode="after")
    def _one_figure(self) -> PriceFigures:
        if (self.usd_per_hour is None) == (self.per_hour is None):
            raise complain("needs one of usd_per_hour and per_hour", fix="write usd_per_hour: 2.5")
        if self.usd_per_hour is not None and self.currency != "USD":
            raise complain("gives usd_per_hour in another currency", fix="write per_hour: beside currency:")
        return self


def _figure_or_price(value: Any) -> Any:
    if isinstance(value, (PriceFigures, dict)):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise complain(
            f"must be a price, found {describe(value)}",
            fix="write a number of US dollars, or {per_hour: 2.3, currency: EUR, source: …, date: 2026-11}",
        )
    return {"usd_per_hour": float(value), "source": "own figure"}


Price = Annotated[PriceFigures, BeforeValidator(_figure_or_price)]


class NamedFile(StrictModel):
    """A file of the catalog: found by its name, which is its file's, or by an alias."""

    name: Name = Field(description="the catalog name")
    aliases: tuple[Name, ...] = Field(default=(), strict=False, description="other names it is known by")


class GpuFile(NamedFile):
    """`configs/gpus/<name>.yaml`."""

    device_names: tuple[Name, ...] = Field(default=(), strict=False, description="how the driver names it")
    device: DeviceWord = Field(default=DeviceKind.CUDA, description="cuda or cpu")
    memory: MemoryFigures = Field(description="its memory")
    bandwidth: BandwidthFigures = Field(description="its memory bandwidth")
    peak: PeakFigures = Field(description="its dense compute peaks")
    host_link: BandwidthFigures | None = Field(default=None, description="its link to host memory, one direction")
    price: PriceFigures | None = Field(default=None, description="its list price")
    intra_node_link: Name = Field(description="the link between GPUs of a usual node, a catalog name")
    inter_node_link: Name = Field(description="the network of a usual node, a catalog name")
    gpus_per_node: Count = Field(default=8, description="GPUs in a usual node")
    host_memory_gib_per_gpu: MemoryGib = Field(default=128.0, description="host memory of a usual node, per GPU")


class LinkFile(NamedFile):
    """`configs/links/<name>.yaml`."""

    gb_per_s: GigabytesPerSecond = Field(description="one direction, per GPU, decimal gigabytes per second")
    latency_us: float = Field(ge=0, le=1e6, description="of one message, microseconds")
    efficiency_fraction: float = Field(gt=0, le=1, description="the share of gb_per_s that large messages reach")
    source: Source
    kind: KindWord = Field(description="measured, emulated, fitted or computed")


def _named_or_described(value: Any) -> Any:
    if isinstance(value, str):
        return {"catalog": value}
    if isinstance(value, dict):
        return {"described": value}
    raise complain(f"must be a catalog name or a description, found {describe(value)}", fix="write a catalog name")


class GpuChoice(StrictModel):
    catalog: Name | None = None
    described: GpuFile | None = None


class LinkChoice(StrictModel):
    catalog: Name | None = None
    described: LinkFile | None = None


LinkOption = Annotated[LinkChoice, BeforeValidator(_named_or_described)] | None


class NodesEntry(StrictModel):
    """Alike nodes: a cluster file without its name, and one of the groups of a mixed cluster."""

    gpu: Annotated[GpuChoice, BeforeValidator(_named_or_described)] | None = Field(
        default=None, description="its GPUs: a catalog name or a description"
    )
    nodes: Count = Field(default=1, description="how many alike nodes")
    gpus_per_node: Count | None = Field(default=None, description="GPUs of one node; left out: as usual for the GPU")
    intra_node_link: LinkOption = Field(
        default=None, description="the link between GPUs of a node; left out: as usual for the GPU"
    )
    inter_node_link: LinkOption = Field(
        default=None, description="the network between nodes; left out: as usual for the GPU"
    )
    host_memory_gib: MemoryGib | None = Field(default=None, description="memory of one node's host, in GiB")
    memory: MemoryFigures | None = Field(
        default=None, description="the memory of one GPU as it was found; goes before what the catalog says"
    )
    memory_gib: MemoryGib | None = Field(default=None, description="a cap on the memory of one rank, in GiB")
    price_per_gpu_hour: Price | None = Field(
        default=None, description="price of one GPU for one hour: a number (USD), or a mapping as in a GPU's file"
    )
    mtbf_hours: Hours | None = Field(default=None, description="mean time between failures of one node, in hours")
    checkpoint_write_gb_per_s: GigabytesPerSecond | None = Field(
        default=None, description="what one node writes to where checkpoints lie, decimal gigabytes per second"
    )


class GroupEntry(NodesEntry):
    """One group of a mixed cluster."""

    gpu: Annotated[GpuChoice, BeforeValidator(_named_or_described)] = Field(
        description="its GPUs: a catalog name or a description"
    )


def _several_groups(value: Any) -> Any:
    if not isinstance(value, list) or not 2 <= len(value) <= MAX_GROUPS:
        found = f"{len(value)} of them" if isinstance(value, list) else describe(value)
        raise complain(
            f"must list from 2 to {MAX_GROUPS} groups of nodes, found {found}",
            fix="write groups: [{gpu: h100, nodes: 4}, {gpu: a100, nodes: 4}], or gpu: for nodes of one kind",
        )
    return tuple(value)


MAX_GROUPS = 4  # each order of the groups is a pipeline of its own
Groups = Annotated[tuple[GroupEntry, ...], BeforeValidator(_several_groups)]


class ClusterFile(NamedFile, NodesEntry):
    """`configs/clusters/<name>.yaml`, and a cluster file of the user's."""

    groups: Groups | None = Field(
        default=None, description="groups of alike nodes, in the order of the nodes; instead of gpu"
    )
    this_machine: bool = Field(default=False, description="true when the file describes the machine it is used on")
    source: str = Field(default="", max_length=1000, description="where the numbers come from")

    @model_validator(mode="after")
    def _alike_or_mixed(self) -> ClusterFile:
        if (self.gpu is None) == (self.groups is None):
            raise complain("needs one of gpu and groups", fix="write gpu: for alike nodes, groups: for several kinds")
        refuse_beside_groups(self)
        return self


_SAID_BY_GROUPS = ("gpus_per_node", "intra_node_link", "host_memory_gib", "memory", "memory_gib", "price_per_gpu_hour")


def refuse_beside_groups(section: Any) -> None:
    """What each group says for itself has no place beside `groups`."""
    said = section.model_fields_set & {"nodes", *_SAID_BY_GROUPS}
    if section.groups is not None and said:
        raise complain(f"has {min(said)} beside groups", fix=f"write {min(said)} in the groups that it is about")
