from __future__ import annotations

import time

import numpy as np
import pytest

from planner.space import Space, enumerate_candidates
from planner.space.enumeration import has_candidate
from planner.spec import ActivationCheckpointing, JobSpec, Objective, Precision
from planner.spec.columns import candidate_at
from tests.unit.space.jobs import cluster, decoder, gpt2_like, job, llama_405b, module


def layouts_of(space: Space) -> set[tuple[int, int, int]]:
    """(tensor, pipeline, data) of every candidate."""
    c = space.columns
    return set(zip(c.tensor_parallel_size.tolist(), c.pipeline_parallel_size.tolist(), c.data_parallel_size.tolist()))


def counts_of(space: Space) -> dict[str, int]:
    return {rejection.rule: rejection.count for rejection in space.rejections}


def test_llama_405b_runs_on_sixteen_uneven_stages() -> None:
    space = enumerate_candidates(job(llama_405b(), on=cluster(nodes=16), pipeline_parallel_size=(16,)))
    assert (8, 16, 1) in layouts_of(space)
    layers = candidate_at(space.columns, 0, num_layers=126).layout.stage_layers
    assert len(layers) == 16
    assert sum(layers) == 126
    assert set(layers) == {7, 8}


def test_a_70b_on_64_gpus_has_the_layouts_that_practice_uses() -> None:
    space = enumerate_candidates(job(on=cluster(nodes=8)))
    assert {(8, 2, 4), (8, 4, 2), (4, 4, 4), (8, 1, 8), (1, 1, 64)} <= layouts_of(space)
    assert max(tensor for tensor, _pipeline, _data in layouts_of(space)) == 8


@pytest.mark.parametrize("gpus", [7, 13, 31])
def test_a_prime_world_is_all_data_parallel_or_one_pipeline(gpus: int) -> None:
    space = enumerate_candidates(job(on=cluster(nodes=1, gpus_per_node=gpus), global_batch_size=gpus * 2))
    assert layouts_of(space) == {(1, 1, gpus), (1, gpus, 1)}


def test_a_global_batch_of_one_leaves_no_data_parallelism() -> None:
    space = enumerate_candidates(job(global_batch_size=1))
    assert layouts_of(space) == {(8, 1, 1), (4, 2, 1), (2, 4, 1), (1, 8, 1)}
    assert counts_of(space)["data-parallel-exceeds-batch"] > 0


def test_a_single_gpu_runs_every_zero_stage() -> None:
    space = enumerate_candidates(job(on=cluster(gpus_per_node=1), micro_batch_size=(4,)))
    assert set(space.columns.zero_stage.tolist()) == {0, 1, 2, 3}
    assert layouts_of(space) == {(1, 1, 1)}


def test_micro_batch_that_is_no_power_of_two_is_found() -> None:
    space = enumerate_candidates(job(on=cluster(gpus_per_node=1), global_batch_size=23 * 20))
    assert {20, 23} <= set(space.columns.micro_batch_size.tolist())


def test_an_odd_vocabulary_leaves_tensor_parallelism_out() -> None:
    space = enumerate_candidates(job(gpt2_like()))
    assert {tensor for tensor, _p, _d in layouts_of(space)} == {1}
    assert counts_of(space)["vocabulary-divisible"] > 0


def test_a_module_is_searched_over_batch_and_zero_only() -> None:
    space = enumerate_candidates(job(module(), global_batch_size=16))
    assert layouts_of(space) == {(1, 1, 8)}
    assert set(space.columns.checkpointed_layers.tolist()) == {0}
    assert len(space) == 4 * 2  # ZeRO 0-3, micro-batch 1 and 2
    assert len(space.left_out_axes) == 3
    assert candidate_at(space.columns, 0, num_layers=0).layout.stage_layers == ()


def test_a_listed_impossible_value_is_refused_beside_the_possible_ones() -> None:
    space = enumerate_candidates(job(module(), pipeline_parallel_size=(1, 2), global_batch_size=16))
    assert counts_of(space)["pipeline-needs-layers"] == 4 * 5  # ZeRO stages x micro-batches
    assert len(space) == 8


def test_tensor_parallelism_across_nodes_is_considered_only_when_listed() -> None:
    wide = decoder(num_kv_heads=64)
    on = cluster(nodes=2)
    assert (16, 1, 1) not in layouts_of(enumerate_candidates(job(wide, on=on)))
    assert (16, 1, 1) in layouts_of(enumerate_candidates(job(wide, on=on, tensor_parallel_size=(8, 16))))


def test_tensor_parallel_groups_never_straddle_a_node() -> None:
    odd = decoder(num_heads=60, num_kv_heads=12, ffn_hidden_size=3600, vocab_size=36000)
    space = enumerate_candidates(job(odd, on=cluster(nodes=3, gpus_per_node=8), global_batch_size=24))
    assert {tensor for tensor, _p, _d in layouts_of(space)} <= {1, 2, 4}  # not 3 and 6: they divide 24, not 8


def test_fewest_gpus_gives_candidates_of_several_world_sizes() -> None:
    space = enumerate_candidates(job(on=cluster(nodes=2), objective=Objective.FEWEST_GPUS))
    worlds = {tensor * pipeline * data for tensor, pipeline, data in layouts_of(space)}
    assert worlds == {1, 2, 4, 8, 16}


def test_several_cluster_sizes_stand_side_by_side() -> None:
    space = enumerate_candidates(job(), nodes=(1, 3))
    c = space.columns
    worlds = c.tensor_parallel_size * c.pipeline_parallel_size * c.data_parallel_size
    assert np.array_equal(worlds, c.nodes * 8)
    assert set(c.nodes.tolist()) == {1, 3}


def test_precision_is_searched_only_as_listed() -> None:
    keys = {
        candidate_at(space.columns, row, num_layers=80).precision
        for space in [enumerate_candidates(job(precision=(Precision.FP16, Precision.FP32), zero_stage=(1,)))]
        for row in range(0, len(space), 50)
    }
    assert keys == {Precision.FP16, Precision.FP32}


def test_listed_layers_beyond_a_stage_fall_away_where_stages_are_small() -> None:
    kinds = (ActivationCheckpointing.parse("layers:30"),)
    space = enumerate_candidates(job(activation_checkpointing=kinds, zero_stage=(1,)))
    assert {pipeline for _t, pipeline, _d in layouts_of(space)} == {1, 2}
    assert counts_of(space)["checkpointed-layers-beyond-stage"] > 0


@pytest.mark.parametrize(
    "asked",
    [
        job(),
        job(tensor_parallel_size=(3,)),
        job(precision=(Precision.FP8,)),
        job(zero_stage=(3,), pipeline_parallel_size=(2,)),
        job(module(), global_batch_size=3),
    ],
)
def test_has_candidate_agrees_with_the_enumeration(asked: JobSpec) -> None:
    assert has_candidate(asked) == (len(enumerate_candidates(asked)) > 0)


def test_two_hundred_thousand_candidates_take_less_than_half_a_second() -> None:
    large = job(on=cluster(nodes=120), global_batch_size=55_440, objective=Objective.COST)
    seconds = []
    for _ in range(3):
        started = time.process_time()
        space = enumerate_candidates(large)
        seconds.append(time.process_time() - started)
    assert len(space) > 200_000
    assert min(seconds) / len(space) * 200_000 < 0.5
