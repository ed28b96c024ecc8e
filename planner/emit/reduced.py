"""The stand-in that proves a plan's kind of layout on this machine: at most four CPU ranks and a tiny model.

Owns what is reduced and what is kept: ZeRO stage, tensor and pipeline parallelism (two of each at most), uneven stages,
accumulation, checkpointing, optimizer and clipping stay. Running it is the app's business.
"""

from __future__ import annotations

from dataclasses import replace

from planner.emit.ds_config import render_ds_config_text
from planner.emit.reduced_model import SmallShape, reduce_model
from planner.emit.script_config import as_reference
from planner.spec import (
    ActivationCheckpointing,
    Attention,
    BatchSplit,
    Candidate,
    CheckpointingKind,
    DataSpec,
    DeviceKind,
    JobSpec,
    ModelSpec,
    OffloadDevice,
    OptimizerName,
    ParallelLayout,
    Precision,
    RunSpec,
    TorchCompile,
    TrainingSpec,
    TrialTask,
    Tuning,
    partition_layers,
)

MAX_RANKS = 4
SEQ_LEN = 32
STEPS = 2


def reduced_task(job: JobSpec, candidate: Candidate, *, deepspeed_version: str, fp16_on_cpu: bool = False) -> TrialTask:
    """Two steps of the same kind of layout on CPU. What differs from the plan is told by `reduced_differences`.

    `fp16_on_cpu`: whether DeepSpeed takes fp16 on this machine's CPU; without it bf16 stands in.
    """
    job = as_reference(job)
    layout = _layout(job.model, candidate)
    model = reduce_model(job.model, _small_shape(job, layout))
    small = _candidate(job.model, candidate, layout=layout, fp16_on_cpu=fp16_on_cpu)
    small_job = replace(
        job,
        model=model,
        training=_training(job, small),
        cluster=replace(job.cluster, gpu=replace(job.cluster.gpu, device=DeviceKind.CPU), nodes=1, groups=()),
    )
    return TrialTask(
        model=model,
        training=small_job.training,
        candidate=small,
        device=DeviceKind.CPU,
        ds_config_json=render_ds_config_text(small, job=small_job, deepspeed_version=deepspeed_version),
        steps=STEPS,
        warmup_steps=0,
    )


def reduced_differences(job: JobSpec, candidate: Candidate, *, fp16_on_cpu: bool = False) -> tuple[str, ...]:
    """What the stand-in does otherwise than the plan, a sentence each, most important first."""
    layout = _layout(job.model, candidate)
    kind = "the model itself" if job.model.factory else f"a tiny {job.model.model_type} model"
    differences = [
        f"{layout.world_size} of {candidate.layout.world_size} ranks, on CPU: data {layout.data_parallel_size} x "
        f"tensor {layout.tensor_parallel_size} x pipeline {layout.pipeline_parallel_size}, with {kind}"
    ]
    if candidate.precision is Precision.FP16 and not fp16_on_cpu:
        differences.append("bf16 stands in for fp16, which DeepSpeed does not take on this CPU")
    if job.training.optimizer.name is OptimizerName.LION:
        differences.append("AdamW stands in for Lion, which DeepSpeed has only as a CUDA kernel")
    if candidate.attention is Attention.FLASH:
        differences.append("torch's attention stands in for the flash kernels, which need a GPU")
    if candidate.tuning.torch_compile is not TorchCompile.NONE:
        differences.append("nothing is compiled: a compiler's minutes would show nothing of the config")
    if _offloads(candidate):
        differences.append("nothing is offloaded, since the stand-in already lives in host memory")
    return tuple(differences)


def _offloads(candidate: Candidate) -> bool:
    return (candidate.offload_optimizer, candidate.offload_param) != (OffloadDevice.NONE, OffloadDevice.NONE)


