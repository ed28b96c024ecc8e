"""What may vary, before any rule has spoken: the values of each axis of one job.

An axis that the user lists has exactly those values. One left out has all that could be legal: divisors for sizes,
ZeRO 0 to 3, every kind of checkpointing. An axis that the model cannot take is left out, with the reason.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from planner.errors import InputError
from planner.rules import (
    RuleContext,
    checkpointing_refusal,
    pipeline_parallel_refusal,
    tensor_parallel_refusal,
)
from planner.spec import (
    ActivationCheckpointing,
    Attention,
    CheckpointingKind,
    JobSpec,
    Objective,
    OffloadDevice,
    Precision,
    ScriptKind,
)
from planner.spec._record import record
from planner.spec.columns import FULL_CHECKPOINTING, SELECTIVE_CHECKPOINTING, checkpointing_code
from planner.spec.tuning import TUNING_VALUES

# Of the default axis: more sequences per rank and forward pass than this fill no GPU better, and can still be listed.
MICRO_BATCH_LIMIT = 1024

# `layers:k` on the default axis: these shares of a stage's layers. Four steps between none and full halve the memory
# error of choosing between the two twice; more would multiply the space without a use in a search of tens of trials.
CHECKPOINTED_SHARES = (0.25, 0.5, 0.75)

LARGEST_SIZE = 10**8  # of a batch, a world or a listed size: far beyond any use, far below 64-bit overflow

# Node counts tried when fewer GPUs may be used: all of a small cluster, then 2^k and 3 x 2^k.
ALL_NODE_COUNTS_UP_TO = 16


_GRADIENT_CHECKPOINTING = re.compile(r"--gradient[_-]checkpointing\b|\{gradient_checkpointing\}")


@record
class LeftOutAxis:
    """An axis that is not searched, and why."""

    axis: str
    reason: str


@record
class World:
    """How many GPUs, on how many nodes, a combination uses in all."""

    nodes: int
    world_size: int


@record
class AxisValues:
    """The values of each axis, sorted.

    Two default axes depend on others: a degree that is not in `listed` is paired only with the worlds it divides, and
    `checkpointing` None depends on the layers per stage (see `checkpointing_codes`). `settings`: of `Tuning`, those
    that the user listed, with their values; the others keep their defaults.
    """

    worlds: tuple[World, ...]
    tensor_parallel_size: tuple[int, ...]
    pipeline_parallel_size: tuple[int, ...]
    micro_batch_size: tuple[int, ...]
    zero_stage: tuple[int, ...]
    precision: tuple[Precision, ...]
    checkpointing: tuple[ActivationCheckpointing, ...] | None
    left_out: tuple[LeftOutAxis, ...] = ()
    listed: frozenset[str] = frozenset()  # axes whose values the user named
    attention: tuple[Attention, ...] = (Attention.SDPA,)
    offload_optimizer: tuple[OffloadDevice, ...] = (OffloadDevice.NONE,)
    offload_param: tuple[OffloadDevice, ...] = (OffloadDevice.NONE,)
    settings: tuple[tuple[str, tuple[Any, ...]], ...] = ()


def axis_values(job: JobSpec, *, nodes: tuple[int, ...] | None = None) -> AxisValues:
    """The axes of a job. `nodes`: cluster sizes to consider instead of those the job names or its objective asks for.

    Raises InputError for listed values that mean nothing (sizes below 1, ZeRO stages beyond 0 to 3).
    """
    _require_meaning(job)
    ranges = job.ranges
    worlds = _worlds(job, nodes)
    left_out = left_out_axes(job)
    off = {axis.axis for axis in left_out}
    degrees = tuple(sorted({d for world in worlds for d in divisors(world.world_size)}))
    return AxisValues(
        worlds=worlds,
        tensor_parallel_size=_listed(ranges.tensor_parallel_size, (1,) if "tensor_parallel_size" in off else degrees),
        pipeline_parallel_size=_listed(
            ranges.pipeline_parallel_size, (1,) if "pipeline_parallel_size" in off else degrees
        ),
        micro_batch_size=_listed(
            ranges.micro_batch_size, divisors(job.training.global_batch_size, limit=MICRO_BATCH_LIMIT)
        ),
        zero_stage=_listed(ranges.zero_stage, (0, 1, 2, 3)),
        precision=tuple(dict.fromkeys(ranges.precision)),
        checkpointing=_checkpointing(job, off),
        left_out=left_out,
        listed=_listed_axes(job),
        attention=ranges.attention or (Attention.SDPA,),
        offload_optimizer=ranges.offload_optimizer or (OffloadDevice.NONE,),
        offload_param=ranges.offload_param or (OffloadDevice.NONE,),
        settings=tuple((name, values) for name in TUNING_VALUES if (values := getattr(ranges, name)) is not None),
    )


def divisors(number: int, *, limit: int | None = None) -> tuple[int, ...]:
    """The divisors of a positive number in ascending order, up to `limit`. O(limit), or O(sqrt(number)) without."""
    bound = limit if limit is not None else int(number**0.5)
    tried = np.arange(1, min(bound, number) + 1, dtype=np.int64)
    small = [int(value) for value in tried[number % tried == 0]]
    if limit is not None:
        return tuple(small)
    return tuple(sorted({*small, *(number // value for value in small)}))


def checkpointing_codes(axes: AxisValues, *, num_layers: int, pipeline_parallel_size: int) -> tuple[int, ...]:
    """Values of the `checkpointed_layers` column for one number of stages.

    The default axis: none, `CHECKPOINTED_SHARES` of the smallest stage's layers, selective, full; without repeats.
    """
    if axes.checkpointing is not None:
        return tuple(checkpointing_code(kind) for kind in axes.checkpointing)
    layers = num_layers // pipeline_parallel_size
    partly = sorted({round(share * layers) for share in CHECKPOINTED_SHARES} - {0, layers})
    return (0, *partly, SELECTIVE_CHECKPOINTING, FULL_CHECKPOINTING)


def rule_context(job: JobSpec, axes: AxisValues | None = None) -> RuleContext:
    """What the rules judge this job's candidates against."""
    worlds = axes.worlds if axes is not None else ()
    return RuleContext(
        model=job.model,
        training=job.training,
        cluster=job.cluster,
        world_sizes=tuple(sorted({world.world_size for world in worlds})),
        listed_axes=_listed_axes(job),
    )


