"""Only what is proven is pruned."""

from __future__ import annotations

import numpy as np
import pytest

from planner.search.history import observe
from planner.search.pruning import proven_out_of_memory
from planner.search.samplers import open_rows
from planner.spec import Candidate, Outcome, Phase
from planner.spec.columns import columns_of
from tests.unit.search.builders import candidate, crashed, measured, out_of_memory, problem
from tests.unit.search.landscapes import EIGHT_NODES, GIB, ONE_NODE, Physics, Shape, columns_for, memory_gib

_TRIED = candidate(micro=4, gas=4, dp=2, zero=1)


def _pruned(other: Candidate, outcome: Outcome) -> bool:
    columns = columns_of((_TRIED, other), gpus_per_node=8)
    return bool(proven_out_of_memory(columns, (observe(0, outcome, usable_bytes=100),))[1])


def test_larger_micro_batch_of_the_same_layout_is_proven_smaller_is_not() -> None:
    assert _pruned(candidate(micro=8, gas=2, dp=2, zero=1), out_of_memory())
    assert not _pruned(candidate(micro=2, gas=8, dp=2, zero=1), out_of_memory())


@pytest.mark.parametrize(
    "other",
    [
        candidate(micro=16, gas=1, dp=2, zero=1),  # no accumulation: other buffers
        candidate(micro=8, gas=2, dp=2, zero=2),
        candidate(micro=8, gas=2, dp=2, zero=0),
        candidate(micro=8, gas=2, dp=2, zero=1, checkpointing="full"),
        candidate(micro=8, gas=2, dp=2, zero=1, checkpointing="layers:3"),
        candidate(micro=8, gas=4, dp=1, tp=2, zero=1),
    ],
    ids=lambda other: other.key,
)
def test_any_other_difference_proves_nothing(other: Candidate) -> None:
    assert not _pruned(other, out_of_memory())


@pytest.mark.parametrize("phase", [Phase.BUILD_MODEL, Phase.BUILD_ENGINE])
def test_memory_that_ended_while_building_rules_out_every_batch_and_checkpointing(phase: Phase) -> None:
    outcome = out_of_memory(phase=phase)
    assert _pruned(candidate(micro=1, gas=16, dp=2, zero=1, checkpointing="full"), outcome)
    assert not _pruned(candidate(micro=1, gas=16, dp=2, zero=2), outcome)
    assert not _pruned(candidate(micro=16, gas=1, dp=2, zero=1), outcome)


def test_only_out_of_memory_proves() -> None:
    larger = candidate(micro=8, gas=2, dp=2, zero=1)
    assert not _pruned(larger, crashed()) and not _pruned(larger, measured(1.0))


def test_on_a_shared_machine_nothing_is_proven() -> None:
    larger = candidate(micro=8, gas=2, dp=2, zero=1)
    seen = (observe(0, out_of_memory(), usable_bytes=100),)
    space = problem((_TRIED, larger))
    assert open_rows(space, seen).tolist() == [False, False]
    assert open_rows(problem((_TRIED, larger), machine_is_shared=True), seen).tolist() == [False, True]


@pytest.mark.parametrize("shape", [ONE_NODE, EIGHT_NODES], ids=["one-node", "eight-nodes"])
def test_on_a_made_up_cluster_everything_pruned_would_have_run_out(shape: Shape) -> None:
    columns = columns_for(shape)
    memory = memory_gib(columns, shape, Physics()) * GIB
    usable = float(np.quantile(memory, 0.5))
    out = np.flatnonzero(memory > usable)
    pruned = proven_out_of_memory(
        columns, tuple(observe(int(row), out_of_memory(), usable_bytes=int(usable)) for row in out[::7])
    )
    assert np.all(memory[pruned] > usable) and pruned.sum() > len(out[::7])
