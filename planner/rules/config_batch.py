"""The batch triple of a configuration: does it close, and over which ranks does DeepSpeed count?

DeepSpeed 0.19.8, runtime/config.py, `_set_batch_related_parameters` and `_batch_assertion`: a missing member is found
by floor division, then train_batch_size = micro x accumulation x data-parallel world is asserted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from planner.rules.config_context import AUTO, Breach, ConfigView, Severity
from planner.rules.known_keys import parse_release
from planner.rules.patches import drop, put
from planner.rules.rule import Rule
from planner.spec._record import record

TRAIN = "train_batch_size"
MICRO = "train_micro_batch_size_per_gpu"
ACCUMULATION = "gradient_accumulation_steps"
TRIPLE = (TRAIN, MICRO, ACCUMULATION)

_LARGE_MICRO_BATCH = 64  # a micro-batch that nobody wrote and that is larger than this is mostly an accident
_WIDEST_SEARCH = 64  # ranks more or fewer that are proposed


@record
class Batch:
    """How DeepSpeed will split the batch; every member as it will run, whether written or derived."""

    train_batch_size: int
    micro_batch_size: int
    gradient_accumulation_steps: int
    data_parallel_size: int


def solve_batch(view: ConfigView) -> Batch | None:
    """The split that DeepSpeed derives; None when the world or a member is unknown, or when it does not close."""
    world = data_parallel_world(view)
    train, micro, accumulation = (_whole(view, key) for key in TRIPLE)
    if world == 0 or any(_is_open(view, key) for key in TRIPLE) or not (train or micro) or is_elastic(view):
        return None
    if not micro:
        micro = train // world // max(accumulation, 1)
    accumulation = accumulation or (train // micro // world if train and micro else 1)
    train = train or micro * accumulation * world
    closes = micro > 0 and accumulation > 0 and train == micro * accumulation * world
    if not closes:
        return None
    return Batch(
        train_batch_size=train,
        micro_batch_size=micro,
        gradient_accumulation_steps=accumulation,
        data_parallel_size=world,
    )


def data_parallel_world(view: ConfigView) -> int:
    """The ranks that DeepSpeed multiplies the batch with; 0 when the world is unknown or not a multiple.

    AutoTP's tensor-parallel ranks count (they have no mpu that says otherwise); those of an mpu or a topology do not.
    """
    context = view.context
    sequence = context.sequence_parallel_size
    if sequence == 1:
        sequence = max(int(view.number("sequence_parallel_size", 1)), 1)
    split = context.tensor_parallel_size * context.pipeline_parallel_size * sequence
    autotp = int(view.number("tensor_parallel.autotp_size"))
    if autotp > 1 and context.tensor_parallel_size == autotp:
        split //= autotp
    return context.world_size // split if split > 0 and context.world_size % split == 0 else 0


def is_elastic(view: ConfigView) -> bool:
    """Whether elastic training, where the release still has it, computes the batch itself."""
    has_it = parse_release(view.context.deepspeed_version) < (0, 19, 8)
    return has_it and view.flag("elasticity.enabled")


def _whole(view: ConfigView, key: str) -> int:
    """The key's value where it is a whole number, 0 where it is missing or anything else."""
    value = view.get(key)
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e15 and value == int(value)
    return int(value) if good else 0


def _is_open(view: ConfigView, key: str) -> bool:
    """Whether somebody else fills the key in, or fails on it: `auto`, a string, a fraction."""
    return view.get(key) is not None and _whole(view, key) == 0


def _batch_missing(view: ConfigView) -> Iterable[Breach]:
    if view.get(TRAIN) is not None or view.get(MICRO) is not None or is_elastic(view):
        return
    alone = view.get(ACCUMULATION) is not None
    read_as_is = view.context.consumer_stated or alone
    yield Breach(
        key=TRAIN,
        message=f"neither {TRAIN} nor {MICRO} is set"
        + (f", and {ACCUMULATION} alone is not enough" if alone else "")
        + ": DeepSpeed refuses the file unless the script fills one in",
        fix=f"write {TRAIN}, {MICRO} and {ACCUMULATION}" + (' (or "auto" for each)' if view.resolves_auto else ""),
        severity=None if read_as_is and not view.resolves_auto else Severity.NOTE,
    )


