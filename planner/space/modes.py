"""The ways to run one layout and batch split: ZeRO stage, precision, attention, offload and the settings of `Tuning`.

Owns their product, each way once: a setting that has no effect beside the others (a bucket without ZeRO, say) is taken
at its default there, so that one way to run is not two candidates. Checkpointing is not among them, because its values
depend on the layers per stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import numpy as np

from planner.errors import InputError
from planner.space.axes import AxisValues
from planner.spec import AccumulationType, OffloadDevice, OptimizerKernel, Overlap, Precision, Tuning
from planner.spec._record import record
from planner.spec.columns import ATTENTIONS, OFFLOAD_DEVICES, PRECISIONS, IntColumn
from planner.spec.tuning import tuning_code

MAX_MODES = 4096  # of one layout: each of 10^5 layouts has them all

_OF_ZERO = ("overlap_comm", "reduce_bucket_size", "allgather_bucket_size")
_OF_STAGE_3 = (
    "zero_hpz_partition_size",
    "stage3_prefetch_bucket_size",
    "stage3_max_live_parameters",
    "stage3_param_persistence_threshold",
)


@record
class ModeTable:
    """A column per axis, a row per mode, coded as in `CandidateColumns`."""

    zero_stage: IntColumn
    precision: IntColumn
    attention: IntColumn
    offload_optimizer: IntColumn
    offload_param: IntColumn
    tuning: IntColumn

    def __len__(self) -> int:
        return len(self.zero_stage)


def mode_table(axes: AxisValues) -> ModeTable:
    """All modes of the axes, stage by stage. Raises InputError for more than `MAX_MODES`."""
    rows = list(dict.fromkeys(_modes(axes)))
    columns = np.array(rows, dtype=np.int64).reshape(len(rows), 6).T
    return ModeTable(**dict(zip(ModeTable.__dataclass_fields__, columns)))


def _modes(axes: AxisValues) -> Iterator[tuple[int, ...]]:
    names = [name for name, _ in axes.settings]
    held = [values for _, values in axes.settings]
    own = (axes.zero_stage, axes.precision, axes.attention, axes.offload_optimizer, axes.offload_param)
    if (number := prod(map(len, (*own, *held)))) > MAX_MODES:
        raise InputError(
            f"the axes listed under search make {number:,} ways to run each layout",
            why=f"at most {MAX_MODES:,} are looked at; their number is the product of the values of each axis",
            fix="list fewer values, or leave out the axes whose best value is plain",
        )
    for stage, precision, attention, optimizer, param in product(*own):
        for values in product(*held):
            asked = Tuning(**dict(zip(names, values)))
            tuning = effective(asked, zero_stage=stage, precision=precision, offload_optimizer=optimizer)
            codes = ATTENTIONS.index(attention), OFFLOAD_DEVICES.index(optimizer), OFFLOAD_DEVICES.index(param)
            yield stage, PRECISIONS.index(precision), *codes, tuning_code(tuning)


def effective(
    tuning: Tuning, *, zero_stage: int, precision: Precision, offload_optimizer: OffloadDevice = OffloadDevice.NONE
) -> Tuning:
    """The same with every setting that has no effect here at its default."""
    idle: dict[str, Any] = {}
    default = Tuning()
    if zero_stage == 0:
        idle |= {name: getattr(default, name) for name in _OF_ZERO}
    if zero_stage < 3:
        idle |= {name: getattr(default, name) for name in _OF_STAGE_3}
    by_stage = Overlap.ON if zero_stage == 3 else Overlap.OFF
    if tuning.overlap_comm is by_stage:
        idle["overlap_comm"] = Overlap.BY_STAGE
    if tuning.grad_accum_dtype.value == precision.value:
        idle["grad_accum_dtype"] = AccumulationType.SAME
    if offload_optimizer is not OffloadDevice.NONE:
        idle["optimizer_kernel"] = OptimizerKernel.TORCH
    return replace(tuning, **idle)
