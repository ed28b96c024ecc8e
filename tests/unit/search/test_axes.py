"""Candidates as tuples of parameters, there and back."""

from __future__ import annotations

import numpy as np
import pytest

from planner.search.axes import axes_of
from planner.spec.columns import columns_of
from tests.unit.search.builders import candidate
from tests.unit.search.landscapes import EIGHT_NODES, ONE_GPU_FINE, ONE_NODE, Shape, columns_for


@pytest.mark.parametrize("shape", [ONE_GPU_FINE, ONE_NODE, EIGHT_NODES], ids=["one-gpu", "one-node", "eight-nodes"])
def test_every_row_is_found_again_by_its_values(shape: Shape) -> None:
    axes = axes_of(columns_for(shape))
    assert all(axes.row_of(axes.values_at(row)) == row for row in range(0, axes.num_candidates, 7))


def test_parameters_are_the_words_of_the_job_file_and_only_what_differs() -> None:
    some = (candidate(micro=1, gas=4), candidate(micro=2, gas=2, checkpointing="layers:4"))
    axes = axes_of(columns_of(some, gpus_per_node=8))
    assert axes.values_at(1) == {"micro_batch_size": 2, "activation_checkpointing": "layers:4"}


def test_illegal_tuple_and_missing_axis_are_no_row() -> None:
    axes = axes_of(columns_of((candidate(micro=1, zero=0), candidate(micro=2, zero=1)), gpus_per_node=8))
    assert axes.row_of({"micro_batch_size": 1, "zero_stage": 1}) is None
    assert axes.row_of({"micro_batch_size": 3, "zero_stage": 1}) is None
    assert axes.row_of({"zero_stage": 1}) is None


def test_derived_sizes_become_axes_only_where_they_are_needed() -> None:
    some = (candidate(dp=2), candidate(dp=4))
    assert axes_of(columns_of(some, gpus_per_node=8)).values_at(0) == {"data_parallel_size": 2}


def test_the_same_candidate_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="same candidate"):
        axes_of(columns_of((candidate(), candidate()), gpus_per_node=8))


def test_distance_is_zero_for_itself_and_grows_with_each_axis() -> None:
    columns = columns_for(ONE_NODE)
    axes = axes_of(columns)
    distances = axes.distances_to(axes.values_at(5))
    assert distances[5] == 0 and np.sum(distances == 0) == 1
    assert np.max(distances) <= len(axes.axes)
