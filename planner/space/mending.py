"""What would make an impossible job possible: changes, each enumerated before it is named.

A change is only named when it leaves at least one legal candidate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from planner.rules import AXIS_RULES, RuleStage, precisions_of
from planner.space.axes import axis_values, rule_context
from planner.space.enumeration import enumerate_candidates, has_candidate, layout_grid
from planner.spec import JobSpec, OptimizerName
from planner.spec.columns import CandidateColumns, IntColumn, axis_codes, axis_value

WORLD_TRIES = 64  # other cluster sizes looked at in each direction
BATCH_TRIES = 8
MENDS_SHOWN = 4
_BATCH_RULES = frozenset({"data-parallel-exceeds-batch", "data-parallel-divides-batch"})


def possible_mends(job: JobSpec) -> tuple[str, ...]:
    """Changes to the job file that leave a legal candidate, most natural first; () when none was found.

    Single changes where one suffices; otherwise all listed axes are left out together, with one change more.
    """
    single = tuple(dict.fromkeys(_mends(job)))[:MENDS_SHOWN]
    listed = _listed(job)
    if single or not listed:
        return single
    freed = _without(job, listed)
    start = f"leave {', '.join(listed)} out under search"
    if has_candidate(freed):
        return (start,)
    return tuple(f"{start} and {mend}" for mend in _mends(freed))[:MENDS_SHOWN]


def _mends(job: JobSpec) -> Iterator[str]:
    yield from _mend_training(job)
    yield from _mend_batch(job)
    yield from _mend_world(job)
    yield from _mend_precision(job)
    yield from _mend_listed(job)


def _mend_training(job: JobSpec) -> Iterator[str]:
    limit = job.model.max_seq_len
    if 0 < limit < job.training.seq_len and has_candidate(replace(job, training=replace(job.training, seq_len=limit))):
        yield f"training.seq_len {job.training.seq_len} -> {limit}"
    adamw = replace(job.training.optimizer, name=OptimizerName.ADAMW)
    if job.training.optimizer.name is not OptimizerName.ADAMW and has_candidate(
        replace(job, training=replace(job.training, optimizer=adamw))
    ):
        yield f"training.optimizer.name {job.training.optimizer.name} -> adamw"


def _mend_batch(job: JobSpec) -> Iterator[str]:
    """The nearest global batch sizes below and above that some layout can share out evenly."""
    axes = axis_values(job)
    context = rule_context(job, axes)
    layouts = layout_grid(axes)
    legal = np.ones(len(layouts), dtype=np.bool_)
    for rule in AXIS_RULES:
        if rule.stage is RuleStage.LAYOUT and rule.name not in _BATCH_RULES:
            legal &= ~rule.refuses(layouts, context)
    micro = np.array(job.ranges.micro_batch_size or (1,), dtype=np.int64)
    units = np.unique(np.multiply.outer(layouts.data_parallel_size[legal], micro))
    given = job.training.global_batch_size
    below = np.sort(np.unique(given // units * units))[::-1] if len(units) else units
    above = np.unique((given // units + 1) * units) if len(units) else units
    found = (_first_possible_batch(job, below), _first_possible_batch(job, above))
    choices = " or ".join(str(value) for value in found if value)
    if choices:
        yield f"training.global_batch_size {given} -> {choices}"


def _first_possible_batch(job: JobSpec, sizes: IntColumn) -> int:
    """The first of a few sizes that leaves a candidate; 0 when none does."""
    for size in map(int, sizes[:BATCH_TRIES]):
        other = replace(job, training=replace(job.training, global_batch_size=max(size, 1)))
        if 0 < size != job.training.global_batch_size and has_candidate(other):
            return size
    return 0


def _mend_world(job: JobSpec) -> Iterator[str]:
    """The nearest numbers of GPUs that some layout can use: nodes, or the GPUs of a single node."""
    cluster = job.cluster
    on_one_node = cluster.nodes == 1
    size = cluster.gpus_per_node if on_one_node else cluster.nodes

    def possible(count: int) -> bool:
        other = replace(cluster, gpus_per_node=count) if on_one_node else replace(cluster, nodes=count, groups=())
        return has_candidate(replace(job, cluster=other, node_counts=()))

    below = next((n for n in range(size - 1, max(0, size - 1 - WORLD_TRIES), -1) if possible(n)), None)
    above = next((n for n in range(size + 1, size + 1 + WORLD_TRIES) if possible(n)), None)
    counts = [count for count in (below, above) if count is not None]
    if counts:
        per_node = 1 if on_one_node else cluster.gpus_per_node
        gpus = " or ".join(str(count * per_node) for count in counts)
        nodes = "" if on_one_node else f" ({' or '.join(map(str, counts))} nodes)"
        yield f"use {gpus} GPUs{nodes} instead of {cluster.world_size}"


def _mend_precision(job: JobSpec) -> Iterator[str]:
    others = [p for p in precisions_of(rule_context(job)) if p not in job.ranges.precision]
    good = [p for p in others if has_candidate(replace(job, ranges=replace(job.ranges, precision=(p,))))]
    if good:
        yield f"search.precision: [{', '.join(good)}]"


def _mend_listed(job: JobSpec) -> Iterator[str]:
    """Listed axes that, left out, would leave candidates; the values those candidates use."""
    for axis in _listed(job):
        freed = enumerate_candidates(_without(job, [axis]))
        if len(freed):
            yield f"search.{axis}: [{', '.join(_used(freed.columns, axis))}]"


def _listed(job: JobSpec) -> list[str]:
    ranges = job.ranges
    return [axis for axis in ranges.__dataclass_fields__ if axis != "precision" and getattr(ranges, axis) is not None]


def _without(job: JobSpec, axes: list[str]) -> JobSpec:
    """The job with these axes left out under search."""
    nothing: dict[str, Any] = dict.fromkeys(axes)
    return replace(job, ranges=replace(job.ranges, **nothing))


def _used(columns: CandidateColumns, axis: str, *, shown: int = 8) -> list[str]:
    return [str(axis_value(axis, int(code))) for code in np.unique(axis_codes(columns, axis))][:shown]
