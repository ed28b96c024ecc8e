"""What a pipeline stage needs to hear from neighbours that do not exist, and when it is done with its micro-batches.

DeepSpeed 0.19.8 (runtime/pipe/engine.py, `_send_tensor_meta`; runtime/utils.py, `PartitionedTensor.to_meta`) sends two
kinds of integers beside activations and gradients: once, the types and shapes of what will follow, and with everything
that is shared out over the tensor-parallel ranks, how it is cut. Both follow from the task.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from deepspeed.runtime.pipe.engine import TENSOR_META_SIZE, PipelineEngine
from deepspeed.runtime.utils import partition_uniform

from planner.runtime.grid import coordinates_of
from planner.runtime.models import DTYPES, config_of
from planner.spec import Phase, TrialTask

_SINGLE, _TUPLE = 0, 2  # how DeepSpeed says that one tensor, or a tuple of tensors, will follow
# What the pipeline's engine calls when the last micro-batch is done (`_exec_reduce_grads`, `_exec_optimizer_step`).
_STEP_END_METHODS = ("allreduce_gradients", "_bf16_reduce_grads", "_take_model_step")


class StageMessages:
    """The integers that the neighbours of one rank would send."""

    def __init__(self, task: TrialTask, *, rank: int) -> None:
        self._task = task
        self._rank = rank
        self._on_device: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}

    def fill(self, tensor: torch.Tensor) -> None:
        """Write what a neighbour would have sent into the tensor; ValueError when its meaning is not known."""
        if tensor.dtype == torch.int32 and tensor.numel() == TENSOR_META_SIZE:
            content = self._description
        elif tensor.dtype == torch.int64 and tensor.numel() == len(self._cut):
            content = self._cut
        else:
            raise ValueError(f"a stage waits for {tensor.numel()} integers ({tensor.dtype}) of unknown meaning")
        key = (tensor.dtype, tensor.device)
        if key not in self._on_device:  # Keep: a copy from the host would have it wait for the device every time
            self._on_device[key] = torch.tensor(content, dtype=tensor.dtype, device=tensor.device)
        tensor[: len(content)].copy_(self._on_device[key])

    @cached_property
    def _shape(self) -> list[int]:
        """Of the hidden states between two stages."""
        task = self._task
        return [task.candidate.batch.micro_batch_size, task.training.seq_len, config_of(task).hidden_size]

    @cached_property
    def _partition(self) -> list[int]:
        """Where the parts of the flattened hidden states begin, and the end of the last."""
        num_parts = self._task.candidate.layout.tensor_parallel_size
        return list(partition_uniform(num_items=torch.Size(self._shape).numel(), num_parts=num_parts))

    @cached_property
    def _cut(self) -> list[int]:
        part = coordinates_of(self._rank, self._task.candidate.layout).tensor_rank
        return [len(self._shape), *self._shape, len(self._partition) - 1, part, *self._partition]

    @cached_property
    def _description(self) -> list[int]:
        ids = PipelineEngine.DTYPE_TO_ID
        hidden_id = ids[DTYPES[self._task.candidate.precision]]
        pipeline = json.loads(self._task.ds_config_json).get("pipeline", {})
        is_split = self._task.candidate.layout.tensor_parallel_size > 1
        if not (is_split and pipeline.get("pipe_partitioned", True)):
            return [_SINGLE, hidden_id, len(self._shape), *self._shape]
        part = coordinates_of(self._rank, self._task.candidate.layout).tensor_rank
        elements = self._partition[part + 1] - self._partition[part]
        return [_TUPLE, 2, ids[torch.int64], 1, len(self._cut), hidden_id, 1, elements]


def announce_step_end(engine: Any, on_phase: Callable[[Phase], None]) -> None:
    """Have a pipeline's engine enter `OPTIMIZER_STEP` when the last micro-batch of a step is done."""

    def announcing(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            on_phase(Phase.OPTIMIZER_STEP)
            return method(*args, **kwargs)

        return call

    for name in _STEP_END_METHODS:
        setattr(engine, name, announcing(getattr(engine, name)))
