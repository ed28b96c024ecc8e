"""The DeepSpeed config of a candidate: what it says, what it refuses, what it leaves to task.json."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from planner.emit import (
    NOT_EMITTED,
    bucket_elements,
    explain_ds_config,
    render_ds_config,
    render_ds_config_text,
    render_task,
    render_task_text,
)
from planner.errors import NotExpressible
from planner.rules import DRIFTING_DEFAULTS
from planner.spec import (
    AccumulationType,
    ActivationCheckpointing,
    Allocator,
    Attention,
    Candidate,
    CrossEntropy,
    DeviceKind,
    JobSpec,
    OffloadDevice,
    OptimizerKernel,
    OptimizerName,
    Overlap,
    ParallelLayout,
    Precision,
    TorchCompile,
    TrialTask,
    Tuning,
)
from planner.spec.codec import from_plain
from tests.unit.emit.samples import DEEPSPEED_VERSION, make_candidate, make_job, tiny_model


def render(candidate: Candidate, job: JobSpec | None = None, version: str = DEEPSPEED_VERSION) -> dict[str, Any]:
    return render_ds_config(candidate, job=job or make_job(), deepspeed_version=version)


def value_at(config: dict[str, Any], path: str) -> Any:
    value: Any = config
    for key in path.split("."):
        value = value[key]
    return value


def test_batch_triple_counts_data_parallel_ranks_only() -> None:
    config = render(make_candidate(data=2, tensor=2, pipeline=2, micro=3, accumulation=4))
    assert config["train_micro_batch_size_per_gpu"] == 3
    assert config["gradient_accumulation_steps"] == 4
    assert config["train_batch_size"] == 3 * 4 * 2


@pytest.mark.parametrize("drifting", DRIFTING_DEFAULTS, ids=lambda drifting: drifting.path)
def test_every_default_that_drifts_between_versions_is_written(drifting: Any) -> None:
    cpu = OffloadDevice.CPU
    config = render(make_candidate(data=2, stage=3, offload_optimizer=cpu, offload_param=cpu))
    written = value_at(config, drifting.path)
    chosen_by_the_plan = drifting.path in ("gradient_clipping", "zero_optimization.overlap_comm")
    assert chosen_by_the_plan or written == drifting.write
    assert isinstance(written, type(drifting.write))


def test_gradient_clipping_of_none_is_written_as_zero() -> None:
    job = make_job()
    unclipped = replace(job, training=replace(job.training, gradient_clipping=0.0))
    assert render(make_candidate(), unclipped)["gradient_clipping"] == 0.0


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16, Precision.BF16])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_gradients_accumulate_in_the_type_of_the_weights(precision: Precision, stage: int) -> None:
    config = render(make_candidate(stage=stage, precision=precision))
    assert config["data_types"]["grad_accum_dtype"] == precision.value
    assert ("fp16" in config, "bf16" in config) == (precision is Precision.FP16, precision is Precision.BF16)


def test_fp16_scales_dynamically_from_a_scale_that_does_not_skip_the_first_steps() -> None:
    fp16 = render(make_candidate(precision=Precision.FP16))["fp16"]
    assert fp16["loss_scale"] == 0
    assert 8 <= fp16["initial_scale_power"] < 16


@pytest.mark.parametrize(
    ("parameters", "tensor", "expected"),
    [(8_000_000_000, 1, 500_000_000), (100_000_001, 1, 100_000_002), (100_000_000, 2, 50_000_000), (10, 1, 1_000_000)],
)
def test_buckets_never_exceed_what_one_rank_holds_and_are_even(parameters: int, tensor: int, expected: int) -> None:
    model = tiny_model()
    counts = replace(model.counts, other=model.counts.other + max(0, parameters - model.num_parameters))
    job = make_job(model=replace(model, counts=counts))
    candidate = make_candidate(data=2, tensor=tensor, stage=2)
    assert bucket_elements(candidate, job=job) == expected
    assert render(candidate, job)["zero_optimization"]["reduce_bucket_size"] == expected


def test_optimizer_of_a_gpu_job_is_torchs_fused_adamw_and_of_a_cpu_job_its_plain_one() -> None:
    on_gpu = render(make_candidate())["optimizer"]["params"]
    on_cpu = render(make_candidate(), make_job(device=DeviceKind.CPU))["optimizer"]["params"]
    assert (on_gpu["torch_adam"], on_gpu["fused"]) == (True, True)
    assert on_cpu["torch_adam"] is True and "fused" not in on_cpu


def test_optimizer_in_host_memory_is_deepspeeds_own() -> None:
    config = render(make_candidate(stage=2, offload_optimizer=OffloadDevice.CPU))
    assert config["optimizer"]["params"]["torch_adam"] is False
    assert config["zero_optimization"]["offload_optimizer"] == {"device": "cpu", "pin_memory": True}


def test_untested_optimizer_is_allowed_exactly_where_zero_asks_for_it() -> None:
    sgd = make_job(optimizer=OptimizerName.SGD)
    assert "zero_allow_untested_optimizer" not in render(make_candidate(stage=0), sgd)
    assert render(make_candidate(stage=1), sgd)["zero_allow_untested_optimizer"] is True
    assert "zero_allow_untested_optimizer" not in render(make_candidate(stage=1))


@pytest.mark.parametrize(
    ("optimizer", "device", "changes"),
    [
        (OptimizerName.ADAM8BIT, DeviceKind.CUDA, {}),
        (OptimizerName.LION, DeviceKind.CPU, {}),
        (OptimizerName.SGD, DeviceKind.CUDA, {"stage": 2, "offload_optimizer": OffloadDevice.CPU}),
        (OptimizerName.MUON, DeviceKind.CUDA, {"tensor": 2}),
        (OptimizerName.MUON, DeviceKind.CUDA, {"pipeline": 2}),
        (OptimizerName.ADAMW, DeviceKind.CUDA, {"precision": Precision.FP8}),
        (OptimizerName.ADAMW, DeviceKind.CUDA, {"stage": 0, "offload_optimizer": OffloadDevice.CPU}),
        (OptimizerName.ADAMW, DeviceKind.CUDA, {"stage": 2, "offload_param": OffloadDevice.CPU}),
        (OptimizerName.ADAMW, DeviceKind.CUDA, {"stage": 3, "offload_param": OffloadDevice.NVME}),
    ],
)
def test_what_json_cannot_say_is_not_expressible(
    optimizer: OptimizerName, device: DeviceKind, changes: dict[str, Any]
) -> None:
    with pytest.raises(NotExpressible):
        render(make_candidate(**changes), make_job(optimizer=optimizer, device=device))


@pytest.mark.parametrize("version", ["0.19.6", "0.19.7", "0.19.8", "0.19.9"])
def test_supported_versions_know_every_key(version: str) -> None:
    assert render(make_candidate(stage=3, data=2), version=version)


@pytest.mark.parametrize("version", ["0.18.9", "0.19.5", "not a version"])
def test_version_the_tables_do_not_reach_is_not_expressible(version: str) -> None:
    with pytest.raises(NotExpressible):
        render(make_candidate(), version=version)


def test_text_is_the_same_bytes_every_time_and_reads_back() -> None:
    job, candidate = make_job(), make_candidate(data=2, stage=3)
    first = render_ds_config_text(candidate, job=job, deepspeed_version=DEEPSPEED_VERSION)
    again = render_ds_config_text(candidate, job=job, deepspeed_version=DEEPSPEED_VERSION)
    assert first == again and first.endswith("}\n")
    assert json.loads(first) == render(candidate, job)


def test_every_key_that_is_written_is_explained() -> None:
    config = render(make_candidate(data=2, stage=3))
    explained = dict(explain_ds_config(config))
    assert explained["zero_optimization.stage"] and explained["gradient_clipping"]
    assert all(why and why.isprintable() for why in explained.values())


def leaf_fields(kind: Any = Candidate, prefix: str = "") -> Iterator[str]:
    hints = {field.name: field.type for field in dataclasses.fields(kind)}
    nested = {"layout": ParallelLayout, "batch": type(make_candidate().batch), "tuning": Tuning}
    for name in hints:
        if not prefix and name in nested:
            yield from leaf_fields(nested[name], f"{name}.")
        else:
            yield f"{prefix}{name}"


BASE = make_candidate(data=2, pipeline=2, stage=1)
CHANGES: dict[str, tuple[Candidate, Candidate]] = {
    "layout.data_parallel_size": (BASE, make_candidate(data=4, pipeline=2, stage=1)),
    "layout.tensor_parallel_size": (BASE, make_candidate(data=2, tensor=2, pipeline=2, stage=1)),
    "layout.pipeline_parallel_size": (BASE, make_candidate(data=2, pipeline=4, stage=1)),
    "layout.stage_layers": (BASE, replace(BASE, layout=replace(BASE.layout, stage_layers=(1, 3)))),
    "batch.micro_batch_size": (BASE, make_candidate(data=2, pipeline=2, stage=1, micro=2)),
    "batch.gradient_accumulation_steps": (BASE, make_candidate(data=2, pipeline=2, stage=1, accumulation=4)),
    "batch.data_parallel_size": (BASE, make_candidate(data=4, pipeline=2, stage=1)),
    "zero_stage": (BASE, replace(BASE, zero_stage=0)),
    "precision": (BASE, replace(BASE, precision=Precision.FP32)),
    "activation_checkpointing": (BASE, replace(BASE, activation_checkpointing=ActivationCheckpointing.parse("full"))),
    "attention": (BASE, replace(BASE, attention=Attention.EAGER)),
    "offload_optimizer": (BASE, replace(BASE, offload_optimizer=OffloadDevice.CPU)),
    "offload_param": (
        make_candidate(stage=3),
        make_candidate(stage=3, offload_param=OffloadDevice.CPU),
    ),
    **{
        f"tuning.{name}": (make_candidate(data=2, stage=3), make_candidate(data=2, stage=3, tuning=Tuning(**change)))
        for name, change in {
            "torch_compile": {"torch_compile": TorchCompile.LAYER},
            "cross_entropy": {"cross_entropy": CrossEntropy.CHUNKED},
            "optimizer_kernel": {"optimizer_kernel": OptimizerKernel.DEEPSPEED},
            "allocator": {"allocator": Allocator.EXPANDABLE_SEGMENTS},
            "overlap_comm": {"overlap_comm": Overlap.OFF},
            "grad_accum_dtype": {"grad_accum_dtype": AccumulationType.FP32},
            "zero_hpz_partition_size": {"zero_hpz_partition_size": 2},
            "reduce_bucket_size": {"reduce_bucket_size": 50_000_000},
            "allgather_bucket_size": {"allgather_bucket_size": 50_000_000},
            "stage3_prefetch_bucket_size": {"stage3_prefetch_bucket_size": 10_000},
            "stage3_max_live_parameters": {"stage3_max_live_parameters": 10_000},
            "stage3_param_persistence_threshold": {"stage3_param_persistence_threshold": 10_000},
        }.items()
    },
}


def test_every_field_of_a_candidate_is_walked() -> None:
    assert set(CHANGES) == set(leaf_fields())
    assert set(NOT_EMITTED) <= set(CHANGES)


@pytest.mark.parametrize("field", CHANGES)
def test_field_of_a_candidate_changes_the_config_or_is_named_as_not_emitted_and_changes_the_task(field: str) -> None:
    job = make_job()
    before, after = CHANGES[field]
    if field in NOT_EMITTED:
        assert render_task_text(before, job=job) != render_task_text(after, job=job)
    else:
        assert render(before, job) != render(after, job)


def test_task_reads_back_and_leaves_the_config_to_its_file() -> None:
    job, candidate = make_job(), make_candidate(data=2, stage=2)
    task = from_plain(TrialTask, json.loads(render_task_text(candidate, job=job)))
    assert task == render_task(candidate, job=job)
    assert (task.candidate, task.ds_config_json, task.steps) == (candidate, "", job.training.steps)


def test_accumulation_type_is_explained_by_stage() -> None:
    asked = Tuning(grad_accum_dtype=AccumulationType.FP32)
    whys = {
        stage: dict(explain_ds_config(render(make_candidate(data=2, stage=stage))))["data_types.grad_accum_dtype"]
        for stage in range(4)
    }
    assert "refused" in whys[0] and "unsharded" in whys[1] and "list it" in whys[2] and whys[2] == whys[3]
    for stage in (1, 2, 3):
        config = render(make_candidate(data=2, stage=stage, tuning=asked))
        assert config["data_types"] == {"grad_accum_dtype": "fp32"}
        assert "the job lists it" in dict(explain_ds_config(config))["data_types.grad_accum_dtype"]
