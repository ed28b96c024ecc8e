"""Why a layout, or every layout, is refused, and what would make the job possible.

Owns the words. What would mend an impossible job is found by `mending`.
"""

from __future__ import annotations

import numpy as np

from planner.errors import NoFeasiblePlan
from planner.rules import AXIS_RULES, RuleContext, RuleStage
from planner.space.axes import AxisValues, axis_values, checkpointing_codes, rule_context
from planner.space.enumeration import (
    Rejection,
    Space,
    layout_grid,
    modes_per_layout,
    named_columns,
    with_micro_batches,
    with_modes,
)
from planner.space.mending import possible_mends
from planner.spec import ActivationCheckpointing, JobSpec, Precision
from planner.spec._record import record
from planner.spec.columns import (
    PRECISIONS,
    CandidateColumns,
    IntColumn,
    axis_codes,
    axis_value,
    checkpointing_code,
    checkpointing_from_code,
)

NEAREST_ROWS = 2_000  # rows that the search for the nearest miss keeps from stage to stage


@record
class NamedLayout:
    """A layout that a user names; it may be illegal. None: what follows from the rest, as in the space."""

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    micro_batch_size: int = 1
    zero_stage: int = 0
    precision: Precision = Precision.BF16
    activation_checkpointing: ActivationCheckpointing = ActivationCheckpointing()
    nodes: int | None = None
    data_parallel_size: int | None = None
    gradient_accumulation_steps: int | None = None


def refusals_of(job: JobSpec, values: NamedLayout) -> tuple[Rejection, ...]:
    """All rules that refuse one named layout, each with its sentence and the layout's own values; empty: it is legal.

    A value that the job does not list is refused by `not-searched`.
    """
    nodes = values.nodes if values.nodes is not None else job.cluster.nodes
    axes = axis_values(job)
    world = nodes * job.cluster.gpus_per_node
    split = values.tensor_parallel_size * values.pipeline_parallel_size
    data = values.data_parallel_size
    if data is None:
        data = world // split if split and world % split == 0 else 0
    per_step = values.micro_batch_size * data
    accumulation = values.gradient_accumulation_steps
    if accumulation is None:
        whole = per_step > 0 and job.training.global_batch_size % per_step == 0
        accumulation = job.training.global_batch_size // per_step if whole else 0
    columns = named_columns(
        nodes=nodes,
        data_parallel_size=data,
        tensor_parallel_size=values.tensor_parallel_size,
        pipeline_parallel_size=values.pipeline_parallel_size,
        micro_batch_size=values.micro_batch_size,
        gradient_accumulation_steps=accumulation,
        zero_stage=values.zero_stage,
        precision=PRECISIONS.index(values.precision),
        checkpointed_layers=checkpointing_code(values.activation_checkpointing),
    )
    context = rule_context(job, axes)
    ruled = _row_refusals(columns, context)
    return ruled or _not_searched(job, axes, values)


def _row_refusals(columns: CandidateColumns, context: RuleContext) -> tuple[Rejection, ...]:
    return tuple(
        Rejection(rule=rule.name, count=1, sentence=f"{rule.explain(context)}{_here(rule.axes, columns)}")
        for rule in AXIS_RULES
        if rule.refuses(columns, context)[0]
    )


def _here(axes: tuple[str, ...], columns: CandidateColumns) -> str:
    """The layout's own values of the axes that a rule is about."""
    at_one = ("sequence_parallel_size", "expert_parallel_size", "virtual_pipeline_size", "nodes")
    said = [f"{axis} {_value(axis, columns)}" for axis in axes if axis not in at_one]
    return f" (here {', '.join(said)})" if said else ""


def _value(axis: str, columns: CandidateColumns) -> str:
    value = axis_value(axis, int(axis_codes(columns, axis)[0]))
    follows = axis in ("data_parallel_size", "gradient_accumulation_steps")
    return "no whole number" if value == 0 and follows else str(value)


