"""The candidates as tuples of axis values: what Optuna records as a trial's parameters.

Only axes that differ between candidates are parameters, with the words of the job file as values, so that Optuna's
dashboards read well. Data-parallel size and accumulation follow from the others and are left out wherever they do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

from planner.spec._record import record
from planner.spec.columns import BoolColumn, CandidateColumns, FloatColumn, IntColumn, axis_codes, axis_value
from planner.spec.tuning import TUNING_VALUES

AxisValue: TypeAlias = int | str | bool

# Axes as the job file calls them, in the order in which a person would choose.
_AXES: tuple[str, ...] = (
    "nodes",
    "pipeline_parallel_size",
    "tensor_parallel_size",
    "sequence_parallel_size",
    "expert_parallel_size",
    "virtual_pipeline_size",
    "tensor_sequence_parallel",
    "zero_stage",
    "micro_batch_size",
    "activation_checkpointing",
    "precision",
    "attention",
    "offload_optimizer",
    "offload_param",
    *TUNING_VALUES,
)
_DERIVED = ("data_parallel_size", "gradient_accumulation_steps")
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


def _differing(columns: CandidateColumns, names: tuple[str, ...]) -> tuple[str, ...]:
    if not columns.tuning.any():  # the usual case, spared a pass over the rows for each setting
        names = tuple(name for name in names if name not in TUNING_VALUES)
    held = ((name, axis_codes(columns, name)) for name in names)
    return tuple(name for name, codes in held if np.any(codes != codes[0]))


def _coded(columns: CandidateColumns, among: CandidateColumns, names: tuple[str, ...]) -> tuple[Axis, ...]:
    axes = []
    for name in names:
        present, held = np.unique(axis_codes(among, name)), axis_codes(columns, name)
        codes = np.searchsorted(present, held)
        if not np.array_equal(present[np.minimum(codes, len(present) - 1)], held):
            raise ValueError(f"a candidate has a {name} that the whole space lacks")
        values = tuple(_value(name, int(code)) for code in present)
        axes.append(Axis(name=name, values=values, codes=codes.astype(np.int64), is_numeric=name in _NUMERIC))
    return tuple(axes)


def _value(name: str, code: int) -> AxisValue:
    return bool(code) if name == "tensor_sequence_parallel" else axis_value(name, code)


def _all_distinct(axes: tuple[Axis, ...], num_rows: int) -> bool:
    key: IntColumn = np.zeros(num_rows, dtype=np.int64)
    for axis in axes:
        key = key * len(axis.values) + axis.codes
    return len(np.unique(key)) == num_rows
