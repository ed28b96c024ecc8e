"""The second look: the best layouts again, with settings that nobody had to list.

The axes here leave numerics as they are, change one layout's speed or memory by much the same whatever the layout, and
would multiply a space of 10^5 layouts. So layouts are searched first, at the defaults, and then these axes around the
best of them. Owns which axes those are for a job, and their legal combinations; which layouts are the best is for
whoever has seen trials.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from planner.rules import AXIS_RULES, RuleContext, RuleStage, is_built_of_blocks
from planner.space.axes import rule_context
from planner.spec import Allocator, CrossEntropy, DeviceKind, JobSpec, TorchCompile
from planner.spec._record import record
from planner.spec.columns import CandidateColumns, IntColumn
from planner.spec.tuning import ALLOCATOR_ENVIRONMENT
from planner.spec.tuning_columns import with_setting


@record
class LocalAxis:
    """A setting of `Tuning` and the values tried around the best layouts, the default first."""

    name: str
    values: tuple[Any, ...]


def local_axes(job: JobSpec, *, compiles: bool = True) -> tuple[LocalAxis, ...]:
    """The axes of the second look: those the user did not list, on GPUs, that the trainer can set.

    `compiles`: whether a trial would show what compiling does (one that only stands in for a rank would not). A script
    of the user's own is told of none of them.
    """
    ranges, context = job.ranges, rule_context(job)
    if job.cluster.gpu.device is not DeviceKind.CUDA or job.launch.command:
        return ()
    own_allocator = {name for name, _ in ALLOCATOR_ENVIRONMENT} & {name for name, _ in job.launch.environment}
    axes = (
        (ranges.torch_compile is None and compiles and is_built_of_blocks(context), "torch_compile", _COMPILE),
        (ranges.cross_entropy is None and is_built_of_blocks(context), "cross_entropy", tuple(CrossEntropy)),
        (ranges.allocator is None and not own_allocator, "allocator", tuple(Allocator)),
    )
    return tuple(LocalAxis(name=name, values=values) for wanted, name, values in axes if wanted)


_COMPILE = (TorchCompile.NONE, TorchCompile.LAYER)


def combine(columns: CandidateColumns, axes: tuple[LocalAxis, ...], *, job: JobSpec) -> CandidateColumns:
    """The rows with every combination of the axes' values that no rule refuses, the rows' own among them; each once.

    A row whose axes are at their defaults comes first of its combinations.
    """
    context = rule_context(job)
    parts = []
    for values in product(*(axis.values for axis in axes)):
        tuning = columns.tuning
        for axis, value in zip(axes, values):
            tuning = with_setting(tuning, axis.name, value)
        parts.append(_legal(_retuned(columns, tuning), context))
    return distinct(joined_rows(parts)) if parts else columns


def _legal(columns: CandidateColumns, context: RuleContext) -> CandidateColumns:
    kept = np.ones(len(columns), dtype=np.bool_)
    for rule in AXIS_RULES:
        if rule.stage is RuleStage.MODE:
            kept &= ~rule.refuses(columns, context)
    return columns.take(kept)


def _retuned(columns: CandidateColumns, tuning: IntColumn) -> CandidateColumns:
    fields = {name: getattr(columns, name) for name in CandidateColumns.__dataclass_fields__}
    return CandidateColumns(**{**fields, "tuning": tuning})


def joined_rows(parts: list[CandidateColumns]) -> CandidateColumns:
    """Several columns as one, in order."""
    names = CandidateColumns.__dataclass_fields__
    return CandidateColumns(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def distinct(columns: CandidateColumns) -> CandidateColumns:
    """Each row once, in the order of its first appearance."""
    table = np.stack([getattr(columns, name).astype(np.int64) for name in CandidateColumns.__dataclass_fields__])
    _, first = np.unique(table, axis=1, return_index=True)
    return columns.take(np.sort(first))
