"""The legal candidates of a job, as columns, and how many combinations each rule refused.

The grid of all axis values is sieved in three stages, cheapest first: layouts (world, tensor, pipeline), then with
their micro-batches, then with their modes (ZeRO stage, precision and so on) and checkpointing. A combination refused at
an early stage is never unfolded but counts for all it would have unfolded to, so the tally is that of the whole grid.
No Python loop runs over candidates.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.rules import AXIS_RULES, RuleContext, RuleStage
from planner.space.axes import AxisValues, LeftOutAxis, axis_values, checkpointing_codes, rule_context
from planner.space.modes import mode_table
from planner.spec import Attention, JobSpec
from planner.spec._record import record
from planner.spec.columns import ATTENTIONS, CandidateColumns, IntColumn

_ROWS_AT_ONCE = 256
_CODES = frozenset({"zero_stage", "precision", "checkpointed_layers", "attention"}) | {
    "offload_optimizer",
    "offload_param",
    "tuning",
}
_DEFAULT_ATTENTION = ATTENTIONS.index(Attention.SDPA)


@record
class Rejection:
    """A rule, how many combinations it was the first to refuse, and its sentence in the numbers of the job."""

    rule: str
    count: int
    sentence: str


@record
class Space:
    """`num_combinations` = len(columns) + the sum of the rejections' counts."""

    columns: CandidateColumns
    rejections: tuple[Rejection, ...]
    left_out_axes: tuple[LeftOutAxis, ...]
    num_combinations: int

    def __len__(self) -> int:
        return len(self.columns)


def enumerate_candidates(job: JobSpec, *, nodes: tuple[int, ...] | None = None) -> Space:
    """Every legal candidate of the job, in a fixed order. `nodes`: cluster sizes to consider side by side.

    Raises InputError for listed values that mean nothing; a job without any legal candidate gives an empty space
    (see `explain_empty`).
    """
    axes = axis_values(job, nodes=nodes)
    context = rule_context(job, axes)
    sieve = _Sieve(context)
    layouts = layout_grid(axes)
    num_layers = job.model.num_layers
    weights = len(axes.micro_batch_size) * modes_per_layout(layouts, axes, num_layers=num_layers)
    num_combinations = int(weights.sum())
    layouts = sieve.keep(layouts, weights, RuleStage.LAYOUT)
    batches = with_micro_batches(layouts, axes, global_batch_size=job.training.global_batch_size)
    batches = sieve.keep(batches, modes_per_layout(batches, axes, num_layers=num_layers), RuleStage.BATCH)
    candidates = with_modes(batches, axes, num_layers=num_layers)
    candidates = sieve.keep(candidates, np.ones(len(candidates), dtype=np.int64), RuleStage.MODE)
    return Space(
        columns=candidates,
        rejections=sieve.rejections(),
        left_out_axes=axes.left_out,
        num_combinations=num_combinations,
    )


def has_candidate(job: JobSpec) -> bool:
    """Whether the job has any legal candidate; cheaper than enumerating all."""
    axes = axis_values(job)
    context = rule_context(job, axes)
    sieve = _Sieve(context)
    layouts = layout_grid(axes)
    layouts = sieve.keep(layouts, np.ones(len(layouts), dtype=np.int64), RuleStage.LAYOUT)
    batches = with_micro_batches(layouts, axes, global_batch_size=job.training.global_batch_size)
    batches = sieve.keep(batches, np.ones(len(batches), dtype=np.int64), RuleStage.BATCH)
    for start in range(0, len(batches), _ROWS_AT_ONCE):
        some = batches.take(np.arange(start, min(start + _ROWS_AT_ONCE, len(batches)), dtype=np.int64))
        modes = with_modes(some, axes, num_layers=job.model.num_layers)
        if len(sieve.keep(modes, np.ones(len(modes), dtype=np.int64), RuleStage.MODE)):
            return True
    return False


class _Sieve:
    """Lets rows through that no rule of a stage refuses, and counts the others by the first rule that refuses them."""

    def __init__(self, context: RuleContext) -> None:
        self._context = context
        self._counts: dict[str, int] = {}

    def keep(self, columns: CandidateColumns, weights: IntColumn, stage: RuleStage) -> CandidateColumns:
        """The rows that pass; `weights` are the combinations that each row stands for."""
        kept = np.ones(len(columns), dtype=np.bool_)
        for rule in AXIS_RULES:
            if rule.stage is not stage:
                continue
            refused = rule.refuses(columns, self._context) & kept
            if refused.any():
                self._counts[rule.name] = int(weights[refused].sum())
                kept &= ~refused
        return columns if kept.all() else columns.take(kept)

    def rejections(self) -> tuple[Rejection, ...]:
        """The tally, in table order."""
        return tuple(
            Rejection(rule=rule.name, count=self._counts[rule.name], sentence=rule.explain(self._context))
            for rule in AXIS_RULES
            if rule.name in self._counts
        )


