"""Low-rank adapters (LoRA, arXiv:2106.09685) on a layer's attention projections: y = W x + B A x, W frozen.

Owns adding them, at any tensor-parallel size. `alpha` equals the rank, so the product is not scaled; B starts at zero.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from planner.runtime.grid import TensorGroup
from planner.runtime.initialisation import FirstValues
from planner.runtime.lora_names import DOWN, UP
from planner.runtime.tensor_parallel import RowParallelLinear, Shard, leave_region, sum_gradient_over

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj", "c_attn", "c_proj")


def freeze(module: nn.Module) -> None:
    """Train none of the parameters that are there."""
    for parameter in module.parameters():
        parameter.requires_grad_(False)


def adapt_attention(attention: nn.Module, *, rank: int, group: TensorGroup) -> None:
    """Give every projection of an attention module (on the meta device, already split) its pair of matrices."""
    for name in PROJECTIONS:
        projection = getattr(attention, name, None)
        if projection is not None:
            _adapt(projection, rank=rank, group=group)


def complete_adapter_gradients(attention: nn.Module, group: TensorGroup) -> None:
    """Sum the gradients of matrices that are whole but used inside a region, once the parameters are real."""
    for projection in attention.children():
        if group.size > 1 and hasattr(projection, DOWN) and not isinstance(projection, RowParallelLinear):
            sum_gradient_over(group, getattr(projection, DOWN))


def first_adapter_values(name: str, shape: tuple[int, ...]) -> FirstValues | None:
    """How an adapter's matrix starts; None for other parameters."""
    if name.endswith(DOWN):
        return FirstValues(mean=0.0, deviation=1.0 / math.sqrt(shape[1]))
    return FirstValues(mean=0.0) if name.endswith(UP) else None


def is_transposed(projection: nn.Module) -> bool:
    """Whether the weight is (in, out), as transformers' Conv1D keeps it."""
    return type(projection).__name__ == "Conv1D" or bool(getattr(projection, "transposed", False))


def _adapt(projection: nn.Module, *, rank: int, group: TensorGroup) -> None:
    shard: Shard | None = getattr(projection.weight, "shard", None)
    transposed = is_transposed(projection)
    outputs, inputs = _features(tuple(projection.weight.shape), transposed=transposed)
    down = nn.Parameter(torch.empty(rank, inputs, device="meta"))
    up = nn.Parameter(torch.empty(outputs, rank, device="meta"))
    split_inputs = isinstance(projection, RowParallelLinear)
    if shard is not None:
        full_outputs, full_inputs = _features(shard.full_shape, transposed=transposed)
        if split_inputs:
            down.shard = Shard(full_shape=(rank, full_inputs), dim=1, pieces=shard.pieces)
        else:
            up.shard = Shard(full_shape=(full_outputs, rank), dim=0, pieces=shard.pieces)
    projection.register_parameter(DOWN, down)
    projection.register_parameter(UP, up)

    def add(module: nn.Module, args: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
        narrow = functional.linear(args[0], getattr(module, DOWN))
        if split_inputs:
            narrow = leave_region(narrow, group)  # sum what is narrow, not what is wide
        return output + functional.linear(narrow, getattr(module, UP))

    projection.register_forward_hook(add)


def _features(shape: tuple[int, ...], *, transposed: bool) -> tuple[int, int]:
    """(out, in) of a weight."""
    return (shape[1], shape[0]) if transposed else (shape[0], shape[1])