def _layout(model: ModelSpec, candidate: Candidate) -> ParallelLayout:
    real = candidate.layout
    tensor, pipeline = min(real.tensor_parallel_size, 2), min(real.pipeline_parallel_size, 2)
    room = MAX_RANKS // (tensor * pipeline)
    num_layers = _num_layers(model, candidate, pipeline=pipeline)
    return ParallelLayout(
        data_parallel_size=min(real.data_parallel_size, room, 2),
        tensor_parallel_size=tensor,
        pipeline_parallel_size=pipeline,
        stage_layers=partition_layers(num_layers, pipeline) if num_layers else (),
    )


def _num_layers(model: ModelSpec, candidate: Candidate, *, pipeline: int) -> int:
    """As few as show the plan's traits: two a stage where only some are checkpointed or some are dense, one more in
    all where the real stages are uneven. A factory's layers are not known, hence 0."""
    if not candidate.layout.stage_layers:
        return 0
    mixed = _checkpoints_in_part(candidate) or 0 < model.num_dense_layers < model.num_layers
    per_stage = 2 if mixed or pipeline == 1 else 1
    return pipeline * per_stage + (len(set(candidate.layout.stage_layers)) > 1)


def _checkpoints_in_part(candidate: Candidate) -> bool:
    checkpointing = candidate.activation_checkpointing
    most = max(candidate.layout.stage_layers, default=0)
    return checkpointing.kind is CheckpointingKind.LAYERS and checkpointing.num_layers < most


def _small_shape(job: JobSpec, layout: ParallelLayout) -> SmallShape:
    slides = 0 < job.model.sliding_window < job.training.seq_len
    return SmallShape(num_layers=max(sum(layout.stage_layers), 1), slides=slides)


def _candidate(model: ModelSpec, candidate: Candidate, *, layout: ParallelLayout, fp16_on_cpu: bool) -> Candidate:
    no_fp16 = candidate.precision is Precision.FP16 and not fp16_on_cpu
    return Candidate(
        layout=layout,
        batch=BatchSplit(
            micro_batch_size=1 if model.factory else min(candidate.batch.micro_batch_size, 2),
            gradient_accumulation_steps=min(candidate.batch.gradient_accumulation_steps, 2),
            data_parallel_size=layout.data_parallel_size,
        ),
        zero_stage=candidate.zero_stage,
        precision=Precision.BF16 if no_fp16 else candidate.precision,
        activation_checkpointing=_checkpointing(candidate, layout),
        attention=Attention.SDPA if candidate.attention is Attention.FLASH else candidate.attention,
        tuning=_tuning(candidate.tuning, layout),
    )


def _tuning(tuning: Tuning, layout: ParallelLayout) -> Tuning:
    """The settings that a small stand-in on CPU can have: not those of a GPU, nor sizes made for large models."""
    hpz = tuning.zero_hpz_partition_size > 1 and layout.data_parallel_size > 1
    return Tuning(
        cross_entropy=tuning.cross_entropy,
        overlap_comm=tuning.overlap_comm,
        grad_accum_dtype=tuning.grad_accum_dtype,
        zero_hpz_partition_size=2 if hpz else 1,
    )


def _checkpointing(candidate: Candidate, layout: ParallelLayout) -> ActivationCheckpointing:
    if candidate.activation_checkpointing.kind is not CheckpointingKind.LAYERS:
        return candidate.activation_checkpointing
    layers = 1 if _checkpoints_in_part(candidate) else max(layout.stage_layers, default=1)
    return ActivationCheckpointing(kind=CheckpointingKind.LAYERS, num_layers=layers)


def _training(job: JobSpec, small: Candidate) -> TrainingSpec:
    """The job's training with a short sequence, the small batch, synthetic tokens and no files. A factory keeps its
    sequence length, on which its module may depend."""
    training = job.training
    optimizer = training.optimizer
    if optimizer.name is OptimizerName.LION:
        optimizer = replace(optimizer, name=OptimizerName.ADAMW)
    return replace(
        training,
        seq_len=training.seq_len if job.model.factory else min(training.seq_len, SEQ_LEN),
        global_batch_size=small.batch.global_batch_size,
        optimizer=optimizer,
        steps=STEPS,
        warmup_steps=0,
        data=DataSpec(),
        checkpoint_dir="",
        checkpoint_interval_steps=0,
        run=RunSpec(),
    )