def layout_grid(axes: AxisValues) -> CandidateColumns:
    """All (world, tensor, pipeline) with the data-parallel size that fills the world, 0 where none does.

    A default axis offers each world its own divisors only: unfolded world by world, hundreds of cluster sizes side by
    side take no more room than their divisors (all degrees with all degrees of all worlds would take gigabytes).
    """
    degrees = {axis: _ints(getattr(axes, axis)) for axis in ("tensor_parallel_size", "pipeline_parallel_size")}
    grids = []
    for world in axes.worlds:
        tensor, pipeline = (
            values if axis in axes.listed else values[world.world_size % values == 0]
            for axis, values in degrees.items()
        )
        pairs = np.repeat(tensor, len(pipeline)), np.tile(pipeline, len(tensor))
        grids.append((np.full(len(pairs[0]), world.nodes), np.full(len(pairs[0]), world.world_size), *pairs))
    nodes, world_size, tensor, pipeline = (np.concatenate(parts) for parts in zip(*grids, strict=True))
    split = tensor * pipeline
    return _columns(
        nodes=nodes,
        tensor_parallel_size=tensor,
        pipeline_parallel_size=pipeline,
        data_parallel_size=np.where(world_size % split == 0, world_size // split, 0),
    )


def with_micro_batches(layouts: CandidateColumns, axes: AxisValues, *, global_batch_size: int) -> CandidateColumns:
    """Each layout with each micro-batch size and the accumulation that fills the global batch, 0 where none does."""
    micro = _ints(axes.micro_batch_size)
    rows = layouts.take(np.repeat(np.arange(len(layouts), dtype=np.int64), len(micro)))
    micro_column = np.tile(micro, len(layouts))
    per_step = np.maximum(micro_column * rows.data_parallel_size, 1)
    accumulation = np.where(global_batch_size % per_step == 0, global_batch_size // per_step, 0)
    return _replaced(rows, micro_batch_size=micro_column, gradient_accumulation_steps=accumulation)


def modes_per_layout(columns: CandidateColumns, axes: AxisValues, *, num_layers: int) -> IntColumn:
    """How many (mode, checkpointing) each row unfolds to."""
    _table, lengths, which = _checkpointing_table(columns, axes, num_layers)
    return lengths[which] * len(mode_table(axes))


def with_modes(batches: CandidateColumns, axes: AxisValues, *, num_layers: int) -> CandidateColumns:
    """Each row with each (mode, checkpointing) of its number of stages."""
    modes = mode_table(axes)
    table, lengths, which = _checkpointing_table(batches, axes, num_layers)
    counts = modes_per_layout(batches, axes, num_layers=num_layers)
    row = np.repeat(np.arange(len(batches), dtype=np.int64), counts)
    starts = np.cumsum(counts) - counts
    position = np.arange(len(row), dtype=np.int64) - starts[row]
    kinds = lengths[which[row]]
    mode, kind = np.divmod(position, kinds)
    varying = {
        name: column for name in modes.__dataclass_fields__ if not _is_given(column := getattr(modes, name), name)
    }
    return _replaced(
        batches.take(row),
        checkpointed_layers=table[which[row], kind],
        **{name: values[mode] for name, values in varying.items()},
    )


def _is_given(column: IntColumn, name: str) -> bool:
    """Whether all modes have the value that rows start with, so that nothing has to be written for it."""
    start = _DEFAULT_ATTENTION if name == "attention" else 0
    return not (column != start).any()


def _checkpointing_table(
    columns: CandidateColumns, axes: AxisValues, num_layers: int
) -> tuple[IntColumn, IntColumn, IntColumn]:
    """Codes per number of stages (rows padded), how many of each row count, and which row each row of columns is."""
    stages, which = np.unique(columns.pipeline_parallel_size, return_inverse=True)
    codes = [checkpointing_codes(axes, num_layers=num_layers, pipeline_parallel_size=int(n)) for n in stages]
    table = np.zeros((max(len(codes), 1), max(map(len, codes), default=1)), dtype=np.int64)
    for index, row in enumerate(codes):  # one turn per number of stages, not per candidate
        table[index, : len(row)] = row
    return table, _ints(tuple(map(len, codes))), which


def named_columns(**values: int) -> CandidateColumns:
    """One row with the given values; the rest as in `layout_grid`."""
    return _columns(**{name: _ints((value,)) for name, value in values.items()})


def _ints(values: tuple[int, ...]) -> IntColumn:
    return np.array(values, dtype=np.int64)


def _columns(**given: IntColumn) -> CandidateColumns:
    """Columns with what is given; sizes not yet known are 1, codes 0."""
    length = len(next(iter(given.values())))
    ones, zeros = np.ones(length, dtype=np.int64), np.zeros(length, dtype=np.int64)
    filled: dict[str, Any] = {name: zeros if name in _CODES else ones for name in CandidateColumns.__dataclass_fields__}
    fixed = {"tensor_sequence_parallel": np.zeros(length, dtype=np.bool_), "attention": zeros + _DEFAULT_ATTENTION}
    return CandidateColumns(**{**filled, **fixed, **given})


def _replaced(columns: CandidateColumns, **given: IntColumn) -> CandidateColumns:
    fields = {name: getattr(columns, name) for name in CandidateColumns.__dataclass_fields__}
    return CandidateColumns(**{**fields, **given})