def _listed_axes(job: JobSpec) -> frozenset[str]:
    ranges = job.ranges
    return frozenset(axis for axis in ranges.__dataclass_fields__ if getattr(ranges, axis) is not None)


def left_out_axes(job: JobSpec) -> tuple[LeftOutAxis, ...]:
    """Axes that this model, or the user's own script, cannot take; a listed axis stays, and its rule answers."""
    context = rule_context(job)
    reasons = {
        "tensor_parallel_size": tensor_parallel_refusal(context) or _unknown_to_script(job, "tensor_parallel_size"),
        "pipeline_parallel_size": pipeline_parallel_refusal(context)
        or _unknown_to_script(job, "pipeline_parallel_size"),
        "activation_checkpointing": checkpointing_refusal(context)
        or _unknown_to_script(job, "activation_checkpointing"),
    }
    return tuple(
        LeftOutAxis(axis=axis, reason=reason)
        for axis, reason in reasons.items()
        if reason and axis not in context.listed_axes
    )


def _unknown_to_script(job: JobSpec, axis: str) -> str:
    """Why an axis cannot be searched with the user's own script; "" when its command takes it, or there is none."""
    command = job.launch.command
    if not command or f"{{{axis}}}" in command:
        return ""
    hint = f"pass {{{axis}}} on in launch.command if the script can do it"
    if axis == "activation_checkpointing" and job.launch.script_kind is ScriptKind.HUGGINGFACE:
        if _GRADIENT_CHECKPOINTING.search(command):
            return ""
        hint = "write --gradient_checkpointing on the Trainer's command line to have it searched"
    return f"a DeepSpeed config cannot tell the script to do this; {hint}"


