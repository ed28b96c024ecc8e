"""Laws of the emitted DeepSpeed config, for any candidate that the space can hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from planner.emit import explain_ds_config, reduced_task, render_ds_config
from planner.rules import ConfigContext, Severity, check_config
from planner.spec import Candidate, DeviceKind, OptimizerName, Precision
from tests.unit.emit.samples import DEEPSPEED_VERSION, make_candidate, make_job

OPTIMIZERS = (OptimizerName.ADAMW, OptimizerName.SGD)  # what every candidate can be written with
VERSIONS = ("0.19.6", "0.19.7", "0.19.8")


@st.composite
def candidates(draw: st.DrawFn) -> Candidate:
    pipeline = draw(st.sampled_from([1, 2, 3, 4]))
    return make_candidate(
        data=draw(st.sampled_from([1, 2, 3, 8])),
        tensor=draw(st.sampled_from([1, 2])),
        pipeline=pipeline,
        micro=draw(st.integers(1, 64)),
        accumulation=draw(st.integers(1, 64)),
        stage=draw(st.integers(0, 3 if pipeline == 1 else 1)),
        precision=draw(st.sampled_from([Precision.FP32, Precision.FP16, Precision.BF16])),
        checkpointing=draw(st.sampled_from(["none", "selective", "full", "layers:1"])),
    )


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from leaves(item)
    else:
        yield value


@given(candidates(), st.sampled_from(OPTIMIZERS), st.sampled_from(list(DeviceKind)), st.sampled_from(VERSIONS))
def test_any_candidates_config_is_plain_explained_and_without_errors(
    candidate: Candidate, optimizer: OptimizerName, device: DeviceKind, version: str
) -> None:
    job = make_job(device=device, optimizer=optimizer)
    config = render_ds_config(candidate, job=job, deepspeed_version=version)
    assert all(isinstance(leaf, (bool, int, float, str)) and leaf != "auto" for leaf in leaves(config))
    batch = (config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"])
    assert config["train_batch_size"] == batch[0] * batch[1] * candidate.layout.data_parallel_size
    assert len(dict(explain_ds_config(config))) > 10
    context = ConfigContext(
        world_size=candidate.layout.world_size,
        tensor_parallel_size=candidate.layout.tensor_parallel_size,
        pipeline_parallel_size=candidate.layout.pipeline_parallel_size,
        deepspeed_version=version,
        device=device,
    )
    assert [finding for finding in check_config(config, context) if finding.severity is Severity.ERROR] == []


@given(candidates())
def test_any_candidates_stand_in_has_four_ranks_at_most_and_the_same_kind_of_layout(candidate: Candidate) -> None:
    small = reduced_task(make_job(), candidate, deepspeed_version=DEEPSPEED_VERSION).candidate
    assert small.layout.world_size <= 4
    for size in ("tensor_parallel_size", "pipeline_parallel_size"):
        assert (getattr(small.layout, size) > 1) == (getattr(candidate.layout, size) > 1)
    assert small.zero_stage == candidate.zero_stage
    assert small.activation_checkpointing.kind == candidate.activation_checkpointing.kind
    assert (small.batch.gradient_accumulation_steps > 1) == (candidate.batch.gradient_accumulation_steps > 1)
    room = 4 // (small.layout.tensor_parallel_size * small.layout.pipeline_parallel_size)
    assert (small.layout.data_parallel_size > 1) == (candidate.layout.data_parallel_size > 1 and room > 1)
