"""Jobs and candidates for the emit tests, with every part changeable by name."""

from __future__ import annotations

import dataclasses
from typing import Any

from planner.catalog import model_from_config
from planner.spec import (
    ActivationCheckpointing,
    BatchSplit,
    Candidate,
    ClusterSpec,
    DeviceKind,
    GpuSpec,
    JobSpec,
    LaunchSpec,
    LinkSpec,
    ModelSpec,
    OptimizerName,
    OptimizerSpec,
    ParallelLayout,
    Precision,
    TrainingSpec,
    partition_layers,
)

DEEPSPEED_VERSION = "0.19.8"

TINY_LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}


def tiny_model(**changes: Any) -> ModelSpec:
    return model_from_config({**TINY_LLAMA, **changes}, "tiny-llama")


def gpu(device: DeviceKind = DeviceKind.CUDA) -> GpuSpec:
    return GpuSpec(
        name="test-gpu",
        device=device,
        memory_nominal_bytes=80 * 2**30,
        memory_usable_bytes=79 * 2**30,
        memory_bandwidth_bytes_per_s=3e12,
        peak_fp32_flops_per_s=6e13,
        peak_fp16_flops_per_s=9e14,
        peak_bf16_flops_per_s=9e14,
    )


def make_job(
    *,
    model: ModelSpec | None = None,
    device: DeviceKind = DeviceKind.CUDA,
    nodes: int = 1,
    gpus_per_node: int = 8,
    optimizer: OptimizerName = OptimizerName.ADAMW,
    launch: LaunchSpec | None = None,
    global_batch_size: int = 16,
) -> JobSpec:
    link = LinkSpec(name="link", bandwidth_bytes_per_s=1e11, latency_s=1e-6)
    return JobSpec(
        model=model or tiny_model(),
        training=TrainingSpec(
            seq_len=128,
            global_batch_size=global_batch_size,
            optimizer=OptimizerSpec(name=optimizer, momentum=0.9),
        ),
        cluster=ClusterSpec(
            gpu=gpu(device),
            nodes=nodes,
            gpus_per_node=gpus_per_node,
            intra_node_link=link,
            inter_node_link=link,
            host_memory_bytes=2**40,
        ),
        launch=launch or LaunchSpec(),
    )


def make_candidate(
    *,
    data: int = 1,
    tensor: int = 1,
    pipeline: int = 1,
    micro: int = 1,
    accumulation: int = 2,
    stage: int = 0,
    precision: Precision = Precision.BF16,
    checkpointing: str = "none",
    num_layers: int = 4,
    **changes: Any,
) -> Candidate:
    candidate = Candidate(
        layout=ParallelLayout(
            data_parallel_size=data,
            tensor_parallel_size=tensor,
            pipeline_parallel_size=pipeline,
            stage_layers=partition_layers(num_layers, pipeline) if num_layers else (),
        ),
        batch=BatchSplit(micro_batch_size=micro, gradient_accumulation_steps=accumulation, data_parallel_size=data),
        zero_stage=stage,
        precision=precision,
        activation_checkpointing=ActivationCheckpointing.parse(checkpointing),
    )
    return dataclasses.replace(candidate, **changes)
