"""The ladder down from a chosen candidate: the same layout, ZeRO stage, precision and global batch in less memory.

First smaller micro-batches with more accumulation, then more activation checkpointing, then the optimizer in host
memory: in order of what they cost in time, and none of them moves the loss curve. Whether a step really needs less is
priced elsewhere.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.rules import AXIS_RULES
from planner.space.axes import axis_values, rule_context
from planner.spec import (
    ActivationCheckpointing,
    BatchSplit,
    Candidate,
    CheckpointingKind,
    DeviceKind,
    JobSpec,
    OffloadDevice,
    OptimizerName,
)
from planner.spec._record import record
from planner.spec.columns import columns_of

MAX_BATCH_STEPS = 3  # halved twice, then 1: each failed step costs a start of the whole job
_MORE_CHECKPOINTING = {
    CheckpointingKind.NONE: (CheckpointingKind.SELECTIVE, CheckpointingKind.FULL),
    CheckpointingKind.SELECTIVE: (CheckpointingKind.FULL,),
    CheckpointingKind.LAYERS: (CheckpointingKind.FULL,),
    CheckpointingKind.FULL: (),
}


@record
class Step:
    """`change`: from the step before, in words."""

    candidate: Candidate
    change: str


def less_memory(candidate: Candidate, job: JobSpec) -> tuple[Step, ...]:
    """The legal steps down from a candidate of the job, in order."""
    steps = [Step(candidate=candidate, change="")]
    for micro_batch_size in _smaller(candidate.batch.micro_batch_size):
        batch = BatchSplit(
            micro_batch_size=micro_batch_size,
            gradient_accumulation_steps=candidate.batch.gradient_accumulation_steps
            * (candidate.batch.micro_batch_size // micro_batch_size),
            data_parallel_size=candidate.batch.data_parallel_size,
        )
        change = f"micro-batch {micro_batch_size} x accumulation {batch.gradient_accumulation_steps}"
        steps.append(Step(candidate=replace(steps[-1].candidate, batch=batch), change=change))
    axes = axis_values(job)
    if "activation_checkpointing" not in {axis.axis for axis in axes.left_out}:
        for kind in _MORE_CHECKPOINTING[candidate.activation_checkpointing.kind]:
            more = ActivationCheckpointing(kind=kind)
            changed = replace(steps[-1].candidate, activation_checkpointing=more)
            steps.append(Step(candidate=changed, change=f"activation checkpointing {more}"))
    if _may_offload(candidate, job):
        changed = replace(steps[-1].candidate, offload_optimizer=OffloadDevice.CPU)
        steps.append(Step(candidate=changed, change="optimizer states in host memory"))
    return _legal(tuple(steps[1:]), job)


def _smaller(size: int) -> tuple[int, ...]:
    """Divisors of a micro-batch size, each at most half of the one before; the last is 1."""
    found: list[int] = []
    current = size
    while current > 1:
        is_last = len(found) == MAX_BATCH_STEPS - 1
        current = 1 if is_last else max(d for d in range(1, current // 2 + 1) if size % d == 0)
        found.append(current)
    return tuple(found)


def _may_offload(candidate: Candidate, job: JobSpec) -> bool:
    """On a CPU device and host memory are one; only Adam has a DeepSpeed optimizer that takes over torch's states."""
    return (
        job.cluster.gpu.device is DeviceKind.CUDA
        and candidate.zero_stage >= 1
        and candidate.offload_optimizer is OffloadDevice.NONE
        and job.training.optimizer.name is OptimizerName.ADAMW
    )


def _legal(steps: tuple[Step, ...], job: JobSpec) -> tuple[Step, ...]:
    if not steps:
        return ()
    columns = columns_of(tuple(step.candidate for step in steps), gpus_per_node=job.cluster.gpus_per_node)
    context = rule_context(job, axis_values(job))
    refused = np.zeros(len(columns), dtype=np.bool_)
    for rule in AXIS_RULES:
        if rule.mask is not None:
            refused |= rule.mask(columns, context)
    return tuple(step for step, no in zip(steps, refused) if not no)
