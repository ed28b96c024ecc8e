"""Laws of the cost model over legal and nearly legal candidates of several models, devices and runtimes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.catalog import load_gpu, load_model
from planner.cost import (
    DEEPSPEED,
    FSDP,
    MEGATRON,
    MEGATRON_PLAIN,
    REFERENCE_TRAINER,
    Calibration,
    EstimateColumns,
    RuntimeProfile,
    estimate_columns,
)
from planner.cost.axes import axes_of
from planner.cost.columns import ARRAY_FIELDS
from planner.cost.parameters import FIRST, rank_parameters, stage_shape
from planner.cost.states_deepspeed import deepspeed_states
from planner.space import enumerate_candidates
from planner.spec import ClusterSpec, JobSpec, ModelSpec, SearchRanges, TrainingSpec
from planner.spec.estimate import MemoryBreakdown, TimeBreakdown
from planner.spec.kinds import Precision
from tests.unit.cost.samples import cluster, columns, inputs, small_model, traced_model, training

MODELS = (
    load_model("llama-3.2-1b"),
    load_model("llama-3.1-70b"),
    load_model("gpt2-xl"),
    load_model("bert-large"),
    load_model("mixtral-8x7b"),
    load_model("qwen3-0.6b"),
    load_model("deepseek-v3"),
    load_model("t5-large"),
    load_model("vit-large"),
    small_model(),
    traced_model(),
)
GPUS = ("v100-sxm-16gb", "a100-sxm-80gb", "h200-sxm-141gb", "b200-sxm-180gb", "cpu")
PROFILES = (DEEPSPEED, REFERENCE_TRAINER, FSDP, MEGATRON, MEGATRON_PLAIN, replace(DEEPSPEED, compiled=True))
LAWS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

powers = st.sampled_from([1, 2, 4, 8])


@st.composite
def candidates(draw: st.DrawFn, model: ModelSpec) -> dict[str, Any]:
    """One candidate's values; models without layers take no splits."""
    splits = model.num_layers > 0
    return {
        "data_parallel_size": draw(st.sampled_from([1, 2, 3, 8, 64, 512])),
        "tensor_parallel_size": draw(powers) if splits else 1,
        "pipeline_parallel_size": draw(st.integers(1, min(model.num_layers, 16))) if splits else 1,
        "sequence_parallel_size": draw(st.sampled_from([1, 1, 2, 4])),
        "expert_parallel_size": draw(powers) if model.num_experts else 1,
        "virtual_pipeline_size": draw(st.sampled_from([1, 1, 2])),
        "tensor_sequence_parallel": draw(st.booleans()),
        "micro_batch_size": draw(st.integers(1, 64)),
        "gradient_accumulation_steps": draw(st.sampled_from([1, 2, 7, 64])),
        "zero_stage": draw(st.integers(0, 3)),
        "precision": draw(st.sampled_from(["fp32", "fp16", "bf16", "fp8"])),
        "checkpointing": draw(st.sampled_from(["none", "selective", "full", "layers:3"])),
        "attention": draw(st.sampled_from(["sdpa", "eager", "flash"])),
        "offload_optimizer": draw(st.sampled_from(["none", "none", "cpu", "nvme"])),
        "offload_param": draw(st.sampled_from(["none", "none", "cpu", "nvme"])),
    }


@st.composite
def questions(draw: st.DrawFn) -> tuple[ModelSpec, ClusterSpec, RuntimeProfile, dict[str, Any]]:
    """A model, a cluster, a runtime and one candidate."""
    model = draw(st.sampled_from(MODELS))
    spec = cluster(gpu=load_gpu(draw(st.sampled_from(GPUS))), gpus_per_node=draw(st.sampled_from([1, 4, 8])))
    return model, spec, draw(st.sampled_from(PROFILES)), draw(candidates(model))


def _estimate(
    model: ModelSpec, spec: ClusterSpec, profile: RuntimeProfile, values: dict[str, Any], *, seq_len: int = 512
) -> EstimateColumns:
    setup = training(seq_len=seq_len)
    return estimate_columns(columns(**values), model=model, training=setup, cluster=spec, profile=profile)


@LAWS
@given(questions())
def test_breakdowns_sum_for_any_candidate(question: tuple[Any, ...]) -> None:
    result = _estimate(*question)
    assert sum(getattr(result, name)[0] for name in MemoryBreakdown.__dataclass_fields__) == result.device_used_bytes[0]
    times = sum(getattr(result, name)[0] for name in TimeBreakdown.__dataclass_fields__)
    assert times == pytest.approx(result.step_time_s[0])


@LAWS
@given(questions())
def test_no_number_is_negative_or_not_a_number(question: tuple[Any, ...]) -> None:
    result = _estimate(*question)
    for name in ARRAY_FIELDS:
        value = getattr(result, name)[0]
        assert np.isfinite(value), name
        assert value >= 0, name
    assert result.step_time_s[0] > 0
    assert result.allocated_bytes[0] <= result.reserved_bytes[0] <= result.device_used_bytes[0]
    assert result.low_bytes[0] <= result.high_bytes[0]