def _identity(view: ConfigView) -> Iterable[Breach]:
    train, micro, accumulation = (_whole(view, key) for key in TRIPLE)
    if any(_is_open(view, key) for key in TRIPLE) or not train or is_elastic(view):
        return
    world = data_parallel_world(view)
    unit = max(micro, 1) * max(accumulation, 1) * max(world, 1)
    both = bool(micro and accumulation)
    if both and world and train != unit:
        yield Breach(
            key=TRAIN,
            message=f"{MICRO} {micro} x {ACCUMULATION} {accumulation} x {world} data-parallel ranks is {unit}, "
            f"not {TRAIN} {train}",
            fix=_mend(train, micro=micro, world=world) + _let_trainer_fill(view),
            patch=put(ACCUMULATION, train // (micro * world)) if train % (micro * world) == 0 else None,
        )
    elif train % unit:
        given = "".join(f"{key} {value} x " for key, value in ((MICRO, micro), (ACCUMULATION, accumulation)) if value)
        ranks = f"{world} data-parallel ranks" if world else "any number of ranks"
        yield Breach(
            key=TRAIN,
            message=f"{TRAIN} {train} is not a multiple of {given}{ranks}",
            fix=(_mend(train, micro=micro, world=world) if world else _nearest(train, unit)) + _let_trainer_fill(view),
        )


def _let_trainer_fill(view: ConfigView) -> str:
    return "; or write 'auto' for all three: the Trainer then fills them in" if view.resolves_auto else ""


def _mend(train: int, *, micro: int, world: int) -> str:
    """What would close the batch: another accumulation, else other batches, else other numbers of ranks."""
    unit = max(micro, 1) * world
    if micro and train % unit == 0:
        return f"write {ACCUMULATION}: {train // unit}"
    what = f"micro-batch {micro} on {world} ranks" if micro else f"{world} ranks"
    other = _other_world(train, micro=max(micro, 1), world=world)
    closes = f" with accumulation {train // (micro * other)}" if micro and other else ""
    run = f", or run on {other} data-parallel ranks{closes}" if other else ", or change the number of ranks"
    return f"no whole {ACCUMULATION} gives {train} with {what}: {_nearest(train, unit)}{run}"


def _nearest(train: int, unit: int) -> str:
    below, above = train // unit * unit, (train // unit + 1) * unit
    return f"write {TRAIN} " + " or ".join(str(value) for value in (below, above) if value)


def _other_world(train: int, *, micro: int, world: int) -> int:
    """The nearest number of ranks on which the batch closes, the larger of two; 0 none near."""
    near = sorted(range(max(1, world - _WIDEST_SEARCH), world + _WIDEST_SEARCH + 1), key=lambda n: (abs(n - world), -n))
    return next((count for count in near if train % (micro * count) == 0), 0)


def _large_micro_batch(view: ConfigView) -> Iterable[Breach]:
    batch = solve_batch(view)
    if batch is not None and view.get(MICRO) is None and batch.micro_batch_size > _LARGE_MICRO_BATCH:
        yield Breach(
            key=MICRO,
            message=f"{MICRO} is not written and becomes {batch.micro_batch_size} on {batch.data_parallel_size} "
            "data-parallel ranks",
            fix=f"write {MICRO}, and let {ACCUMULATION} follow",
        )


def _world_indivisible(view: ConfigView) -> Iterable[Breach]:
    context = view.context
    if context.world_size and data_parallel_world(view) == 0:
        sequence = max(context.sequence_parallel_size, int(view.number("sequence_parallel_size", 1)))
        yield Breach(
            key=TRAIN if sequence == context.sequence_parallel_size else "sequence_parallel_size",
            message=f"{context.world_size} ranks cannot be split into tensor {context.tensor_parallel_size} x pipeline "
            f"{context.pipeline_parallel_size} x sequence {sequence}",
            fix="choose sizes whose product divides the number of ranks",
        )
    autotp = int(view.number("tensor_parallel.autotp_size"))
    if context.world_size and autotp > 1 and context.world_size % autotp:
        yield Breach(
            key="tensor_parallel.autotp_size",
            message=f"{context.world_size} ranks are not a multiple of autotp_size {autotp}",
            fix="write a tensor-parallel size that divides the number of ranks",
        )


def _autotp_counts_ranks(view: ConfigView) -> Iterable[Breach]:
    autotp = int(view.number("tensor_parallel.autotp_size"))
    if autotp > 1 and view.get(TRAIN) not in (None, AUTO):
        enough = view.get(MICRO) is not None and view.get(ACCUMULATION) is not None
        yield Breach(
            key=TRAIN,
            message=f"under AutoTP {TRAIN} counts tensor-parallel ranks as well: the sequences of a step are "
            f"{TRAIN} / {autotp}",
            fix=f"write {MICRO} and {ACCUMULATION} only",
            patch=drop(TRAIN) if enough else None,
        )


def _sequence_parallel_alone(view: ConfigView) -> Iterable[Breach]:
    size = view.number("sequence_parallel_size", 1)
    if size > 1 and not view.has("data_parallel_size") and view.context.sequence_parallel_size == 1:
        yield Breach(
            key="sequence_parallel_size",
            message="sequence_parallel_size alone splits nothing: the engine keeps all ranks as data-parallel ranks",
            fix="write data_parallel_size too (DeepSpeed then forms a mesh), or pass an mpu",
        )
    ranks = size * view.number("data_parallel_size")
    if size > 1 and ranks and view.context.world_size and ranks != view.context.world_size:
        yield Breach(
            key="data_parallel_size",
            message=f"data_parallel_size x sequence_parallel_size is {ranks:g}, not {view.context.world_size} ranks",
            fix=f"write data_parallel_size: {max(1, view.context.world_size // int(size))}",
            severity=Severity.ERROR,
        )


def _elastic_batch(view: ConfigView) -> Iterable[Breach]:
    if not is_elastic(view):
        return
    written = [key for key in TRIPLE if view.has(key)]
    ignores = view.flag("elasticity.ignore_non_elastic_batch_info")
    if written:
        yield Breach(
            key=written[0],
            message=f"elastic training computes the batch itself: {' and '.join(written)} "
            + ("will be overwritten" if ignores else "make DeepSpeed refuse the file"),
            fix="remove them, or elasticity (which DeepSpeed 0.19.8 removed)",
            severity=Severity.WARNING if ignores else None,
            patch=_without(written),
        )
    missing = [key for key in ("max_train_batch_size", "micro_batch_sizes") if not view.has(f"elasticity.{key}")]
    if missing:
        yield Breach(
            key=f"elasticity.{missing[0]}",
            message=f"elasticity without {' and '.join(missing)}",
            fix=f"write {' and '.join(missing)}",
        )
    yield from _elastic_world(view)


def _elastic_world(view: ConfigView) -> Iterable[Breach]:
    context = view.context
    version = view.get("elasticity.version", 0.2)
    if context.pipeline_parallel_size > 1 and version != 0.2:
        yield Breach(
            key="elasticity.version",
            message=f"elasticity {version} with {context.pipeline_parallel_size} pipeline stages",
            fix="write version 0.2",
        )
    lowest, highest = (view.number(f"elasticity.{key}") for key in ("min_gpus", "max_gpus"))
    outside = (lowest and context.world_size < lowest) or (highest and context.world_size > highest)
    if context.world_size and outside:
        yield Breach(
            key="elasticity.min_gpus" if lowest and context.world_size < lowest else "elasticity.max_gpus",
            message=f"{context.world_size} ranks are outside of elasticity's range {lowest:g} to {highest:g}",
            fix="run on a number of GPUs within it",
        )
    per_node = view.number("elasticity.num_gpus_per_node", 1)
    split = view.number("elasticity.model_parallel_size", 1)
    if split > 1 and per_node % split:
        yield Breach(
            key="elasticity.model_parallel_size",
            message=f"num_gpus_per_node {per_node:g} is not a multiple of model_parallel_size {split:g}",
            fix="write num_gpus_per_node, a multiple of model_parallel_size",
        )


def _without(keys: Iterable[str]) -> dict[str, Any]:
    return dict.fromkeys(keys)


BATCH_CONFIG_RULES: tuple[Rule, ...] = (
    Rule(
        name="batch-missing",
        severity=Severity.WARNING,
        summary="DeepSpeed needs train_batch_size or train_micro_batch_size_per_gpu; accumulation alone is not enough",
        source="DeepSpeed 0.19.8, runtime/config.py: _set_batch_related_parameters",
        check=_batch_missing,
    ),
    Rule(
        name="batch-triple",
        severity=Severity.ERROR,
        summary="train_batch_size must equal micro-batch x accumulation x data-parallel ranks; a missing one is found "
        "by floor division and then asserted",
        source="DeepSpeed 0.19.8, runtime/config.py: _batch_assertion (seen)",
        check=_identity,
    ),
    Rule(
        name="batch-micro-derived",
        severity=Severity.INFO,
        summary="a micro-batch that is left out is what floor division leaves of the global batch, however large",
        source="DeepSpeed 0.19.8, runtime/config.py: _set_batch_related_parameters",
        check=_large_micro_batch,
    ),
    Rule(
        name="world-indivisible",
        severity=Severity.ERROR,
        summary="the parallel sizes must divide the number of ranks",
        source="DeepSpeed 0.19.8, runtime/pipe/module.py and utils/groups.py (seen: a bare AssertionError)",
        check=_world_indivisible,
    ),
    Rule(
        name="autotp-batch-counts-ranks",
        severity=Severity.WARNING,
        summary="without an mpu DeepSpeed multiplies the batch with the whole world",
        source="DeepSpeed 0.19.8, runtime/config.py (seen: tensor 2 on 4 ranks); DeepSpeed issue 7298",
        check=_autotp_counts_ranks,
    ),
    Rule(
        name="sequence-parallel-alone",
        severity=Severity.WARNING,
        summary="the key only changes the arithmetic of the batch unless data_parallel_size stands beside it",
        source="DeepSpeed 0.19.8, runtime/config.py and __init__.py (seen)",
        check=_sequence_parallel_alone,
    ),
    Rule(
        name="elastic-batch",
        severity=Severity.ERROR,
        summary="elastic training, which DeepSpeed had until 0.19.7, chooses batch and micro-batch from its own limits",
        source="DeepSpeed 0.19.6, runtime/config.py: DeepSpeedConfig.__init__; elasticity/elasticity.py",
        check=_elastic_batch,
    ),
)
