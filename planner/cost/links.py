"""Time of collectives by algorithm, message size and link.

Owns the alpha-beta formulas of ring and hierarchical collectives. Leaves how often and how large they are to
`communication`.
"""

from __future__ import annotations

import numpy as np

from planner.spec._record import record
from planner.spec.columns import BoolColumn, FloatColumn
from planner.spec.hardware import ClusterSpec, LinkSpec

# Ranks reached over the network lose bandwidth to congestion and stragglers as the group spans more nodes. Fitted to
# the all-gather and all-reduce bandwidths published for 2 to 64 nodes of 8 H100 (ultrascale playbook figure data).
_CONGESTION_PER_DOUBLING = 0.08


@record
class Group:
    """Groups of one kind of parallelism: `size` ranks each, `per_node` of them on one node."""

    size: FloatColumn
    per_node: FloatColumn

    @property
    def nodes(self) -> FloatColumn:
        return np.maximum(self.size / self.per_node, 1.0)


def ring_gather_s(total_bytes: FloatColumn, *, group: Group, cluster: ClusterSpec) -> FloatColumn:
    """All-gather or reduce-scatter of `total_bytes` (the gathered size) over each group.

    t = (n - 1) alpha + S (n_node - 1) / n_node / B_intra + S (N - 1) / N / (n_node B_inter)
    n ranks, n_node of them a node, N nodes; S total bytes; alpha the slower link's latency per hop, at most
    log2-many over the network (NCCL trees); B effective bandwidths. Thakur et al. 2005 (ring), NCCL's hierarchical
    rings: the ranks of one node drive their network links together. Valid for messages up to the latency floor.
    """
    inside, between = cluster.intra_node_link, cluster.inter_node_link
    nodes, per_node = group.nodes, group.per_node
    intra_s = total_bytes * (per_node - 1) / per_node / _effective(inside)
    congestion = 1.0 + _CONGESTION_PER_DOUBLING * np.log2(nodes)
    inter_s = total_bytes * (nodes - 1) / nodes / (per_node * _effective(between)) * congestion
    hops = (per_node - 1) * inside.latency_s + np.log2(nodes) * between.latency_s
    transfer = np.maximum(intra_s, inter_s)
    return np.where(group.size > 1, transfer + hops, 0.0)


def all_reduce_s(message_bytes: FloatColumn, *, group: Group, cluster: ClusterSpec) -> FloatColumn:
    """All-reduce = reduce-scatter + all-gather: 2 S (n - 1) / n over the bottleneck link."""
    return 2.0 * ring_gather_s(message_bytes, group=group, cluster=cluster)


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
