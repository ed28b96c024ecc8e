"""Recorded collectives of single ranks, priced and put together into the step of a whole cluster."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.links import Group, all_reduce_s, ring_gather_s, send_s
from planner.cost.recorded import Role, breakdown_total_s, collective_s, recorded_step
from planner.spec import CollectiveCount, CollectiveKind, EmulationReport, ParallelLayout, Phase, TimeBreakdown
from tests.unit.cost.samples import cluster

MIB = 1 << 20
WORLD = tuple(range(64))
CLUSTER = cluster()


def count(kind: CollectiveKind, num_bytes: int = 64 * MIB, **fields: Any) -> CollectiveCount:
    defaults: dict[str, Any] = {
        "dtype": "bfloat16",
        "group": 0,
        "phase": Phase.BACKWARD,
        "count": 1,
        "each_micro_batch": True,
    }
    return CollectiveCount(kind=kind, num_bytes=num_bytes, **{**defaults, **fields})


def report(
    *counts: CollectiveCount, micro_batch_s: float = 1.0, step_end_s: float = 0.25, groups: Any = (WORLD,)
) -> EmulationReport:
    return EmulationReport(
        rank=0,
        world_size=64,
        micro_batches=2,
        micro_batch_s=micro_batch_s,
        step_end_s=step_end_s,
        own_s=0.0,
        groups=groups,
        collectives=counts,
    )


def step(*roles: Role | EmulationReport, micro_batches: int = 4, tensor: int = 1, pipeline: int = 1) -> TimeBreakdown:
    layout = ParallelLayout(
        data_parallel_size=64 // tensor // pipeline, tensor_parallel_size=tensor, pipeline_parallel_size=pipeline
    )
    given = [role if isinstance(role, Role) else Role(report=role) for role in roles]
    return recorded_step(given, layout=layout, micro_batches=micro_batches, cluster=CLUSTER)


def price(what: CollectiveCount, groups: Any = (WORLD,)) -> float:
    return collective_s(what, report=report(what, groups=groups), cluster=CLUSTER)


def test_step_without_peers_is_micro_batches_and_an_end() -> None:
    alone = report(count(CollectiveKind.ALL_REDUCE), groups=((0,),))
    assert breakdown_total_s(step(alone, micro_batches=7)) == pytest.approx(7 * 1.0 + 0.25)


@given(st.integers(1, 500), st.integers(1, 500), st.floats(0.0, 2.0))
def test_step_is_linear_in_micro_batches(first: int, second: int, overlap_s: float) -> None:
    role = report(
        count(CollectiveKind.REDUCE_SCATTER, overlap_s=overlap_s),
        count(CollectiveKind.ALL_GATHER, each_micro_batch=False, count=3),
    )
    totals = [breakdown_total_s(step(role, micro_batches=m)) for m in (first, second, 1, 2)]
    slope = totals[3] - totals[2]
    assert slope >= 1.0
    assert totals[0] - totals[1] == pytest.approx((first - second) * slope, rel=1e-9, abs=1e-9)


def test_pipeline_step_is_the_slowest_stage_and_one_pass_through_the_others() -> None:
    first, middle, last = report(micro_batch_s=1.0), report(micro_batch_s=2.0), report(micro_batch_s=1.5)
    roles = (Role(report=first), Role(report=middle, num_stages=6), Role(report=last))
    result = step(*roles, micro_batches=10, pipeline=8)
    assert result.compute_s == pytest.approx(10 * 2.0)
    assert result.bubble_s == pytest.approx(1.0 + 5 * 2.0 + 1.5)
    assert breakdown_total_s(result) == pytest.approx(20.0 + 12.5 + 0.25)


def test_collective_that_nothing_overlaps_shows_whole_and_a_covered_one_not_at_all() -> None:
    blocking, covered = count(CollectiveKind.ALL_REDUCE), count(CollectiveKind.ALL_REDUCE, overlap_s=0.9)
    assert 0.0 < price(blocking) < 0.9
    assert step(report(blocking)).data_parallel_s == pytest.approx(4 * price(blocking))
    assert step(report(covered)).data_parallel_s == 0.0
    half = count(CollectiveKind.ALL_REDUCE, overlap_s=price(blocking) / 2)
    assert step(report(half)).data_parallel_s == pytest.approx(4 * price(blocking) / 2)


def test_windows_that_overlap_hide_no_more_than_there_is_computing() -> None:
    many = count(CollectiveKind.ALL_GATHER, 1024 * MIB, count=500, overlap_s=1.0)
    assert 500 * price(many) > 1.0  # each would hide alone, but one second of computing cannot hide all
    assert step(report(many)).data_parallel_s == pytest.approx(4 * (500 * price(many) - 1.0))


def test_communication_is_told_apart_by_whom_it_is_with() -> None:
    groups = (tuple(range(8)), tuple(range(0, 32, 8)), (0, 32))
    role = report(
        count(CollectiveKind.ALL_REDUCE, group=0, count=4),
        count(CollectiveKind.ALL_REDUCE, group=1, each_micro_batch=False),
        count(CollectiveKind.SEND, group=2),
        groups=groups,
    )
    result = step(role, micro_batches=3, tensor=8, pipeline=2)
    assert result.tensor_parallel_s == pytest.approx(3 * 4 * price(count(CollectiveKind.ALL_REDUCE), groups))
    one = collective_s(role.collectives[1], report=role, cluster=CLUSTER)
    assert result.data_parallel_s == pytest.approx(one)
    assert result.pipeline_s == pytest.approx(3 * collective_s(role.collectives[2], report=role, cluster=CLUSTER))


@pytest.mark.parametrize(
    ("ranks", "size", "per_node"),
    [(tuple(range(8)), 8, 8), (WORLD, 64, 8), (tuple(range(0, 64, 8)), 8, 1), (tuple(range(0, 64, 4)), 16, 2)],
)
def test_price_is_that_of_the_link_model_for_the_ranks_as_they_lie_on_nodes(
    ranks: tuple[int, ...], size: int, per_node: int
) -> None:
    group = Group(size=np.asarray(float(size)), per_node=np.asarray(float(per_node)))
    message = np.asarray(64.0 * MIB)
    assert price(count(CollectiveKind.ALL_REDUCE), (ranks,)) == all_reduce_s(message, group=group, cluster=CLUSTER)
    for kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER):
        assert price(count(kind), (ranks,)) == ring_gather_s(message, group=group, cluster=CLUSTER)


@pytest.mark.parametrize(("pair", "crosses"), [((0, 4), False), ((0, 8), True)])
def test_price_of_a_message_is_that_of_the_link_it_crosses(pair: tuple[int, int], crosses: bool) -> None:
    expected = send_s(np.asarray(64.0 * MIB), crosses_nodes=np.asarray(crosses), cluster=CLUSTER)
    for kind in (CollectiveKind.SEND, CollectiveKind.RECEIVE):
        assert price(count(kind), (pair,)) == expected


def test_another_device_scales_computing_and_what_it_can_hide_not_the_links() -> None:
    half_hidden = count(CollectiveKind.ALL_REDUCE, overlap_s=price(count(CollectiveKind.ALL_REDUCE)) / 2)
    slow = Role(report=report(half_hidden), compute_scale=2.0, step_end_scale=3.0)
    result = step(slow)
    assert result.compute_s == pytest.approx(4 * 2.0)
    assert result.optimizer_s == pytest.approx(0.75)
    assert result.data_parallel_s == 0.0
