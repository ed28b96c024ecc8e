"""The step of a whole cluster from what single ranks of it computed and sent: recorded collectives, priced.

Owns which recorded calls hide behind computing and how the stages of a pipeline wait for one another. Leaves the time
of one collective to `links`, recording to `planner.runtime`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.cost.links import Group, all_reduce_s, all_to_all_s, ring_gather_s, send_s
from planner.cost.profile import DEEPSPEED
from planner.cost.steptime import network_of
from planner.spec._record import record
from planner.spec.candidate import ParallelLayout
from planner.spec.estimate import TimeBreakdown
from planner.spec.hardware import ClusterSpec
from planner.spec.traffic import CollectiveCount, CollectiveKind, EmulationReport

_BETWEEN_TWO = (CollectiveKind.SEND, CollectiveKind.RECEIVE)
_GATHERING = (
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.BROADCAST,
    CollectiveKind.REDUCE,
    CollectiveKind.GATHER,
    CollectiveKind.SCATTER,
)


@record
class Role:
    """One rank that was emulated, and how many pipeline stages are like it.

    `compute_scale`, `step_end_scale`: seconds on the target's device per second on the device that emulated, of a
    micro-batch and of the step's end.
    """

    report: EmulationReport
    num_stages: int = 1
    compute_scale: float = 1.0
    step_end_scale: float = 1.0


@record
class _Shown:
    """Seconds of communication that the rank waits for, by whom it talks to."""

    tensor_s: float = 0.0
    data_s: float = 0.0
    pipeline_s: float = 0.0

    @property
    def total_s(self) -> float:
        return self.tensor_s + self.data_s + self.pipeline_s


@record
class _RoleTime:
    role: Role
    compute_s: float  # of one micro-batch
    each: _Shown
    end_compute_s: float
    end: _Shown

    @property
    def micro_batch_s(self) -> float:
        return self.compute_s + self.each.total_s


def recorded_step(
    roles: Sequence[Role], *, layout: ParallelLayout, micro_batches: int, cluster: ClusterSpec
) -> TimeBreakdown:
    """Seconds of one optimizer step of `micro_batches`, extrapolated from the few that the emulated ranks ran.

    step = m w + sum over the other stages of w_s + e: m micro-batches at the slowest stage (w = computing of one + what
    shows of its communication); filling and draining the pipeline, in which the first and the last micro-batch pass
    every other stage once (1F1B, Narayanan et al. 2021, arXiv 2104.04473, section 2.2, without its assumption that
    stages are equal); and the end of the step, e, of the rank that is last with it. Linear in m, because every
    micro-batch does the same work: what happens once in a step was recorded apart.

    A collective of p seconds that nothing waits for during o seconds of computing shows p - o; all that is hidden is at
    most the computing there is. Price: `links`.
    """
    times = [_role_time(role, layout=layout, cluster=cluster) for role in roles]
    slowest = max(times, key=lambda time: time.micro_batch_s)
    passing_s = sum(time.micro_batch_s * time.role.num_stages for time in times)
    last = max(times, key=lambda time: time.end_compute_s + time.end.total_s)
    m = micro_batches
    return TimeBreakdown(
        compute_s=m * slowest.compute_s,
        recompute_s=0.0,  # part of what was measured as computing
        tensor_parallel_s=m * slowest.each.tensor_s + last.end.tensor_s,
        data_parallel_s=m * slowest.each.data_s + last.end.data_s,
        pipeline_s=m * slowest.each.pipeline_s + last.end.pipeline_s,
        bubble_s=passing_s - slowest.micro_batch_s,
        optimizer_s=last.end_compute_s,
        offload_s=0.0,
        host_s=0.0,
    )


def breakdown_total_s(breakdown: TimeBreakdown) -> float:
    """The step time that the parts sum to."""
    return sum(float(getattr(breakdown, name)) for name in TimeBreakdown.__dataclass_fields__)


def _role_time(role: Role, *, layout: ParallelLayout, cluster: ClusterSpec) -> _RoleTime:
    report = role.report
    compute_s = report.micro_batch_s * role.compute_scale
    shown = []
    for each in (True, False):
        counts = [count for count in report.collectives if count.each_micro_batch is each]
        shown.append(_shown(counts, role=role, compute_s=compute_s, layout=layout, cluster=cluster))
    return _RoleTime(
        role=role,
        compute_s=compute_s,
        each=shown[0],
        end_compute_s=report.step_end_s * role.step_end_scale,
        end=shown[1],
    )


def _shown(
    counts: Sequence[CollectiveCount], *, role: Role, compute_s: float, layout: ParallelLayout, cluster: ClusterSpec
) -> _Shown:
    prices = [collective_s(count, report=role.report, cluster=cluster) for count in counts]
    hidden = [min(price, count.overlap_s * role.compute_scale) for price, count in zip(prices, counts)]
    could_hide_s = sum(count.count * seconds for count, seconds in zip(counts, hidden))
    kept = min(1.0, compute_s / could_hide_s) if could_hide_s else 1.0  # windows of several may be the same window
    spent = {"tensor_s": 0.0, "data_s": 0.0, "pipeline_s": 0.0}
    for count, price, seconds in zip(counts, prices, hidden):
        spent[_partner(count, report=role.report, layout=layout)] += count.count * (price - kept * seconds)
    return _Shown(**spent)


def _partner(count: CollectiveCount, *, report: EmulationReport, layout: ParallelLayout) -> str:
    """Tensor-parallel ranks are neighbours, then come data-parallel ranks, then stages (`runtime/grid.py`)."""
    if count.kind in _BETWEEN_TWO:
        return "pipeline_s"
    tensor = layout.tensor_parallel_size
    return "tensor_s" if len({rank // tensor for rank in report.groups[count.group]}) == 1 else "data_s"


def collective_s(count: CollectiveCount, *, report: EmulationReport, cluster: ClusterSpec) -> float:
    """Seconds of one of the counted collectives on the cluster's links, ranks placed node by node in order."""
    ranks = report.groups[count.group]
    if len(ranks) < 2:
        return 0.0
    nodes = {rank // cluster.gpus_per_node for rank in ranks}
    size, network = np.asarray(float(count.num_bytes)), network_of(DEEPSPEED)
    if count.kind in _BETWEEN_TWO:
        return float(send_s(size, crosses_nodes=np.asarray(len(nodes) > 1), cluster=cluster))
    group = Group(size=np.asarray(float(len(ranks))), per_node=np.asarray(len(ranks) / len(nodes)))
    if count.kind in _GATHERING:
        return float(ring_gather_s(size, group=group, cluster=cluster, network=network))
    if count.kind is CollectiveKind.ALL_TO_ALL:
        return float(all_to_all_s(size, group=group, cluster=cluster))
    return float(all_reduce_s(size, group=group, cluster=cluster, network=network))  # a barrier is one of nothing
