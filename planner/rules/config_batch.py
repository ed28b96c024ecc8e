"""The batch triple of a configuration: does it close, and over which ranks does DeepSpeed count?

DeepSpeed 0.19.8, runtime/config.py, `_set_batch_related_parameters` and `_batch_assertion`: a missing member is found
by floor division, then train_batch_size = micro x accumulation x data-parallel world is asserted.
"""

from __future__ import annotations

from collections.abc import Iterable

from planner.rules.config_context import AUTO, Breach, ConfigView, Consumer, Severity
from planner.rules.rule import Rule

TRAIN = "train_batch_size"
MICRO = "train_micro_batch_size_per_gpu"
ACCUMULATION = "gradient_accumulation_steps"


def data_parallel_world(view: ConfigView) -> int:
    """The ranks that DeepSpeed multiplies the batch with; 0 when the world is unknown or not a multiple.

    AutoTP's tensor-parallel ranks count (they have no mpu that says otherwise); those of an mpu or a topology do not.
    """
    context = view.context
    split = context.tensor_parallel_size * context.pipeline_parallel_size * context.sequence_parallel_size
    autotp = int(view.number("tensor_parallel.autotp_size"))
    if autotp > 1 and context.tensor_parallel_size == autotp:
        split //= autotp
    return context.world_size // split if split > 0 and context.world_size % split == 0 else 0


def _whole(view: ConfigView, key: str) -> int:
    """The key's value where it is a whole number, 0 where it is missing or anything else."""
    value = view.get(key)
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e15 and value == int(value)
    return int(value) if good else 0


def _is_open(view: ConfigView, key: str) -> bool:
    """Whether somebody else fills the key in, or fails on it: `auto`, a string, a fraction."""
    return view.get(key) is not None and _whole(view, key) == 0


def _batch_missing(view: ConfigView) -> Iterable[Breach]:
    if view.get(TRAIN) is None and view.get(MICRO) is None:
        yield Breach(
            key=TRAIN,
            message=f"neither {TRAIN} nor {MICRO} is set: DeepSpeed refuses the file unless the script fills one in",
            fix=f"write {TRAIN}, {MICRO} and {ACCUMULATION}",
            severity=Severity.INFO if view.context.consumer is Consumer.HUGGINGFACE else None,
        )


def _identity(view: ConfigView) -> Iterable[Breach]:
    if any(_is_open(view, key) for key in (TRAIN, MICRO, ACCUMULATION)):
        return
    train, micro, accumulation = (_whole(view, key) for key in (TRAIN, MICRO, ACCUMULATION))
    world = data_parallel_world(view)
    if world == 0 or train == 0:
        return
    if micro and accumulation:
        if train != micro * accumulation * world:
            yield Breach(
                key=TRAIN,
                message=f"{MICRO} {micro} x {ACCUMULATION} {accumulation} x {world} data-parallel ranks is "
                f"{micro * accumulation * world}, not {TRAIN} {train}",
                fix=_mend(train, unit=micro * world, what=f"micro-batch {micro} on {world} ranks"),
            )
    elif train % (max(micro, 1) * max(accumulation, 1) * world):
        given = f"{MICRO} {micro} x " if micro else (f"{ACCUMULATION} {accumulation} x " if accumulation else "")
        unit = max(micro, 1) * max(accumulation, 1) * world
        yield Breach(
            key=TRAIN,
            message=f"{TRAIN} {train} is not a multiple of {given}{world} data-parallel ranks",
            fix=_mend(train, unit=unit, what=f"{given}{world} ranks"),
        )


def _mend(train: int, *, unit: int, what: str) -> str:
    if train % unit == 0:
        return f"write {ACCUMULATION}: {train // unit}"
    below, above = train // unit * unit, (train // unit + 1) * unit
    choices = " or ".join(str(value) for value in (below, above) if value)
    return f"no whole {ACCUMULATION} gives {train} with {what}: write {TRAIN} {choices}, or change the number of ranks"


def _world_indivisible(view: ConfigView) -> Iterable[Breach]:
    context = view.context
    if context.world_size and data_parallel_world(view) == 0:
        yield Breach(
            key=TRAIN,
            message=f"{context.world_size} ranks cannot be split into tensor {context.tensor_parallel_size} x pipeline "
            f"{context.pipeline_parallel_size} x sequence {context.sequence_parallel_size}",
            fix="choose sizes whose product divides the number of ranks",
        )


def _autotp_counts_ranks(view: ConfigView) -> Iterable[Breach]:
    autotp = int(view.number("tensor_parallel.autotp_size"))
    if autotp > 1 and view.get(TRAIN) not in (None, AUTO):
        yield Breach(
            key=TRAIN,
            message=f"under AutoTP {TRAIN} counts tensor-parallel ranks as well: the sequences of a step are "
            f"{TRAIN} / {autotp}",
            fix=f"write {MICRO} and {ACCUMULATION} only",
        )


def _sequence_parallel_alone(view: ConfigView) -> Iterable[Breach]:
    if view.number("sequence_parallel_size", 1) > 1 and not view.has("data_parallel_size"):
        yield Breach(
            key="sequence_parallel_size",
            message="sequence_parallel_size alone splits nothing: the engine keeps all ranks as data-parallel ranks",
            fix="write data_parallel_size too (DeepSpeed then forms a mesh), or pass an mpu",
        )


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
        summary="the key only changes the arithmetic of the batch",
        source="DeepSpeed 0.19.8, runtime/config.py and __init__.py (seen)",
        check=_sequence_parallel_alone,
    ),
)
