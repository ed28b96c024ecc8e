"""Many candidates at once: a column per field. Only what is tried or shown becomes a `Candidate` record."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from planner.spec._record import record
from planner.spec.candidate import BatchSplit, Candidate, ParallelLayout, partition_layers
from planner.spec.kinds import ActivationCheckpointing, Attention, OffloadDevice, Precision
from planner.spec.tuning import TUNING_VALUES, tuning_code, tuning_from_code
from planner.spec.tuning_columns import setting_codes, with_setting

IntColumn: TypeAlias = NDArray[np.int64]
FloatColumn: TypeAlias = NDArray[np.float64]
BoolColumn: TypeAlias = NDArray[np.bool_]

PRECISIONS: tuple[Precision, ...] = tuple(Precision)  # a precision column holds indexes into this
ATTENTIONS: tuple[Attention, ...] = tuple(Attention)
OFFLOAD_DEVICES: tuple[OffloadDevice, ...] = tuple(OffloadDevice)

FULL_CHECKPOINTING = -1  # in the `checkpointed_layers` column
SELECTIVE_CHECKPOINTING = -2


@record
class CandidateColumns:
    """Arrays of one length. `checkpointed_layers`: 0 none, k the first k layers of each stage, -1 full, -2 selective.

    `nodes` is the cluster size of each candidate (they may differ when several sizes are considered at once).
    `sequence_parallel_size`, `expert_parallel_size`, `virtual_pipeline_size` and `tensor_sequence_parallel` are priced
    by the cost model; the search holds them at 1 (and false) until the runtime can run them. `tuning`: all settings of
    `Tuning` as one number (`tuning_code`); 0 stands for the defaults.
    """

    nodes: IntColumn
    data_parallel_size: IntColumn
    tensor_parallel_size: IntColumn
    pipeline_parallel_size: IntColumn
    sequence_parallel_size: IntColumn
    expert_parallel_size: IntColumn
    virtual_pipeline_size: IntColumn
    tensor_sequence_parallel: BoolColumn
    micro_batch_size: IntColumn
    gradient_accumulation_steps: IntColumn
    zero_stage: IntColumn
    precision: IntColumn
    checkpointed_layers: IntColumn
    attention: IntColumn
    offload_optimizer: IntColumn
    offload_param: IntColumn
    tuning: IntColumn

    def __len__(self) -> int:
        return len(self.nodes)

    def take(self, rows: IntColumn | BoolColumn) -> CandidateColumns:
        """The rows named by an index array or kept by a mask, in that order."""
        return CandidateColumns(**{name: getattr(self, name)[rows] for name in self.__dataclass_fields__})


def checkpointing_code(checkpointing: ActivationCheckpointing) -> int:
    """The number that stands for this checkpointing in the `checkpointed_layers` column."""
    codes = {"none": 0, "full": FULL_CHECKPOINTING, "selective": SELECTIVE_CHECKPOINTING}
    return codes.get(checkpointing.kind.value, checkpointing.num_layers)


def checkpointing_from_code(code: int) -> ActivationCheckpointing:
    """The inverse of `checkpointing_code`."""
    words = {0: "none", FULL_CHECKPOINTING: "full", SELECTIVE_CHECKPOINTING: "selective"}
    return ActivationCheckpointing.parse(words.get(code, f"layers:{code}"))


# Columns that hold an index into a vocabulary.
_VOCABULARIES = {
    "precision": PRECISIONS,
    "attention": ATTENTIONS,
    "offload_optimizer": OFFLOAD_DEVICES,
    "offload_param": OFFLOAD_DEVICES,
}


def axis_codes(columns: CandidateColumns, axis: str) -> IntColumn:
    """The whole numbers that stand for an axis, called as in the job file, row by row."""
    if axis in TUNING_VALUES:
        return setting_codes(columns.tuning, axis)
    name = "checkpointed_layers" if axis == "activation_checkpointing" else axis
    return np.asarray(getattr(columns, name), dtype=np.int64)


def axis_value(axis: str, code: int) -> int | str:
    """What a number of `axis_codes` stands for, as the job file writes it."""
    if axis in TUNING_VALUES:
        value = TUNING_VALUES[axis][code]
        return value if isinstance(value, int) else str(value)
    if axis == "activation_checkpointing":
        return str(checkpointing_from_code(code))
    return str(_VOCABULARIES[axis][code]) if axis in _VOCABULARIES else code


def replace_setting(columns: CandidateColumns, name: str, value: Any) -> CandidateColumns:
    """The same rows with one setting of `Tuning` at this value."""
    fields = {field: getattr(columns, field) for field in CandidateColumns.__dataclass_fields__}
    return CandidateColumns(**{**fields, "tuning": with_setting(columns.tuning, name, value)})


def candidate_at(columns: CandidateColumns, row: int, *, num_layers: int) -> Candidate:
    """The record of one row. `num_layers` 0: a model without layers, hence without a stage partition."""
    pipeline = int(columns.pipeline_parallel_size[row])
    layout = ParallelLayout(
        data_parallel_size=int(columns.data_parallel_size[row]),
        tensor_parallel_size=int(columns.tensor_parallel_size[row]),
        pipeline_parallel_size=pipeline,
        stage_layers=partition_layers(num_layers, pipeline) if num_layers else (),
    )
    batch = BatchSplit(
        micro_batch_size=int(columns.micro_batch_size[row]),
        gradient_accumulation_steps=int(columns.gradient_accumulation_steps[row]),
        data_parallel_size=layout.data_parallel_size,
    )
    return Candidate(
        layout=layout,
        batch=batch,
        zero_stage=int(columns.zero_stage[row]),
        precision=PRECISIONS[columns.precision[row]],
        activation_checkpointing=checkpointing_from_code(int(columns.checkpointed_layers[row])),
        attention=ATTENTIONS[columns.attention[row]],
        offload_optimizer=OFFLOAD_DEVICES[columns.offload_optimizer[row]],
        offload_param=OFFLOAD_DEVICES[columns.offload_param[row]],
        tuning=tuning_from_code(int(columns.tuning[row])),
    )


def columns_of(candidates: tuple[Candidate, ...], *, gpus_per_node: int) -> CandidateColumns:
    """Columns of existing records, in order."""

    def ints(values: list[int]) -> IntColumn:
        return np.array(values, dtype=np.int64)

    ones = np.ones(len(candidates), dtype=np.int64)
    return CandidateColumns(
        nodes=ints([-(-c.layout.world_size // gpus_per_node) for c in candidates]),
        data_parallel_size=ints([c.layout.data_parallel_size for c in candidates]),
        tensor_parallel_size=ints([c.layout.tensor_parallel_size for c in candidates]),
        pipeline_parallel_size=ints([c.layout.pipeline_parallel_size for c in candidates]),
        sequence_parallel_size=ones,
        expert_parallel_size=ones,
        virtual_pipeline_size=ones,
        tensor_sequence_parallel=np.zeros(len(candidates), dtype=np.bool_),
        micro_batch_size=ints([c.batch.micro_batch_size for c in candidates]),
        gradient_accumulation_steps=ints([c.batch.gradient_accumulation_steps for c in candidates]),
        zero_stage=ints([c.zero_stage for c in candidates]),
        precision=ints([PRECISIONS.index(c.precision) for c in candidates]),
        checkpointed_layers=ints([checkpointing_code(c.activation_checkpointing) for c in candidates]),
        attention=ints([ATTENTIONS.index(c.attention) for c in candidates]),
        offload_optimizer=ints([OFFLOAD_DEVICES.index(c.offload_optimizer) for c in candidates]),
        offload_param=ints([OFFLOAD_DEVICES.index(c.offload_param) for c in candidates]),
        tuning=ints([tuning_code(c.tuning) for c in candidates]),
    )


def find_row(columns: CandidateColumns, candidate: Candidate) -> int | None:
    """The row that is this candidate; None where there is none."""
    wanted = columns_of((candidate,), gpus_per_node=1)
    same: BoolColumn = np.ones(len(columns), dtype=np.bool_)
    for name in columns.__dataclass_fields__:
        if name != "nodes":  # follows from the world size
            same &= getattr(columns, name) == getattr(wanted, name)[0]
    found = np.flatnonzero(same)
    return int(found[0]) if len(found) else None
