"""Time of collectives by algorithm, message size and link.

Owns the alpha-beta formulas of ring and hierarchical collectives. Leaves how often and how large they are to
`communication`.
"""

from __future__ import annotations

import numpy as np

from planner.spec._record import record
from planner.spec.columns import BoolColumn, FloatColumn
from planner.spec.hardware import ClusterSpec, LinkSpec


@record
class Group:
    """Groups of one kind of parallelism: `size` ranks each, `per_node` of them on one node."""

    size: FloatColumn
    per_node: FloatColumn

    @property
    def nodes(self) -> FloatColumn:
        return np.maximum(self.size / self.per_node, 1.0)


@record
class Network:
    """What a runtime's published runs showed of the network, beside the link's own figures.

    `step_s` comes on top of the link's latency in every ring step between nodes. Whatever its links, one ring over N
    nodes moves at most `ring_bytes_per_s` N ^ -0.6 (0: no such limit).
    """

    step_s: float = 0.0
    ring_bytes_per_s: float = 0.0


USUAL_NETWORK = Network()
# Bandwidth between nodes falls as N ^ -this with the N nodes of a group: congestion and stragglers on a good network.
_CONGESTION_EXPONENT = 0.1
# Rings of 2 to 64 nodes of 8 H100 on EFA: all-gathers beside 1 to 8 tensor-parallel ranks a node (nanotron's runs).
_RING_EXPONENT = 0.6
_TREE_SHARE = 0.35  # of that limit that an all-reduce meets: trees have log2 N steps


def ring_gather_s(
    total_bytes: FloatColumn, *, group: Group, cluster: ClusterSpec, network: Network = USUAL_NETWORK
) -> FloatColumn:
    """All-gather or reduce-scatter of `total_bytes` (the gathered size) over each group.

    t = (n - 1) alpha + max(S (n_node - 1) / n_node / B_intra, S (N - 1) / N (N^0.1 / (n_node B_inter) + N^0.6 / R))
    n ranks, n_node of them a node, N nodes; S total bytes; alpha the latency of a ring step over the slower link; B
    effective bandwidths, R the network's limit of one ring. Thakur et al. 2005 (ring): NCCL has no tree for these two.
    The rings of one node drive its network links together.
    """
    inside, between = cluster.intra_node_link, cluster.inter_node_link
    nodes, per_node = group.nodes, group.per_node
    intra_s = total_bytes * (per_node - 1) / per_node / _effective(inside)
    inter_s = total_bytes * (nodes - 1) / nodes * _seconds_per_byte(group, link=between, network=network)
    step_s = np.where(nodes > 1, between.latency_s + network.step_s, inside.latency_s)
    return np.where(group.size > 1, np.maximum(intra_s, inter_s) + (group.size - 1) * step_s, 0.0)


def _seconds_per_byte(group: Group, *, link: LinkSpec, network: Network) -> FloatColumn:
    """Of one group's traffic between nodes."""
    links = group.nodes**_CONGESTION_EXPONENT / (group.per_node * _effective(link))
    if not network.ring_bytes_per_s:
        return links
    return np.asarray(links + group.nodes**_RING_EXPONENT / network.ring_bytes_per_s)


def all_reduce_s(
    message_bytes: FloatColumn, *, group: Group, cluster: ClusterSpec, network: Network = USUAL_NETWORK
) -> FloatColumn:
    """All-reduce = reduce-scatter + all-gather: 2 S (n - 1) / n over the bottleneck link, as a tree for small messages:
    2 log2(n) steps (NCCL)."""
    inside, between = cluster.intra_node_link, cluster.inter_node_link
    step_s = np.where(group.nodes > 1, between.latency_s + network.step_s, inside.latency_s)
    ring_steps = 2.0 * (group.size - 1)
    tree_steps = 2.0 * np.log2(np.maximum(group.size, 1.0))
    trees = Network(step_s=network.step_s, ring_bytes_per_s=network.ring_bytes_per_s / _TREE_SHARE)
    moved_s = 2.0 * ring_gather_s(message_bytes, group=group, cluster=cluster, network=trees)
    return moved_s - (ring_steps - np.minimum(tree_steps, ring_steps)) * step_s


def all_to_all_s(local_bytes: FloatColumn, *, group: Group, cluster: ClusterSpec) -> FloatColumn:
    """Each rank sends `local_bytes` x (n - 1) / n in all: what leaves the node crosses the rank's own network link."""
    inside, between = cluster.intra_node_link, cluster.inter_node_link
    size = group.size
    intra_s = local_bytes * (group.per_node - 1) / size / _effective(inside)
    inter_s = local_bytes * (size - group.per_node) / size / _effective(between)
    hops = inside.latency_s + np.log2(np.maximum(size, 1.0)) * np.where(
        group.nodes > 1, between.latency_s, inside.latency_s
    )
    return np.where(size > 1, np.maximum(intra_s, inter_s) + hops, 0.0)


def send_s(message_bytes: FloatColumn, *, crosses_nodes: BoolColumn, cluster: ClusterSpec) -> FloatColumn:
    """Point to point: alpha + S / B over the link between neighbouring stages."""
    inside, between = cluster.intra_node_link, cluster.inter_node_link
    near = inside.latency_s + message_bytes / _effective(inside)
    far = between.latency_s + message_bytes / _effective(between)
    return np.where(crosses_nodes, far, near)


def _effective(link: LinkSpec) -> float:
    return link.bandwidth_bytes_per_s * link.efficiency_fraction
