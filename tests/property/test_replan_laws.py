"""Laws of planning again: without a change nothing changes, with one it is told; survivors keep the global batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.app.changes import Surroundings, find_changes
from planner.app.checkpoint_route import checkpoint_route
from planner.app.survivors import survivors_of
from planner.catalog import load_gpu, load_link
from planner.cost import Calibration
from planner.spec import BatchSplit, Candidate, ClusterSpec, ParallelLayout, Precision
from planner.spec.checkpoint import checkpoint_layout, differences
from planner.spec.replan import CheckpointWay
from tests.unit.emit.samples import make_candidate, make_job

GPUS = ("h100-sxm-80gb", "a100-sxm-40gb", "l4-24gb")
LINKS = ("nvlink-4", "infiniband-ndr", "ethernet-25")

clusters = st.builds(
    ClusterSpec,
    gpu=st.sampled_from(GPUS).map(load_gpu),
    nodes=st.integers(1, 64),
    gpus_per_node=st.integers(1, 16),
    intra_node_link=st.sampled_from(LINKS).map(load_link),
    inter_node_link=st.sampled_from(LINKS).map(load_link),
    host_memory_bytes=st.sampled_from((1 << 37, 1 << 40)),
)
versions = st.fixed_dictionaries(
    {name: st.sampled_from(("1.0", "2.0")) for name in ("torch", "deepspeed", "transformers", "nvidia-driver")}
).map(lambda found: tuple(found.items()))
surroundings = st.builds(
    Surroundings, cluster=clusters, versions=versions, machine=st.sampled_from(("", "cuda-1", "cuda-2"))
)


@settings(deadline=None)
@given(surroundings)
def test_nothing_changed_has_no_changes(around: Surroundings) -> None:
    assert find_changes(around, around) == ()


@settings(deadline=None)
@given(surroundings, surroundings)
def test_changes_are_the_same_seen_from_the_other_side(one: Surroundings, other: Surroundings) -> None:
    there, back = find_changes(one, other), find_changes(other, one)
    assert [(change.kind, change.before, change.after) for change in there] == [
        (change.kind, change.after, change.before) for change in back
    ]
    assert all(change.before != change.after for change in there)


@st.composite
def candidates(draw: st.DrawFn) -> Candidate:
    sizes = [draw(st.sampled_from((1, 2, 4))) for _ in range(3)]
    pipeline = sizes[2]
    layout = ParallelLayout(
        data_parallel_size=sizes[0],
        tensor_parallel_size=sizes[1],
        pipeline_parallel_size=pipeline,
        stage_layers=(4,) * pipeline,
    )
    batch = BatchSplit(micro_batch_size=1, gradient_accumulation_steps=4, data_parallel_size=sizes[0])
    return replace(
        make_candidate(),
        layout=layout,
        batch=batch,
        zero_stage=draw(st.integers(0, 3)),
        precision=draw(st.sampled_from((Precision.BF16, Precision.FP32))),
    )


@settings(deadline=None)
@given(candidates(), candidates())
def test_a_checkpoint_loads_as_it_is_exactly_under_an_equal_layout(old: Candidate, new: Candidate) -> None:
    route = checkpoint_route(old, new, job=make_job(), folder="new")
    same = checkpoint_layout(old) == checkpoint_layout(new)
    assert (route.way is CheckpointWay.AS_IS) == same
    assert (differences(checkpoint_layout(old), checkpoint_layout(new)) == "") == same
    assert bool(route.command) == (not same)
    back = checkpoint_route(new, old, job=make_job(), folder="new")
    assert back.way is route.way


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 6), st.integers(1, 8), st.sampled_from((24, 32, 60)), st.data())
def test_survivors_keep_the_global_batch_and_use_what_is_left(
    nodes: int, gpus_per_node: int, batch: int, data: Any
) -> None:
    job = make_job()
    job = replace(
        job,
        training=replace(job.training, global_batch_size=batch),
        cluster=replace(job.cluster, nodes=nodes, gpus_per_node=gpus_per_node),
    )
    count = data.draw(st.integers(1, nodes - 1))
    found = survivors_of(job, nodes=nodes, count=count, calibration=Calibration())
    assert [one.nodes for one in found] == list(range(nodes - 1, nodes - 1 - count, -1))
    for one in found:
        if one.draft is None:
            assert one.why
            assert one.nearest < one.nodes
            continue
        candidate = next(one.choices()).candidate
        assert candidate.batch.global_batch_size == batch
        assert candidate.layout.world_size == one.nodes * gpus_per_node