@LAWS
@given(questions(), st.integers(1, 2_000), st.integers(1, 2_000))
def test_memory_never_falls_as_sequences_grow(question: tuple[Any, ...], seq_len: int, more: int) -> None:
    shorter = _estimate(*question, seq_len=seq_len)
    longer = _estimate(*question, seq_len=seq_len + more)
    for name in ("allocated_bytes", "device_used_bytes", "low_bytes", "high_bytes"):
        assert getattr(longer, name)[0] >= getattr(shorter, name)[0], name


@LAWS
@given(questions(), st.integers(1, 64))
def test_memory_never_falls_as_micro_batches_grow(question: tuple[Any, ...], more: int) -> None:
    model, spec, profile, values = question
    larger = values | {"micro_batch_size": values["micro_batch_size"] + more}
    one, other = _estimate(model, spec, profile, values), _estimate(model, spec, profile, larger)
    for name in ("allocated_bytes", "device_used_bytes", "low_bytes", "high_bytes"):
        assert getattr(other, name)[0] >= getattr(one, name)[0], name


@LAWS
@given(
    st.sampled_from(MODELS), st.sampled_from([2, 3, 8, 64]), st.sampled_from([1, 4]), st.sampled_from(["bf16", "fp16"])
)
def test_model_states_never_rise_with_the_zero_stage(
    model: ModelSpec, shards: int, accumulation: int, precision: str
) -> None:
    values = {"data_parallel_size": shards, "gradient_accumulation_steps": accumulation, "precision": precision}
    axes = axes_of(columns(zero_stage=[0, 1, 2, 3], **values), model=model, training=training(), cluster=cluster())
    shape = stage_shape(FIRST, axes=axes, model=model)
    params = rank_parameters(shape, axes=axes, inputs=inputs(model))
    held = deepspeed_states(params, axes=axes, profile=DEEPSPEED, moments=8.0).backward
    assert np.all(np.diff(held.parameters + held.gradients + held.optimizer) <= 1e-3)


@LAWS
@given(questions(), st.booleans(), st.floats(1.0, 16.0), st.floats(1.0, 16.0))
def test_a_faster_link_never_slows(question: tuple[Any, ...], inside: bool, wider: float, quicker: float) -> None:
    model, spec, profile, values = question
    name = "intra_node_link" if inside else "inter_node_link"
    link = getattr(spec, name)
    better = replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * wider, latency_s=link.latency_s / quicker)
    faster = _estimate(model, replace(spec, **{name: better}), profile, values)
    assert faster.step_time_s[0] <= _estimate(model, spec, profile, values).step_time_s[0] * (1 + 1e-12)


@LAWS
@given(st.data())
def test_a_candidate_alone_equals_the_same_in_a_batch(data: st.DataObject) -> None:
    model, spec, profile, first = data.draw(questions())
    others = data.draw(st.lists(candidates(model), min_size=1, max_size=9))
    rows = [*others[: len(others) // 2], first, *others[len(others) // 2 :]]
    together = _estimate(model, spec, profile, {name: [row[name] for row in rows] for name in first})
    alone = _estimate(model, spec, profile, first)
    place = len(others) // 2
    for name in ARRAY_FIELDS:
        assert getattr(together, name)[place] == pytest.approx(getattr(alone, name)[0], rel=1e-12), name


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(MODELS),
    st.sampled_from(GPUS),
    st.sampled_from([(1, 1), (1, 8), (3, 8), (16, 8)]),
    st.sampled_from([8, 48, 60, 512]),
)
def test_every_legal_candidate_of_a_job_has_finite_figures_that_sum(
    model: ModelSpec, gpu: str, nodes: tuple[int, int], batch: int
) -> None:
    spec = cluster(gpu=load_gpu(gpu), nodes=nodes[0], gpus_per_node=nodes[1])
    setup = TrainingSpec(seq_len=512, global_batch_size=batch)
    job = JobSpec(model=model, training=setup, cluster=spec, ranges=SearchRanges(precision=tuple(Precision)))
    space = enumerate_candidates(job)
    result = estimate_columns(space.columns, model=model, training=setup, cluster=spec, profile=REFERENCE_TRAINER)
    for name in ARRAY_FIELDS:
        column = getattr(result, name)
        assert np.isfinite(column).all(), name
        assert (column >= 0).all(), name
    parts = sum(getattr(result, name) for name in MemoryBreakdown.__dataclass_fields__)
    assert np.array_equal(parts, result.device_used_bytes)
    times = sum(getattr(result, name) for name in TimeBreakdown.__dataclass_fields__)
    assert np.allclose(times, result.step_time_s)


@LAWS
@given(questions(), st.floats(0.5, 2.0), st.floats(0.5, 2.0), st.floats(-1e9, 1e9))
def test_breakdowns_sum_under_any_calibration(
    question: tuple[Any, ...], memory: float, host: float, offset: float
) -> None:
    model, spec, profile, values = question
    learned = Calibration(
        memory_scale=memory, memory_offset_bytes=offset, time_scale=1.1, host_factor=host, num_points=3
    )
    result = estimate_columns(
        columns(**values), model=model, training=training(), cluster=spec, profile=profile, calibration=learned
    )
    assert sum(getattr(result, name)[0] for name in MemoryBreakdown.__dataclass_fields__) == result.device_used_bytes[0]
    times = sum(getattr(result, name)[0] for name in TimeBreakdown.__dataclass_fields__)
    assert times == pytest.approx(result.step_time_s[0])
