"""Pipelines over the groups of a mixed cluster: which candidates can stand on them, each with its best partition. Pure.

Owns which are looked at. Leaves balancing and pricing to `cost.uneven`, and whether such a pipeline is what to run on a
mixed cluster to `mixed`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.cost import REFERENCE_TRAINER, EstimateColumns, estimate_columns
from planner.cost.uneven import Setting, balance_stages, price_partition
from planner.report import CandidateRow
from planner.spec import Candidate, ClusterSpec, Estimate, GpuSpec, JobSpec
from planner.spec._record import record
from planner.spec.columns import BoolColumn, CandidateColumns, FloatColumn, IntColumn, candidate_at, columns_of
from planner.spec.hardware import GPU_CAPACITIES

# Candidates are balanced in the order of what they would reach if every GPU were as good as the best of each figure.
_AT_ONCE = 256
_PRICED_OF_EACH = 12  # of those, the fastest are priced stage by stage
_SLACK = 1.15  # balancing may gain a little over an even partition: the bound is that much higher
_MOST_BATCHES = 60
NUM_KEPT = 64


@record
class UnevenRow:
    """A candidate with its partition, and the row it has among the columns it was found in."""

    index: int
    row: CandidateRow


def setting_of(job: JobSpec) -> Setting:
    """What the job's pipelines are priced on; its cluster's groups stand in the order of the ranks."""
    return Setting(
        model=job.model,
        training=job.training,
        cluster=job.cluster,
        profile=REFERENCE_TRAINER,
        headroom_fraction=job.memory_headroom_fraction,
    )


def price_uneven(job: JobSpec, candidate: Candidate) -> Estimate:
    """A pipeline over the groups of the job's cluster, with the partition that it has."""
    return price_partition(candidate, setting_of(job))


def stands_on_groups(columns: CandidateColumns, cluster: ClusterSpec) -> BoolColumn:
    """Pipelines that fill every group with whole stages."""
    ranks = columns.data_parallel_size * columns.tensor_parallel_size
    stands = (columns.pipeline_parallel_size > 1) & (ranks * columns.pipeline_parallel_size == _world(cluster))
    for group in cluster.groups:
        stands &= group.world_size % np.maximum(ranks, 1) == 0
    return np.asarray(stands)


def fills_groups(candidate: Candidate, cluster: ClusterSpec) -> bool:
    """Whether this pipeline fills every group of a mixed cluster with whole stages."""
    columns = columns_of((candidate,), gpus_per_node=cluster.gpus_per_node)
    return bool(cluster.groups) and bool(stands_on_groups(columns, cluster)[0])


def _world(cluster: ClusterSpec) -> int:
    return sum(group.world_size for group in cluster.groups)


def uneven_rows(job: JobSpec, columns: CandidateColumns) -> tuple[UnevenRow, ...]:
    """The best of the candidates that stand on the groups and fit with headroom, fastest first; () when none does."""
    found: list[UnevenRow] = []
    rows = np.flatnonzero(stands_on_groups(columns, job.cluster))
    if not len(rows):
        return ()
    ceiling = _estimates(replace(job, cluster=_ceiling(job.cluster)), columns.take(rows)).tokens_per_s
    rows, ceiling = rows[np.argsort(-ceiling, kind="stable")], np.sort(ceiling)[::-1]
    best = 0.0
    for start in range(0, min(len(rows), _MOST_BATCHES * _AT_ONCE), _AT_ONCE):
        if float(ceiling[start]) * _SLACK < best:
            break
        found += _balanced(job, columns, rows[start : start + _AT_ONCE])
        best = max((one.row.estimate.tokens_per_s for one in found), default=0.0)
    found.sort(key=lambda one: (-one.row.estimate.tokens_per_s, one.row.estimate.memory.device_used_bytes))
    return tuple(found[:NUM_KEPT])


def _balanced(job: JobSpec, columns: CandidateColumns, rows: IntColumn) -> list[UnevenRow]:
    """Of some candidates those that seem fastest, with their partition and its price."""
    some, setting = columns.take(rows), setting_of(job)
    balance = balance_stages(some, setting)
    rough = _rough_step_s(balance.slowest_s, some, _estimates(job, some))
    found = []
    for place in np.argsort(rough, kind="stable")[:_PRICED_OF_EACH].tolist():
        if not np.isfinite(rough[place]):
            break
        even = candidate_at(columns, int(rows[place]), num_layers=job.model.num_layers)
        layout = replace(even.layout, stage_layers=balance.partition(place))
        candidate = replace(even, layout=layout)
        row = CandidateRow(key=candidate.key, candidate=candidate, estimate=price_partition(candidate, setting))
        found.append(UnevenRow(index=int(rows[place]), row=row))
    return found


def _rough_step_s(slowest_s: FloatColumn, columns: CandidateColumns, even: EstimateColumns) -> FloatColumn:
    """(m + p - 1) T, and what an even pipeline at the slower group's pace does once a step."""
    passes = columns.gradient_accumulation_steps + columns.pipeline_parallel_size - 1
    return np.asarray(passes * slowest_s + even.data_parallel_s + even.pipeline_s + even.optimizer_s)


def _estimates(job: JobSpec, columns: CandidateColumns) -> EstimateColumns:
    return estimate_columns(
        columns, model=job.model, training=job.training, cluster=job.cluster, profile=REFERENCE_TRAINER
    )


def _ceiling(cluster: ClusterSpec) -> ClusterSpec:
    """As if every GPU, and every link inside a node, were as good as the best of the groups'."""
    gpus = [group.gpu for group in cluster.groups]
    links = [group.intra_node_link for group in cluster.groups]
    best: GpuSpec = replace(
        cluster.gpu, **{figure: max(getattr(gpu, figure) for gpu in gpus) for figure in GPU_CAPACITIES}
    )
    between = max((group.inter_node_link for group in cluster.groups), key=lambda link: link.bandwidth_bytes_per_s)
    inside = max(links, key=lambda link: link.bandwidth_bytes_per_s * link.efficiency_fraction)
    return replace(cluster, gpu=best, intra_node_link=inside, inter_node_link=between, groups=())
