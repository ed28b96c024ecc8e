"""The parts of this rank: where an engine keeps the fp32 value of each parameter, and what its optimizer adds to it.

Owns what is known of DeepSpeed's five optimizers (0.19.8): how each cuts parameters, and under which names it saves
them. `checkpoint_parts` writes the parts down when a checkpoint is saved; `portable_load` fills them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from deepspeed.pipe import PipelineModule
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
from torch import distributed, nn

from planner.runtime.checkpoint_files import Place, ShardedName, place
from planner.spec._record import record

# Classes whose update of a value looks at no other value: torch's, and DeepSpeed's kernels for GPU and host.
SAME_FOR_EACH_ELEMENT = ("Adam", "AdamW", "SGD", "FusedAdam", "FusedLion", "DeepSpeedCPUAdam", "DeepSpeedCPULion")


class NoParts(Exception):
    """This engine's state cannot be taken apart; the message says why, in a user's words."""


@record
class LiveTensor:
    """One tensor of fp32 values with its optimizer states, and where DeepSpeed's files hold both."""

    master: torch.Tensor
    weights: Place
    states_at: Place


@record
class LivePart:
    """`count` elements of a parameter's flattened shard, from `start` on, are in `tensor` from `offset` on."""

    parameter: nn.Parameter
    named: ShardedName
    start: int
    count: int
    tensor: int
    offset: int


@record
class LiveParts:
    """`inner`: torch's optimizer, whose `state` has the masters for keys. `is_shared`: data-parallel ranks hold
    different parts; otherwise each holds all."""

    inner: torch.optim.Optimizer
    tensors: tuple[LiveTensor, ...]
    parts: tuple[LivePart, ...]
    is_shared: bool


def live_parts(engine: Any, *, directory: str = "", name: str = "") -> LiveParts:
    """The parts of this rank. `directory` and `name`: of the checkpoint, for the names of DeepSpeed's files.

    Raises NoParts for an engine whose state is not a value an element.
    """
    optimizer = engine.optimizer
    inner = getattr(optimizer, "optimizer", optimizer)
    if type(inner).__name__ not in SAME_FOR_EACH_ELEMENT:
        raise NoParts(f"the optimizer {type(inner).__name__} keeps states that belong to whole matrices")
    names = {one: named_parameter(path, one) for path, one in engine.module.named_parameters()}
    if any(not parameter.requires_grad for parameter in names):
        raise NoParts("some parameters are frozen, and the optimizer has no values of theirs")
    files = _Files(engine, directory, name)
    if isinstance(optimizer, DeepSpeedZeroOptimizer_Stage3):
        return _of_stage3(optimizer, inner, names, files)
    if isinstance(optimizer, DeepSpeedZeroOptimizer):
        return _of_flat(optimizer.single_partition_of_fp32_groups, inner, names, files)
    if isinstance(optimizer, BF16_Optimizer):
        return _of_flat(optimizer.fp32_groups_flat_partition, inner, names, files)
    if isinstance(optimizer, FP16_UnfusedOptimizer):
        return _of_unfused(optimizer, inner, names, files)
    if isinstance(optimizer, torch.optim.Optimizer):
        return _of_plain(engine, inner, names, files)
    raise NoParts(f"DeepSpeed's {type(optimizer).__name__} is not known")


def named_parameter(path: str, parameter: nn.Parameter) -> ShardedName:
    """The parameter by transformers' name, where the runtime built it in blocks, else by its path in the module."""
    name = getattr(parameter, "canonical", path)
    shard = getattr(parameter, "shard", None)
    if shard is None:
        return ShardedName(name=name, shape=tuple(getattr(parameter, "ds_shape", parameter.shape)))
    return ShardedName(name=name, shape=tuple(shard.full_shape), dim=shard.dim, pieces=tuple(shard.pieces))


class _Files:
    """DeepSpeed's names for the files that this rank's states go to."""

    def __init__(self, engine: Any, directory: str, name: str) -> None:
        self._engine = engine
        self._where = (directory, name)

    @property
    def zero(self) -> str:
        return Path(self._engine._get_zero_ckpt_name(*self._where)).name

    @property
    def model(self) -> str:
        return Path(self._engine._get_ckpt_name(*self._where)).name


