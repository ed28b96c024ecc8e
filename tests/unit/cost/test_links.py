"""Collectives: nothing to do alone, bandwidth for large messages, latency for small ones, the network between nodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.cost.links import Group, Network, all_reduce_s, all_to_all_s, ring_gather_s, send_s
from tests.unit.cost.samples import cluster


def _group(size: int, per_node: int) -> Group:
    return Group(size=np.array([float(size)]), per_node=np.array([float(per_node)]))


def _bytes(value: float) -> np.ndarray:
    return np.array([value])


def test_collectives_of_one_rank_take_no_time() -> None:
    for collective in (ring_gather_s, all_reduce_s, all_to_all_s):
        assert collective(_bytes(1e9), group=_group(1, 1), cluster=cluster())[0] == 0


def test_large_gather_in_a_node_runs_at_the_links_bandwidth() -> None:
    link = cluster().intra_node_link
    seconds = ring_gather_s(_bytes(8e9), group=_group(8, 8), cluster=cluster())[0]
    ideal = 7e9 / (link.bandwidth_bytes_per_s * link.efficiency_fraction)
    assert seconds == pytest.approx(ideal, rel=0.01)


def test_small_gather_costs_its_latency() -> None:
    seconds = ring_gather_s(_bytes(64.0), group=_group(8, 8), cluster=cluster())[0]
    assert seconds == pytest.approx(7 * cluster().intra_node_link.latency_s, rel=0.01)


def test_all_reduce_moves_the_message_twice() -> None:
    group = _group(8, 8)
    gathered = ring_gather_s(_bytes(1e10), group=group, cluster=cluster())
    assert all_reduce_s(_bytes(1e10), group=group, cluster=cluster())[0] == pytest.approx(2 * gathered[0], rel=0.01)


def test_small_all_reduce_goes_as_a_tree() -> None:
    seconds = all_reduce_s(_bytes(64.0), group=_group(64, 8), cluster=cluster())[0]
    assert seconds == pytest.approx(2 * 6 * cluster().inter_node_link.latency_s, rel=0.01)


def test_gather_of_many_ranks_waits_for_every_step_of_the_ring() -> None:
    seconds = ring_gather_s(_bytes(64.0), group=_group(64, 8), cluster=cluster())[0]
    assert seconds == pytest.approx(63 * cluster().inter_node_link.latency_s, rel=0.01)


def test_a_network_that_limits_each_ring_slows_large_messages_between_nodes_only() -> None:
    limited = Network(ring_bytes_per_s=1e11)
    inside, across = _group(8, 8), _group(64, 8)
    usual = [ring_gather_s(_bytes(1e10), group=group, cluster=cluster())[0] for group in (inside, across)]
    slower = [
        ring_gather_s(_bytes(1e10), group=group, cluster=cluster(), network=limited)[0] for group in (inside, across)
    ]
    assert slower[0] == usual[0]
    assert slower[1] > 3 * usual[1]
    reduced = all_reduce_s(_bytes(1e10), group=across, cluster=cluster(), network=limited)[0]
    assert reduced < 2 * slower[1]  # trees meet less of the limit


def test_groups_with_more_ranks_on_a_node_share_its_network_links() -> None:
    alone = ring_gather_s(_bytes(1e9), group=_group(8, 1), cluster=cluster())[0]
    together = ring_gather_s(_bytes(1e9), group=_group(64, 8), cluster=cluster())[0]
    assert together < alone


def test_more_nodes_cost_more() -> None:
    seconds = [ring_gather_s(_bytes(1e9), group=_group(8 * n, 8), cluster=cluster())[0] for n in (2, 8, 64)]
    assert seconds == sorted(seconds)


def test_sending_across_nodes_takes_the_network() -> None:
    slow = replace(cluster(), inter_node_link=replace(cluster().inter_node_link, bandwidth_bytes_per_s=1e9))
    near = send_s(_bytes(1e8), crosses_nodes=np.array([False]), cluster=slow)[0]
    far = send_s(_bytes(1e8), crosses_nodes=np.array([True]), cluster=slow)[0]
    assert far > 10 * near
