"""How alike two candidates are, axis by axis: the geometry in which a measurement speaks about its neighbours.

Each axis that differs in the space gives a similarity between 0 and 1 (a positive definite kernel), so that their
weighted sum and their product are kernels too.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from planner.search.scoring import world_sizes
from planner.spec._record import record
from planner.spec.columns import FULL_CHECKPOINTING, SELECTIVE_CHECKPOINTING, CandidateColumns, FloatColumn, IntColumn
from planner.spec.tuning import TUNING_VALUES
from planner.spec.tuning_columns import setting_codes

Matrix: TypeAlias = NDArray[np.float64]

# A doubling of a size is one octave; errors of the analytic model drift over about two of them.
_OCTAVES = 2.0
_RECOMPUTED_FRACTION = 0.5
# Similarity of two different values of an axis that has no order.
_APART = {"precision": 0.3, "attention": 0.5, "offload_optimizer": 0.3, "offload_param": 0.3, "selective": 0.4}
_TENSOR_SEQUENCE_PARALLEL, _SETTING = 0.6, 0.6
# ZeRO 0 to 2 communicate alike (all-reduce, or its two halves); stage 3 gathers the parameters in every pass.
_ZERO = np.array([[1.0, 0.7, 0.6, 0.3], [0.7, 1.0, 0.7, 0.3], [0.6, 0.7, 1.0, 0.4], [0.3, 0.3, 0.4, 1.0]])


@record
class Features:
    """Coordinates of some candidates: smooth ones (a Gaussian kernel each), and codes of unordered axes."""

    smooth: tuple[FloatColumn, ...]  # in units of the kernel's length
    unordered: tuple[IntColumn, ...]
    tables: tuple[Matrix, ...]  # similarity by a pair of codes, one table per unordered axis

    @property
    def num_axes(self) -> int:
        return len(self.smooth) + len(self.unordered)

    def take(self, rows: IntColumn) -> Features:
        """The features of some of the candidates."""
        return Features(
            smooth=tuple(column[rows] for column in self.smooth),
            unordered=tuple(column[rows] for column in self.unordered),
            tables=self.tables,
        )


def features_of(columns: CandidateColumns, *, num_layers: int) -> Features:
    """Coordinates along every axis that differs between the candidates."""
    stage_layers = np.maximum(num_layers / columns.pipeline_parallel_size, 1.0)
    codes = columns.checkpointed_layers
    recomputed = np.where(codes == FULL_CHECKPOINTING, 1.0, np.clip(codes, 0, None) / stage_layers)
    smooth = (
        np.log2(world_sizes(columns)) / _OCTAVES,
        np.log2(columns.pipeline_parallel_size) / _OCTAVES,
        np.log2(columns.tensor_parallel_size) / _OCTAVES,
        np.log2(columns.sequence_parallel_size) / _OCTAVES,
        np.log2(columns.expert_parallel_size) / _OCTAVES,
        np.log2(columns.virtual_pipeline_size) / _OCTAVES,
        np.log2(columns.micro_batch_size) / _OCTAVES,
        np.minimum(recomputed, 1.0) / _RECOMPUTED_FRACTION,
    )
    unordered = (
        (columns.zero_stage, _ZERO),
        (columns.precision, _two_level(_APART["precision"])),
        (columns.attention, _two_level(_APART["attention"])),
        (columns.offload_optimizer, _two_level(_APART["offload_optimizer"])),
        (columns.offload_param, _two_level(_APART["offload_param"])),
        ((codes == SELECTIVE_CHECKPOINTING).astype(np.int64), _two_level(_APART["selective"])),
        (columns.tensor_sequence_parallel.astype(np.int64), _two_level(_TENSOR_SEQUENCE_PARALLEL)),
        *_settings(columns),
    )
    kept = [(column, table) for column, table in unordered if np.ptp(column) > 0]
    return Features(
        smooth=tuple(column for column in smooth if np.ptp(column) > 0),
        unordered=tuple(column for column, _ in kept),
        tables=tuple(table for _, table in kept),
    )


def _settings(columns: CandidateColumns) -> tuple[tuple[IntColumn, Matrix], ...]:
    """The settings of `Tuning` that any candidate changes: what one of them does is much alike on all layouts."""
    if not columns.tuning.any():
        return ()
    return tuple((setting_codes(columns.tuning, name), _two_level(_SETTING)) for name in TUNING_VALUES)


def similarities(left: Features, right: Features) -> Matrix:
    """An array (axis, candidate of `left`, candidate of `right`) of similarities in [0, 1]."""
    layers = [np.exp(-0.5 * (a[:, None] - b[None, :]) ** 2) for a, b in zip(left.smooth, right.smooth)]
    layers += [t[a[:, None], b[None, :]] for a, b, t in zip(left.unordered, right.unordered, left.tables)]
    shape = (left.num_axes, _length(left), _length(right))
    return np.array(layers, dtype=np.float64).reshape(shape)


def _length(features: Features) -> int:
    columns = (*features.smooth, *features.unordered)
    return len(columns[0]) if columns else 1


def _two_level(apart: float) -> Matrix:
    """Similarity 1 to itself and `apart` to every other of at most 32 values."""
    return np.full((32, 32), apart) + (1.0 - apart) * np.eye(32)
