"""The links of a node and between nodes, as a cluster file names or describes them. Pure."""

from __future__ import annotations

import re
from typing import Any

from planner.catalog import list_links, load_link
from planner.errors import InputError
from planner.probe.records import LinkMeasurement, MachineReport, SeenGpu
from planner.spec import DeviceKind, LinkSpec, Provenance

_GB = 1e9
_SAME_FRACTION = 0.06  # two bandwidths that differ by less are one link
_LANES = 16
_USUAL_PCIE_GENERATION = 4
_LOOPBACK = "loopback"

Choice = str | dict[str, Any]  # a catalog name, or a description as link files have it


def intra_node_link(report: MachineReport) -> tuple[Choice | None, str]:
    """The link between this node's devices, and in words where it comes from; None leaves the usual one."""
    nominal, words = _nominal(report)
    if report.link is not None:
        return _measured(report.link, nominal), f"measured here over {report.link.ranks} ranks ({report.link.backend})"
    if nominal is None:
        return None, "as usual for the GPU: nothing was seen of the links"
    return _choice(nominal), words


def _nominal(report: MachineReport) -> tuple[LinkSpec | None, str]:
    if report.device is DeviceKind.CPU:
        return load_link(_LOOPBACK), "processes of one machine"
    gpus = report.sight.gpus
    if len(gpus) < 2:
        return None, "one device: nothing to link"
    kinds = {pair.kind for pair in report.sight.pairs}
    if kinds and all(re.fullmatch(r"NV\d+", kind) for kind in kinds):
        return _nvlink(report)
    if kinds == {"XGMI"}:
        return None, "as usual for the GPU: joined by Infinity Fabric (XGMI)"
    if kinds - {""}:
        return _pcie(gpus), "PCIe: not all pairs of GPUs are joined by NVLink"
    return None, "as usual for the GPU: the topology could not be seen"


def _nvlink(report: MachineReport) -> tuple[LinkSpec | None, str]:
    fewest = min(int(pair.kind[2:]) for pair in report.sight.pairs)
    details = [gpu.details for gpu in report.sight.gpus]
    rates = [item.nvlink_bytes_per_s for item in details if item.nvlink_bytes_per_s]
    versions = [item.nvlink_version for item in details if item.nvlink_version]
    if not rates or not versions:
        return None, f"as usual for the GPU: {fewest} NVLinks between each pair, their speed was not told"
    family = _catalog(f"nvlink{max(2, min(versions))}")
    # Without a switch a GPU's links are spread over its peers, and a ring uses them all.
    links = min((item.nvlinks for item in details if item.nvlinks), default=fewest)
    found = LinkSpec(
        name=f"nvlink{min(versions)}-x{links}",
        bandwidth_bytes_per_s=links * min(rates),
        latency_s=family.latency_s if family else 4e-6,
        efficiency_fraction=family.efficiency_fraction if family else 0.7,
        source=f"{links} NVLinks of version {min(versions)} up on each GPU; latency and efficiency as the catalog's",
    )
    return _known(found), f"{links} NVLinks of {min(rates) / _GB:g} GB/s on each GPU"


def _pcie(gpus: tuple[SeenGpu, ...]) -> LinkSpec | None:
    """The narrowest slot; for GPU to GPU through the host."""
    slots = [gpu.details.pcie for gpu in gpus]
    generations = [slot.max_generation or _USUAL_PCIE_GENERATION for slot in slots]
    widths = [slot.width or _LANES for slot in slots]
    whole = _catalog(f"pcie{min(generations)}")
    if whole is None:
        return None
    if min(widths) >= _LANES:
        return whole
    return LinkSpec(
        name=f"pcie{min(generations)}-x{min(widths)}",
        bandwidth_bytes_per_s=whole.bandwidth_bytes_per_s * min(widths) / _LANES,
        latency_s=whole.latency_s,
        efficiency_fraction=whole.efficiency_fraction,
        source=f"{min(widths)} lanes of PCIe {min(generations)} seen",
    )


def inter_node_link(report: MachineReport) -> tuple[Choice | None, str]:
    """The network between nodes, the share of one GPU; None leaves the usual one, with the reason."""
    ports = [port for port in report.network.ports if port.state == "ACTIVE" and port.bytes_per_s]
    total = sum(port.bytes_per_s or 0 for port in ports)
    words = f"{len(ports)} active InfiniBand or RoCE ports"
    is_infiniband = any(port.link_layer == "InfiniBand" for port in ports)
    if not ports:
        wired = [item for item in report.network.interfaces if item.is_up and item.is_physical and item.bytes_per_s]
        if not wired:
            return None, "as usual for the GPU: no network with a known speed was seen"
        fastest = max(wired, key=lambda item: item.bytes_per_s or 0)
        total, words = fastest.bytes_per_s or 0, f"{fastest.name}, the fastest interface, shared by this node's GPUs"
    share = total / max(1, report.num_devices)
    model = _catalog("infiniband-ndr" if is_infiniband else "ethernet-100")
    found = LinkSpec(
        name=f"{'infiniband' if is_infiniband else 'ethernet'}-{share * 8 / _GB:.0f}",
        bandwidth_bytes_per_s=share,
        latency_s=model.latency_s if model else 2e-5,
        efficiency_fraction=model.efficiency_fraction if model else 0.7,
        source=f"{words}, {total * 8 / _GB:g} Gbit/s in all; latency and efficiency as the catalog's",
    )
    return _choice(_known(found)), words


def _measured(link: LinkMeasurement, nominal: LinkSpec | None) -> dict[str, Any]:
    """A measured link, its efficiency against the nominal bandwidth where that is known."""
    seen = link.bandwidth_bytes_per_s
    whole = max(seen, nominal.bandwidth_bytes_per_s if nominal else seen)
    name = nominal.name if nominal else link.backend
    return _described(
        LinkSpec(
            name=f"{name}-measured",
            bandwidth_bytes_per_s=whole,
            latency_s=link.latency_s,
            efficiency_fraction=max(0.001, seen / whole),
            source=f"planner probe: collectives of {link.ranks} ranks over {link.backend}, up to "
            f"{max(row.message_bytes for row in link.rows)} bytes",
            kind=Provenance.MEASURED,
        )
    )


def _known(found: LinkSpec) -> LinkSpec:
    """The catalog's link of the same family and bandwidth, if there is one: better known than one made up here."""
    family = re.match(r"[a-z]+", found.name)
    for row in list_links().rows:
        link = _catalog(str(row[0]))
        same = link is not None and abs(link.bandwidth_bytes_per_s / found.bandwidth_bytes_per_s - 1) < _SAME_FRACTION
        if link is not None and same and family and link.name.startswith(family[0]):
            return link
    return found


def _choice(link: LinkSpec) -> Choice:
    """By name when the catalog has it."""
    return link.name if _catalog(link.name) == link else _described(link)


def _described(link: LinkSpec) -> dict[str, Any]:
    return {
        "name": link.name,
        "gb_per_s": float(f"{link.bandwidth_bytes_per_s / _GB:.4g}"),
        "latency_us": float(f"{link.latency_s * 1e6:.3g}"),
        "efficiency_fraction": float(f"{link.efficiency_fraction:.3g}"),
        "kind": link.kind.value,
        "source": link.source,
    }


def _catalog(name: str) -> LinkSpec | None:
    try:
        return load_link(name)
    except InputError:
        return None
