"""The stand-in for validation keeps the plan's kind of layout and model, at a size any machine can run."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from planner.catalog import load_model
from planner.emit import reduced_differences, reduced_task
from planner.spec import (
    Attention,
    DataSpec,
    DeviceKind,
    ModelFamily,
    ModelSpec,
    OffloadDevice,
    OptimizerName,
    Precision,
    TracedModule,
    TrialTask,
)
from tests.unit.emit.samples import DEEPSPEED_VERSION, make_candidate, make_job

DECODERS = ("llama-3.1-70b", "qwen2.5-0.5b", "qwen3-0.6b", "mistral-7b", "mixtral-8x7b", "gpt2-xl", "gemma-2b", "phi-4")


def reduce_plan(model: ModelSpec, *, optimizer: OptimizerName = OptimizerName.ADAMW, **candidate: Any) -> TrialTask:
    chosen = make_candidate(num_layers=model.num_layers, **candidate)
    job = make_job(model=model, gpus_per_node=1024, optimizer=optimizer)
    return reduced_task(job, chosen, deepspeed_version=DEEPSPEED_VERSION)


@pytest.mark.parametrize("name", DECODERS)
def test_reduced_model_is_tiny_and_keeps_the_traits_of_its_family(name: str) -> None:
    real = load_model(name)
    small = reduce_plan(real, data=8, stage=2).model
    assert small.num_parameters < 2_000_000
    kept = ("family", "model_type", "gated_mlp", "rms_norm", "linear_bias", "tied_embeddings")
    assert [getattr(small, trait) for trait in kept] == [getattr(real, trait) for trait in kept]
    assert (small.num_kv_heads == small.num_heads) == (real.num_kv_heads == real.num_heads)
    assert (small.num_kv_heads == 1) == (real.num_kv_heads == 1)
    assert bool(small.num_experts) == bool(real.num_experts)
    assert (small.head_size * small.num_heads == small.hidden_size) == (
        real.head_size * real.num_heads == real.hidden_size
    )


@pytest.mark.parametrize("name", [name for name in DECODERS if name != "gemma-2b"])
def test_reduced_model_can_be_split_over_two_tensor_parallel_ranks(name: str) -> None:
    small = reduce_plan(load_model(name), data=2, tensor=8 if name != "qwen2.5-0.5b" else 2).model
    for size in (small.num_heads, small.num_kv_heads, small.ffn_hidden_size, small.vocab_size, small.hidden_size):
        assert size % 2 == 0


@pytest.mark.parametrize(
    ("real", "expected"),
    [
        ({"data": 8}, (2, 1, 1)),
        ({"data": 1}, (1, 1, 1)),
        ({"data": 8, "tensor": 8}, (2, 2, 1)),
        ({"data": 4, "pipeline": 16}, (2, 1, 2)),
        ({"data": 4, "tensor": 8, "pipeline": 8}, (1, 2, 2)),
    ],
)
def test_reduced_layout_has_two_of_each_kind_as_far_as_four_ranks_go(
    real: dict[str, int], expected: tuple[int, int, int]
) -> None:
    layout = reduce_plan(load_model("llama-3.1-70b"), **real).candidate.layout
    assert (layout.data_parallel_size, layout.tensor_parallel_size, layout.pipeline_parallel_size) == expected
    assert layout.world_size <= 4


@pytest.mark.parametrize(("pipeline", "uneven"), [(16, True), (18, False)])
def test_reduced_stages_are_uneven_when_the_real_ones_are(pipeline: int, uneven: bool) -> None:
    task = reduce_plan(load_model("llama-3.1-405b"), pipeline=pipeline)
    stages = task.candidate.layout.stage_layers
    assert (len(set(stages)) > 1) == uneven
    assert sum(stages) == task.model.num_layers


@pytest.mark.parametrize(("real", "whole"), [("layers:4", False), ("layers:10", True)])
def test_reduced_checkpointing_covers_a_part_of_a_stage_when_the_real_one_does(real: str, whole: bool) -> None:
    candidate = reduce_plan(load_model("llama-3.1-70b"), pipeline=8, checkpointing=real).candidate
    most = max(candidate.layout.stage_layers)
    assert (candidate.activation_checkpointing.num_layers >= most) == whole
    assert reduce_plan(load_model("llama-3.1-70b"), checkpointing="selective").candidate.activation_checkpointing == (
        make_candidate(checkpointing="selective").activation_checkpointing
    )


def test_reduced_task_runs_two_steps_on_cpu_from_a_config_of_its_own_batch() -> None:
    task = reduce_plan(load_model("gpt2-xl"), data=8, micro=4, accumulation=16, stage=3)
    config = json.loads(task.ds_config_json)
    assert (task.device, task.steps, task.training.data) == (DeviceKind.CPU, 2, DataSpec())
    assert task.training.global_batch_size == config["train_batch_size"] == 2 * 2 * 2
    assert config["zero_optimization"]["stage"] == 3
    assert "fused" not in config["optimizer"]["params"]


def test_what_the_cpu_cannot_do_is_replaced_and_said() -> None:
    model = load_model("llama-3.1-8b")
    changes: dict[str, Any] = {
        "data": 8,
        "stage": 3,
        "precision": Precision.FP16,
        "attention": Attention.FLASH,
        "offload_optimizer": OffloadDevice.CPU,
    }
    task = reduce_plan(model, optimizer=OptimizerName.LION, **changes)
    assert (task.candidate.precision, task.candidate.attention) == (Precision.BF16, Attention.SDPA)
    assert task.candidate.offload_optimizer is OffloadDevice.NONE
    assert task.training.optimizer.name is OptimizerName.ADAMW
    job = make_job(model=model, optimizer=OptimizerName.LION)
    said = " ".join(reduced_differences(job, make_candidate(num_layers=32, **changes)))
    for word in ("2 of 8 ranks", "tiny llama", "fp16", "Lion", "flash", "offloaded"):
        assert word in said
    plain = reduced_differences(make_job(model=model), make_candidate(num_layers=32, data=8))
    assert len(plain) == 1


def test_fp16_stays_where_the_cpu_takes_it() -> None:
    job, candidate = make_job(), make_candidate(precision=Precision.FP16)
    task = reduced_task(job, candidate, deepspeed_version=DEEPSPEED_VERSION, fp16_on_cpu=True)
    assert task.candidate.precision is Precision.FP16
    assert not any("fp16" in said for said in reduced_differences(job, candidate, fp16_on_cpu=True))


def test_sliding_window_slides_in_the_stand_in_when_it_does_in_the_plan() -> None:
    mistral = load_model("mistral-7b")
    job = make_job(model=mistral)
    longer = replace(job, training=replace(job.training, seq_len=mistral.sliding_window * 2))
    candidate = make_candidate(num_layers=mistral.num_layers)
    slides = reduced_task(longer, candidate, deepspeed_version=DEEPSPEED_VERSION)
    assert slides.model.sliding_window < slides.training.seq_len
    still = reduced_task(job, candidate, deepspeed_version=DEEPSPEED_VERSION)
    assert still.model.sliding_window >= still.training.seq_len


def test_factory_runs_as_it_is_with_one_sample_a_rank() -> None:
    traced = TracedModule(
        num_parameters=1000,
        largest_parameter=500,
        saved_bytes_per_sample_fp32=4000,
        fixed_saved_bytes=0,
        forward_flops_per_sample=1000,
        tokens_per_sample=1,
    )
    model = ModelSpec(
        name="mine", family=ModelFamily.MODULE, model_type="module", factory="pkg.module:make", traced=traced
    )
    job = make_job(model=model)
    task = reduced_task(
        job, make_candidate(data=8, micro=4, stage=2, num_layers=0), deepspeed_version=DEEPSPEED_VERSION
    )
    assert task.model == model
    assert task.candidate.batch.micro_batch_size == 1
    assert task.training.seq_len == job.training.seq_len
