"""The candidates as tuples of axis values: what Optuna records as a trial's parameters.

Only axes that differ between candidates are parameters, with the words of the job file as values, so that Optuna's
dashboards read well. Data-parallel size and accumulation follow from the others and are left out wherever they do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from planner.spec._record import record
from planner.spec.columns import (
    ATTENTIONS,
    OFFLOAD_DEVICES,
    PRECISIONS,
    BoolColumn,
    CandidateColumns,
    FloatColumn,
    IntColumn,
    checkpointing_from_code,
)

AxisValue: TypeAlias = int | str | bool

# Column name, parameter name, how a number of the column is written. In the order in which a person would choose.
_AXES: tuple[tuple[str, str, Callable[[int], AxisValue]], ...] = (
    ("nodes", "nodes", int),
    ("pipeline_parallel_size", "pipeline_parallel_size", int),
    ("tensor_parallel_size", "tensor_parallel_size", int),
    ("sequence_parallel_size", "sequence_parallel_size", int),
    ("expert_parallel_size", "expert_parallel_size", int),
    ("virtual_pipeline_size", "virtual_pipeline_size", int),
    ("tensor_sequence_parallel", "tensor_sequence_parallel", bool),
    ("zero_stage", "zero_stage", int),
    ("micro_batch_size", "micro_batch_size", int),
    ("checkpointed_layers", "activation_checkpointing", lambda code: str(checkpointing_from_code(code))),
    ("precision", "precision", lambda code: PRECISIONS[code].value),
    ("attention", "attention", lambda code: ATTENTIONS[code].value),
    ("offload_optimizer", "offload_optimizer", lambda code: OFFLOAD_DEVICES[code].value),
    ("offload_param", "offload_param", lambda code: OFFLOAD_DEVICES[code].value),
)
_DERIVED: tuple[tuple[str, str, Callable[[int], AxisValue]], ...] = (
    ("data_parallel_size", "data_parallel_size", int),
    ("gradient_accumulation_steps", "gradient_accumulation_steps", int),
)
_NUMERIC = frozenset(
    {
        "nodes", "pipeline_parallel_size", "tensor_parallel_size", "sequence_parallel_size", "expert_parallel_size",
        "virtual_pipeline_size", "micro_batch_size", "data_parallel_size", "gradient_accumulation_steps",
    }
)  # fmt: skip


@record
class Axis:
    """One parameter: its values in ascending order of the column, and which of them each candidate has."""

    name: str
    values: tuple[AxisValue, ...]
    codes: IntColumn  # index into `values`, one per candidate
    is_numeric: bool


@record
class Axes:
    """The axes that differ; a tuple of their values names exactly one candidate."""

    axes: tuple[Axis, ...]
    num_candidates: int

    def values_at(self, row: int) -> dict[str, AxisValue]:
        """The parameters of one candidate."""
        return {axis.name: axis.values[axis.codes[row]] for axis in self.axes}

    def row_of(self, values: Mapping[str, object]) -> int | None:
        """The candidate with these parameters; None when there is none or an axis is missing."""
        same: BoolColumn = np.ones(self.num_candidates, dtype=np.bool_)
        for axis in self.axes:
            value = values.get(axis.name)
            if value not in axis.values:
                return None
            same &= axis.codes == axis.values.index(value)
        rows = np.flatnonzero(same)
        return int(rows[0]) if len(rows) else None

    def distances_to(self, values: Mapping[str, AxisValue]) -> FloatColumn:
        """How far each candidate is from a tuple that need not be legal: per axis 0 to 1, by rank for numbers."""
        total: FloatColumn = np.zeros(self.num_candidates)
        for axis in self.axes:
            index = axis.values.index(values[axis.name])
            if axis.is_numeric:
                total = total + np.abs(axis.codes - index) / max(len(axis.values) - 1, 1)
            else:
                total = total + (axis.codes != index)
        return total


def axes_of(columns: CandidateColumns, *, among: CandidateColumns | None = None) -> Axes:
    """The axes of a space, with the values that they have in `among`, which holds `columns` (None: `columns` itself).

    ValueError when two rows are one candidate, or `columns` has a value that `among` lacks.
    """
    whole = columns if among is None else among
    names = _differing(whole, _AXES)
    if not _all_distinct(_coded(whole, whole, names), len(whole)):
        names += _differing(whole, _DERIVED)
        if not _all_distinct(_coded(whole, whole, names), len(whole)):
            raise ValueError("two rows of the space are the same candidate")
    return Axes(axes=_coded(columns, whole, names), num_candidates=len(columns))


_Words: TypeAlias = tuple[tuple[str, str, Callable[[int], AxisValue]], ...]


def _differing(columns: CandidateColumns, table: _Words) -> _Words:
    held = ((entry, getattr(columns, entry[0])) for entry in table)
    return tuple(entry for entry, values in held if np.any(values != values[0]))


def _coded(columns: CandidateColumns, among: CandidateColumns, table: _Words) -> tuple[Axis, ...]:
    axes = []
    for column, name, word in table:
        present, held = np.unique(getattr(among, column)), getattr(columns, column)
        codes = np.searchsorted(present, held)
        if not np.array_equal(present[np.minimum(codes, len(present) - 1)], held):
            raise ValueError(f"a candidate has a {name} that the whole space lacks")
        values = tuple(word(int(value)) for value in present)
        axes.append(Axis(name=name, values=values, codes=codes.astype(np.int64), is_numeric=column in _NUMERIC))
    return tuple(axes)


def _all_distinct(axes: tuple[Axis, ...], num_rows: int) -> bool:
    key: IntColumn = np.zeros(num_rows, dtype=np.int64)
    for axis in axes:
        key = key * len(axis.values) + axis.codes
    return len(np.unique(key)) == num_rows