def _of_flat(masters: Any, inner: Any, names: dict[nn.Parameter, ShardedName], files: _Files) -> LiveParts:
    """ZeRO-1 and 2, and bf16 pipelines: all parameters one after the other, cut into equal partitions."""
    parts = []
    for parameter, named in names.items():
        mapping = getattr(parameter, "_hp_mapping", None)
        if mapping is not None:
            parts.append(
                LivePart(
                    parameter=parameter,
                    named=named,
                    start=int(mapping.lp_fragment_address.start),
                    count=int(mapping.lp_fragment_address.numel),
                    tensor=int(mapping.param_group_index),
                    offset=int(mapping.hp_fragment_address.start),
                )
            )
    tensors = tuple(
        LiveTensor(
            master=master,
            weights=place(files.zero, "optimizer_state_dict", "single_partition_of_fp32_groups", group),
            states_at=place(files.zero, "optimizer_state_dict", "base_optimizer_state", "state", group),
        )
        for group, master in enumerate(masters)
    )
    return LiveParts(inner=inner, tensors=tensors, parts=tuple(parts), is_shared=True)


def _of_stage3(optimizer: Any, inner: Any, names: dict[nn.Parameter, ShardedName], files: _Files) -> LiveParts:
    """ZeRO-3: each parameter cut into equal shards, of which the last is padded."""
    parts = []
    for parameter, named in names.items():
        group, offset, size = optimizer.grad_position[optimizer.get_param_id(parameter)]
        start = distributed.get_rank(parameter.ds_process_group) * size
        count = min(size, max(parameter.ds_numel - start, 0))
        if count:
            parts.append(
                LivePart(parameter=parameter, named=named, start=start, count=count, tensor=group, offset=offset)
            )
    tensors = tuple(
        LiveTensor(
            master=master,
            weights=place(files.zero, "optimizer_state_dict", "fp32_flat_groups", number),
            states_at=place(files.zero, "optimizer_state_dict", "optimizer_state_dict", "state", number),
        )
        for number, master in enumerate(optimizer.fp32_partitioned_groups_flat)
    )
    return LiveParts(inner=inner, tensors=tensors, parts=tuple(parts), is_shared=True)


def _of_unfused(optimizer: Any, inner: Any, names: dict[nn.Parameter, ShardedName], files: _Files) -> LiveParts:
    """16 bits without ZeRO: an fp32 copy of each parameter."""
    tensors: list[LiveTensor] = []
    parts: list[LivePart] = []
    for group, (masters, weights) in enumerate(zip(optimizer.fp32_groups, optimizer.fp16_groups)):
        for index, (master, parameter) in enumerate(zip(masters, weights)):
            number = len(tensors)
            parts.append(_whole(parameter, names[parameter], tensor=number))
            tensors.append(
                LiveTensor(
                    master=master,
                    weights=place(files.model, "optimizer", "fp32_groups", group, index),
                    states_at=place(files.model, "optimizer", "optimizer_state_dict", "state", number),
                )
            )
    return LiveParts(inner=inner, tensors=tuple(tensors), parts=tuple(parts), is_shared=False)


def _of_plain(engine: Any, inner: Any, names: dict[nn.Parameter, ShardedName], files: _Files) -> LiveParts:
    """fp32 without ZeRO: the parameters themselves."""
    tensors, parts = [], []
    weights = _weights_of_layers(engine.module) if isinstance(engine.module, PipelineModule) else {}
    paths = {parameter: path for path, parameter in engine.module.named_parameters()}
    for number, parameter in enumerate(one for group in inner.param_groups for one in group["params"]):
        parts.append(_whole(parameter, names[parameter], tensor=number))
        tensors.append(
            LiveTensor(
                master=parameter,
                weights=weights.get(parameter, place(files.model, "module", paths[parameter])),
                states_at=place(files.model, "optimizer", "state", number),
            )
        )
    return LiveParts(inner=inner, tensors=tuple(tensors), parts=tuple(parts), is_shared=False)


def _weights_of_layers(module: Any) -> dict[nn.Parameter, Place]:
    """Where a pipeline stage saves its weights: a file for each of its blocks."""
    return {
        parameter: place(Path(module.ckpt_layer_path("", index)).name, path)
        for index, block in enumerate(module.forward_funcs)
        if isinstance(block, nn.Module)
        for path, parameter in block.named_parameters()
    }


def _whole(parameter: nn.Parameter, named: ShardedName, *, tensor: int) -> LivePart:
    return LivePart(parameter=parameter, named=named, start=0, count=parameter.numel(), tensor=tensor, offset=0)