def _follows_gradient_checkpointing(job: JobSpec) -> bool:
    return job.launch.script_kind is ScriptKind.HUGGINGFACE and "{activation_checkpointing}" not in job.launch.command


def _listed(values: tuple[int, ...] | None, otherwise: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(set(values))) if values is not None else otherwise


def _checkpointing(job: JobSpec, off: set[str]) -> tuple[ActivationCheckpointing, ...] | None:
    if job.ranges.activation_checkpointing is not None:
        return tuple(dict.fromkeys(job.ranges.activation_checkpointing))
    if _follows_gradient_checkpointing(job) and "activation_checkpointing" not in off:
        # The Trainer knows two kinds: all layers, or none.
        kinds = (CheckpointingKind.NONE, CheckpointingKind.FULL)
        return tuple(ActivationCheckpointing(kind=kind) for kind in kinds)
    return (ActivationCheckpointing(kind=CheckpointingKind.NONE),) if "activation_checkpointing" in off else None


def _worlds(job: JobSpec, nodes: tuple[int, ...] | None) -> tuple[World, ...]:
    cluster = job.cluster
    if nodes is None and job.node_counts:
        nodes = job.node_counts
    if nodes is None and job.objective is Objective.THROUGHPUT:
        nodes = (cluster.nodes,)
    counts = _smaller_clusters(cluster.nodes) if nodes is None else tuple(sorted(set(nodes)))
    whole = tuple(World(nodes=count, world_size=count * cluster.gpus_per_node) for count in counts)
    if nodes is not None:
        return whole
    # Part of one node, where fewer GPUs may be used: sizes that leave no rank alone on a node's links.
    parts = divisors(cluster.gpus_per_node)[:-1]
    return (*(World(nodes=1, world_size=part) for part in parts), *whole)


def _smaller_clusters(nodes: int) -> tuple[int, ...]:
    counts = set(range(1, min(nodes, ALL_NODE_COUNTS_UP_TO) + 1)) | {nodes}
    power = ALL_NODE_COUNTS_UP_TO
    while power < nodes:
        counts |= {count for count in (power, power * 3 // 2) if count < nodes}
        power *= 2
    return tuple(sorted(counts))


def _require_meaning(job: JobSpec) -> None:
    ranges = job.ranges
    if job.training.global_batch_size > LARGEST_SIZE or job.cluster.world_size > LARGEST_SIZE:
        raise InputError(
            f"a global batch of {job.training.global_batch_size} sequences on {job.cluster.world_size} GPUs",
            why=f"sizes beyond {LARGEST_SIZE:,} are taken for a slip",
            fix="correct global_batch_size, nodes or gpus_per_node",
        )
    for axis in ("tensor_parallel_size", "pipeline_parallel_size", "micro_batch_size"):
        for value in getattr(ranges, axis) or ():
            if not 1 <= value <= LARGEST_SIZE:
                raise InputError(
                    f"search.{axis} lists {value}",
                    why=f"sizes are from 1 to {LARGEST_SIZE:,}",
                    fix=f"remove {value} from search.{axis}",
                )
    for stage in ranges.zero_stage or ():
        if not 0 <= stage <= 3:
            raise InputError(
                f"search.zero_stage lists {stage}",
                why="ZeRO has stages 0 to 3",
                fix=f"remove {stage} from search.zero_stage",
            )
    listed = (getattr(ranges, axis) for axis in ranges.__dataclass_fields__)
    if any(values is not None and not values for values in listed):
        raise InputError(
            "an axis under search lists no value",
            why="an empty list leaves nothing to search",
            fix="leave the axis out for all that is legal, or list values",
        )
