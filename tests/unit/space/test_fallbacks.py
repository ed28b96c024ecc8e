"""The ladder down from a candidate: the global batch is kept, every step is legal, and each is a step down."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from planner.space import less_memory
from planner.spec import OffloadDevice, OptimizerName
from tests.unit.emit.samples import make_candidate, make_job


def test_less_memory_goes_by_batch_then_checkpointing_then_offload() -> None:
    job = make_job(gpus_per_node=2, global_batch_size=32)
    steps = less_memory(make_candidate(data=2, micro=8, accumulation=2, stage=1), job)
    changes = [step.change.split(" ")[0] for step in steps]
    assert changes == ["micro-batch", "micro-batch", "micro-batch", "activation", "activation", "optimizer"]
    last = steps[-1].candidate
    assert last.batch.micro_batch_size == 1 and str(last.activation_checkpointing) == "full"
    assert last.offload_optimizer is OffloadDevice.CPU


def test_less_memory_does_not_offload_what_cannot_be_taken_over() -> None:
    for stage, optimizer in ((0, OptimizerName.ADAMW), (1, OptimizerName.SGD)):
        job = make_job(gpus_per_node=2, global_batch_size=4, optimizer=optimizer)
        steps = less_memory(make_candidate(data=2, stage=stage), job)
        assert [str(step.candidate.activation_checkpointing) for step in steps] == ["selective", "full"]


@given(micro=st.integers(1, 96), accumulation=st.integers(1, 8), checkpointing=st.sampled_from(["none", "full"]))
def test_less_memory_keeps_layout_and_global_batch_and_ends(micro: int, accumulation: int, checkpointing: str) -> None:
    job = make_job(gpus_per_node=2, global_batch_size=2 * micro * accumulation)
    candidate = make_candidate(data=2, micro=micro, accumulation=accumulation, stage=2, checkpointing=checkpointing)
    steps = less_memory(candidate, job)
    assert len(steps) <= 6
    sizes = [micro, *(step.candidate.batch.micro_batch_size for step in steps)]
    assert sizes == sorted(sizes, reverse=True)
    for step in steps:
        assert step.candidate.batch.global_batch_size == candidate.batch.global_batch_size
        assert (step.candidate.layout, step.candidate.zero_stage) == (candidate.layout, candidate.zero_stage)
        assert step.candidate.precision is candidate.precision and step.candidate != candidate
