"""Several kinds of nodes as one cluster: what every GPU of all of them can do at least.

Owns joining groups. Leaves what is planned on each group, or over them, to `planner.app`.
"""

from __future__ import annotations

from dataclasses import replace

from planner.errors import InputError
from planner.spec import ClusterSpec, GpuSpec, LinkSpec, weakest
from planner.spec.hardware import GPU_CAPACITIES


def join_groups(
    groups: tuple[ClusterSpec, ...], *, name: str = "", inter_node_link: LinkSpec | None = None
) -> ClusterSpec:
    """The cluster of these groups. Groups of one kind are one group, and a cluster of one kind is not mixed.

    `inter_node_link`: the network between groups; None: the slowest of the groups' own. Raises InputError for groups of
    CPUs beside groups of GPUs.
    """
    merged = _merged(groups)
    if len(merged) == 1:
        return replace(merged[0], name=name or merged[0].name)
    devices = {group.gpu.device for group in merged}
    if len(devices) > 1:
        raise InputError(
            "cluster.groups holds GPUs and CPUs",
            why="one training runs on one kind of device",
            fix="keep the groups of one kind",
        )
    nodes = sum(group.nodes for group in merged)
    return ClusterSpec(
        gpu=_least_gpu(merged),
        nodes=nodes,
        gpus_per_node=min(group.gpus_per_node for group in merged),
        intra_node_link=_slowest([group.intra_node_link for group in merged]),
        inter_node_link=inter_node_link or _slowest([group.inter_node_link for group in merged]),
        host_memory_bytes=min(group.host_memory_bytes for group in merged),
        name=name,
        mtbf_s=_joint_mtbf(merged, nodes=nodes),
        checkpoint_write_bytes_per_s=min(group.checkpoint_write_bytes_per_s for group in merged),
        groups=merged,
    )


def _merged(groups: tuple[ClusterSpec, ...]) -> tuple[ClusterSpec, ...]:
    """Groups that differ in nothing but their number of nodes, added up."""
    kinds: dict[ClusterSpec, int] = {}
    for group in groups:
        kind = replace(group, nodes=1, name="")
        kinds[kind] = kinds.get(kind, 0) + group.nodes
    return tuple(replace(kind, nodes=nodes) for kind, nodes in kinds.items())


def _least_gpu(groups: tuple[ClusterSpec, ...]) -> GpuSpec:
    """The least of every figure. Its price is what one GPU costs on average; unknown where one price is, or where they
    are not in one currency."""
    gpus = [group.gpu for group in groups]
    counts = [group.world_size for group in groups]
    known = all(gpu.price_per_hour for gpu in gpus) and len({gpu.price_currency for gpu in gpus}) == 1
    hourly = sum(gpu.price_per_hour * count for gpu, count in zip(gpus, counts)) if known else 0.0
    least = {figure: min(getattr(gpu, figure) for gpu in gpus) for figure in GPU_CAPACITIES}
    return replace(
        gpus[0],
        **least,
        name="+".join(dict.fromkeys(gpu.name for gpu in gpus)),
        price_per_hour=hourly / sum(counts),
        price_source="; ".join(dict.fromkeys(gpu.price_source for gpu in gpus)) if known else "",
        source="the least of each figure of: " + "; ".join(gpu.name for gpu in gpus),
        kind=weakest(*(gpu.kind for gpu in gpus)),
    )


def _slowest(links: list[LinkSpec]) -> LinkSpec:
    return min(links, key=lambda link: link.bandwidth_bytes_per_s * link.efficiency_fraction)


def _joint_mtbf(groups: tuple[ClusterSpec, ...], *, nodes: int) -> float:
    """Failures add up: nodes / MTBF = sum over groups of their nodes / MTBF. 0 where a group does not say."""
    if not all(group.mtbf_s for group in groups):
        return 0.0
    return nodes / sum(group.nodes / group.mtbf_s for group in groups)