def _not_searched(job: JobSpec, axes: AxisValues, values: NamedLayout) -> tuple[Rejection, ...]:
    codes = checkpointing_codes(
        axes, num_layers=job.model.num_layers, pipeline_parallel_size=values.pipeline_parallel_size
    )
    searched: dict[str, tuple[object, tuple[object, ...]]] = {
        "tensor_parallel_size": (values.tensor_parallel_size, axes.tensor_parallel_size),
        "pipeline_parallel_size": (values.pipeline_parallel_size, axes.pipeline_parallel_size),
        "micro_batch_size": (values.micro_batch_size, axes.micro_batch_size),
        "zero_stage": (values.zero_stage, axes.zero_stage),
        "precision": (values.precision, axes.precision),
        "activation_checkpointing": (
            str(values.activation_checkpointing),
            tuple(str(checkpointing_from_code(code)) for code in codes),
        ),
    }
    return tuple(
        Rejection(
            rule="not-searched",
            count=1,
            sentence=f"{axis} {value} is not among the values searched: {', '.join(map(str, among))}; "
            f"list it under search.{axis}",
        )
        for axis, (value, among) in searched.items()
        if value not in among
    )


def explain_empty(space: Space, job: JobSpec) -> NoFeasiblePlan:
    """The error for a job without a legal candidate: what refused how many, the nearest miss, what would mend it."""
    gpus = f"{job.cluster.world_size} GPU" + ("s" if job.cluster.world_size > 1 else "")
    refused = sorted(space.rejections, key=lambda rejection: -rejection.count)
    tally = "; ".join(f"{item.rule} refused {item.count:,}: {item.sentence}" for item in refused)
    layout, breaches = nearest_miss(job)
    told = {item.rule for item in refused}
    near = "; ".join(item.rule if item.rule in told else f"{item.rule}: {item.sentence}" for item in breaches)
    mends = possible_mends(job)
    return NoFeasiblePlan(
        f"no layout of {job.model.name} on {gpus} is legal",
        why=f"all {space.num_combinations:,} combinations were refused. {tally}. "
        f"The nearest miss is {layout}, refused by {near}",
        fix="; or ".join(mends) if mends else f"change what refuses the nearest miss ({near})",
        tally=tuple((item.rule, item.count) for item in space.rejections),
    )


def nearest_miss(job: JobSpec) -> tuple[str, tuple[Rejection, ...]]:
    """The combination that the fewest rules refuse, in words, and those rules. Ties go to the first in grid order.

    Stage by stage only the `NEAREST_ROWS` least refused rows are unfolded further.
    """
    axes = axis_values(job)
    context = rule_context(job, axes)
    layouts = layout_grid(axes)
    layouts, counts = _least_refused(layouts, np.zeros(len(layouts), dtype=np.int64), context, RuleStage.LAYOUT)
    batches = with_micro_batches(layouts, axes, global_batch_size=job.training.global_batch_size)
    counts = np.repeat(counts, len(axes.micro_batch_size))
    batches, counts = _least_refused(batches, counts, context, RuleStage.BATCH)
    candidates = with_modes(batches, axes, num_layers=job.model.num_layers)
    counts = np.repeat(counts, modes_per_layout(batches, axes, num_layers=job.model.num_layers))
    candidates, counts = _least_refused(candidates, counts, context, RuleStage.MODE)
    row = candidates.take(np.array([0], dtype=np.int64))
    return _described(row), _row_refusals(row, context)


def _least_refused(
    columns: CandidateColumns, counts: IntColumn, context: RuleContext, stage: RuleStage
) -> tuple[CandidateColumns, IntColumn]:
    total = counts.copy()
    for rule in AXIS_RULES:
        if rule.stage is stage:
            total += rule.refuses(columns, context)
    order = np.argsort(total, kind="stable")[:NEAREST_ROWS]
    return columns.take(order), total[order]


def _described(row: CandidateColumns) -> str:
    words = [f"{row.nodes[0]} node" + ("s" if row.nodes[0] > 1 else "")]
    for axis, word in (
        ("tensor_parallel_size", "tensor"),
        ("pipeline_parallel_size", "pipeline"),
        ("data_parallel_size", "data"),
    ):
        words.append(f"{word} {_value(axis, row)}")
    return (
        " x ".join(words[1:])
        + f" on {words[0]}, micro-batch {row.micro_batch_size[0]}, ZeRO {row.zero_stage[0]}, "
        + f"{_value('precision', row)}, checkpointing {_value('activation_checkpointing', row)}"
    )
