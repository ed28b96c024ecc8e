"""Laws of the search space, over generated models, clusters and ranges."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.rules import AXIS_RULES, refusals
from planner.space import axis_values, enumerate_candidates, explain_empty, rule_context
from planner.space.axes import AxisValues, checkpointing_codes
from planner.space.enumeration import named_columns
from planner.spec import ActivationCheckpointing, JobSpec, Objective, Precision
from planner.spec.columns import PRECISIONS, CandidateColumns, candidate_at, columns_of
from tests.unit.space.jobs import cluster, decoder, job

LAWS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

sizes = st.sets(st.sampled_from([1, 2, 3, 4, 6, 8, 16]), min_size=1, max_size=3).map(tuple)
kinds = st.sampled_from(["none", "selective", "full", "layers:1", "layers:3", "layers:12"]).map(
    ActivationCheckpointing.parse
)
models = st.builds(
    decoder,
    num_layers=st.integers(1, 24),
    num_heads=st.sampled_from([4, 6, 8, 12]),
    num_kv_heads=st.sampled_from([2, 3, 4]),
    ffn_hidden_size=st.sampled_from([96, 100, 128]),
    vocab_size=st.sampled_from([1000, 1001, 1024]),
)
ranges = st.fixed_dictionaries(
    {},
    optional={
        "tensor_parallel_size": sizes,
        "pipeline_parallel_size": sizes,
        "micro_batch_size": sizes,
        "zero_stage": st.sets(st.integers(0, 3), min_size=1).map(tuple),
        "activation_checkpointing": st.sets(kinds, min_size=1, max_size=3).map(tuple),
        "precision": st.sets(st.sampled_from(Precision), min_size=1).map(tuple),
    },
)
jobs = st.builds(
    lambda model, nodes, gpus, batch, objective, listed: job(
        model, on=cluster(nodes, gpus), global_batch_size=batch, objective=objective, **listed
    ),
    models,
    st.integers(1, 3),
    st.integers(1, 9),
    st.integers(1, 48),
    st.sampled_from(Objective),
    ranges,
)


@LAWS
@given(jobs)
def test_every_candidate_keeps_the_batch_the_world_and_the_layers(asked: JobSpec) -> None:
    c = enumerate_candidates(asked).columns
    consumed = c.micro_batch_size * c.gradient_accumulation_steps * c.data_parallel_size
    world = c.data_parallel_size * c.tensor_parallel_size * c.pipeline_parallel_size
    assert (consumed == asked.training.global_batch_size).all()
    assert (c.gradient_accumulation_steps >= 1).all()
    allowed = {each.world_size for each in axis_values(asked).worlds}
    assert set(world.tolist()) <= allowed
    if asked.objective is Objective.THROUGHPUT:
        assert (world == asked.cluster.world_size).all()
    for row in range(0, len(c), max(1, len(c) // 20)):
        layout = candidate_at(c, row, num_layers=asked.model.num_layers).layout
        assert sum(layout.stage_layers) == asked.model.num_layers
        assert min(layout.stage_layers) >= 1


@LAWS
@given(jobs)
def test_no_candidate_breaks_a_rule_and_none_comes_twice(asked: JobSpec) -> None:
    space = enumerate_candidates(asked)
    assert refusals(space.columns, rule_context(asked, axis_values(asked))) == ()
    keys = [candidate_at(space.columns, row, num_layers=asked.model.num_layers).key for row in range(len(space))]
    assert len(set(keys)) == len(keys)


@LAWS
@given(jobs)
def test_the_same_job_gives_the_same_space(asked: JobSpec) -> None:
    one, other = enumerate_candidates(asked), enumerate_candidates(asked)
    assert one.rejections == other.rejections
    for name in CandidateColumns.__dataclass_fields__:
        assert np.array_equal(getattr(one.columns, name), getattr(other.columns, name))


@LAWS
@given(jobs)
def test_sieve_agrees_with_judging_the_whole_grid_at_once(asked: JobSpec) -> None:
    """Brute force: every combination unfolded in plain Python, each counted by the first rule that refuses it."""
    space = enumerate_candidates(asked)
    assert len(space) + sum(rejection.count for rejection in space.rejections) == space.num_combinations
    grid = _whole_grid(asked, axis_values(asked))
    assert len(grid) == space.num_combinations
    context = rule_context(asked, axis_values(asked))
    kept = np.ones(len(grid), dtype=np.bool_)
    tally = {}
    for rule in AXIS_RULES:
        refused = rule.refuses(grid, context) & kept
        kept &= ~refused
        if refused.any():
            tally[rule.name] = int(refused.sum())
    assert tally == {rejection.rule: rejection.count for rejection in space.rejections}
    legal = grid.take(kept)
    for name in CandidateColumns.__dataclass_fields__:
        assert np.array_equal(getattr(legal, name), getattr(space.columns, name)), name


def _whole_grid(asked: JobSpec, axes: AxisValues) -> CandidateColumns:
    batch = asked.training.global_batch_size
    rows = []
    for world in axes.worlds:
        for tensor in axes.tensor_parallel_size:
            for pipeline in axes.pipeline_parallel_size:
                if "tensor_parallel_size" not in axes.listed and world.world_size % tensor:
                    continue
                if "pipeline_parallel_size" not in axes.listed and world.world_size % pipeline:
                    continue
                data = world.world_size // (tensor * pipeline) if world.world_size % (tensor * pipeline) == 0 else 0
                codes = checkpointing_codes(axes, num_layers=asked.model.num_layers, pipeline_parallel_size=pipeline)
                rows += [
                    {
                        "nodes": world.nodes,
                        "tensor_parallel_size": tensor,
                        "pipeline_parallel_size": pipeline,
                        "data_parallel_size": data,
                        "micro_batch_size": micro,
                        "gradient_accumulation_steps": batch // max(micro * data, 1)
                        if batch % max(micro * data, 1) == 0
                        else 0,
                        "zero_stage": zero,
                        "precision": PRECISIONS.index(precision),
                        "checkpointed_layers": code,
                    }
                    for micro in axes.micro_batch_size
                    for zero in axes.zero_stage
                    for precision in axes.precision
                    for code in codes
                ]
    template = named_columns(**rows[0])
    filled = {name: np.repeat(getattr(template, name), len(rows)) for name in CandidateColumns.__dataclass_fields__}
    given_columns = {name: np.array([row[name] for row in rows], dtype=np.int64) for name in rows[0]}
    return CandidateColumns(**{**filled, **given_columns})


@LAWS
@given(jobs)
def test_candidates_survive_the_way_through_records_and_back(asked: JobSpec) -> None:
    columns = enumerate_candidates(asked).columns
    rows = np.arange(0, len(columns), max(1, len(columns) // 50), dtype=np.int64)
    records = tuple(candidate_at(columns, int(row), num_layers=asked.model.num_layers) for row in rows)
    again = columns_of(records, gpus_per_node=asked.cluster.gpus_per_node)
    some = columns.take(rows)
    for name in CandidateColumns.__dataclass_fields__:
        assert np.array_equal(getattr(again, name), getattr(some, name)), name


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(jobs)
def test_an_impossible_job_is_explained_and_its_tally_is_complete(asked: JobSpec) -> None:
    space = enumerate_candidates(asked)
    if len(space):
        return
    error = explain_empty(space, asked)
    assert error.exit_code == 3
    assert sum(count for _rule, count in error.tally) == space.num_combinations
    assert error.error
    assert error.why
    assert error.fix
