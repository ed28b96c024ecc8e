"""Tensor parallelism: layers whose matrices are split over a group of ranks, after Megatron-LM (arXiv:1909.08053).

A *region* is what lies between `enter_region` (identity forward, gradient summed backward) and `leave_region` (summed
forward, identity backward). Inside it each rank works on its own heads or feed-forward columns; activations outside
are the same on every rank. A parameter that is whole on every rank but used inside a region gets only a part of its
gradient, which `sum_gradient_over` completes.

Owns the operations and how one parameter is cut. Which parameters of which model are cut how belongs to `families`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed, nn
from torch.nn import functional

from planner.errors import InputError
from planner.runtime.grid import TensorGroup
from planner.spec._record import record

IGNORED_LABEL = -100  # positions with this label do not count, as in torch's and transformers' losses


@record
class Shard:
    """Which part of a full parameter this rank holds: `pieces` (start, stop) along `dim`, one after the other."""

    full_shape: tuple[int, ...]
    dim: int
    pieces: tuple[tuple[int, int], ...]


class _EnterRegion(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, group: TensorGroup) -> torch.Tensor:
        ctx.group = group
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        gradient = gradients[0].contiguous()
        distributed.all_reduce(gradient, group=ctx.group.process_group)
        return gradient, None


class _LeaveRegion(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, partial: torch.Tensor, group: TensorGroup) -> torch.Tensor:
        # Keep: a copy, because selective checkpointing holds on to the matrix product itself and would sum it twice.
        total = partial.clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(total, group=group.process_group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None


def enter_region(hidden: torch.Tensor, group: TensorGroup) -> torch.Tensor:
    """Hand a replicated activation to the ranks of a region."""
    return hidden if group.size == 1 else _EnterRegion.apply(hidden, group)


def leave_region(partial: torch.Tensor, group: TensorGroup) -> torch.Tensor:
    """Sum the ranks' partial results into one replicated activation."""
    return partial if group.size == 1 else _LeaveRegion.apply(partial, group)


def sum_gradient_over(group: TensorGroup, parameter: nn.Parameter) -> None:
    """Complete the gradient of a replicated parameter that is used inside a region."""

    def total(gradient: torch.Tensor) -> torch.Tensor:
        summed = gradient.clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(summed, group=group.process_group)
        return summed

    parameter.register_hook(total)


def shard_of(shape: tuple[int, ...], *, dim: int, sections: tuple[int, ...], group: TensorGroup, what: str) -> Shard:
    """This rank's part of a parameter whose `dim` holds `sections` fused one after the other (q, k and v; gate and
    up), each of them cut evenly. InputError when a section cannot be cut."""
    for size in sections:
        if size % group.size:
            raise InputError(
                f"{what} of size {size} cannot be split over {group.size} tensor-parallel ranks",
                why="each rank takes an equal share of heads, feed-forward columns and vocabulary",
                fix="choose a tensor-parallel size that divides the heads, KV heads, feed-forward and vocabulary sizes",
            )
    pieces = []
    offset = 0
    for size in sections:
        share = size // group.size
        pieces.append((offset + group.rank * share, offset + (group.rank + 1) * share))
        offset += size
    return Shard(full_shape=shape, dim=dim, pieces=tuple(pieces))


def cut(module: nn.Module, name: str, shard: Shard) -> None:
    """Replace a parameter on the meta device by this rank's shard of it (still without storage)."""
    shape = list(shard.full_shape)
    shape[shard.dim] = sum(stop - start for start, stop in shard.pieces)
    whole = getattr(module, name)
    local = nn.Parameter(torch.empty(shape, dtype=whole.dtype, device="meta"), requires_grad=whole.requires_grad)
    local.shard = shard
    setattr(module, name, local)


class RowParallelLinear(nn.Module):
    """A linear layer that ends a region: its input features are split, its output is summed, its bias added once.

    `transposed`: the weight is (in, out), as transformers' Conv1D keeps it.
    """

    def __init__(self, linear: nn.Module, *, group: TensorGroup, transposed: bool) -> None:
        super().__init__()
        self.weight = linear.weight
        self.bias = getattr(linear, "bias", None)
        self._group = group
        self.transposed = transposed
        dim = 0 if transposed else 1
        full = tuple(self.weight.shape)
        cut(self, "weight", shard_of(full, dim=dim, sections=(full[dim],), group=group, what="the input of a layer"))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(…, in / size) to (…, out)."""
        weight = self.weight.t() if self.transposed else self.weight
        total = leave_region(functional.linear(hidden, weight), self._group)
        return total if self.bias is None else total + self.bias


def split_columns(linear: nn.Module, *, group: TensorGroup, transposed: bool, sections: tuple[int, ...] = ()) -> None:
    """Cut a linear layer's output features (weight and bias) in place; its forward needs no change."""
    dim = 1 if transposed else 0
    full = tuple(linear.weight.shape)
    parts = sections or (full[dim],)
    cut(linear, "weight", shard_of(full, dim=dim, sections=parts, group=group, what="the output of a layer"))
    if getattr(linear, "bias", None) is not None:
        cut(linear, "bias", shard_of((full[dim],), dim=0, sections=parts, group=group, what="the bias of a layer"))


class _VocabParallelLoss(torch.autograd.Function):
    """Mean cross-entropy of logits whose vocabulary is split: three small all-reduces instead of gathering logits."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor, group: TensorGroup) -> torch.Tensor:
        scores = logits.to(torch.float32, copy=True)  # (positions, vocabulary / size)
        peak = scores.amax(dim=-1)
        distributed.all_reduce(peak, op=distributed.ReduceOp.MAX, group=group.process_group)
        scores -= peak.unsqueeze(-1)
        local = labels - group.rank * scores.shape[-1]
        here = (local >= 0) & (local < scores.shape[-1])
        local = local.clamp(0, scores.shape[-1] - 1).unsqueeze(-1)
        at_label = scores.gather(-1, local).squeeze(-1) * here
        distributed.all_reduce(at_label, group=group.process_group)
        total = scores.exp_().sum(dim=-1)
        distributed.all_reduce(total, group=group.process_group)
        counts = labels != IGNORED_LABEL
        weights = counts / counts.sum()
        ctx.save_for_backward(scores.div_(total.unsqueeze(-1)), local, here, weights)
        ctx.dtype = logits.dtype
        return ((total.log() - at_label) * weights).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        probabilities, local, here, weights = ctx.saved_tensors
        gradient = probabilities.scatter_add(-1, local, -here.to(probabilities.dtype).unsqueeze(-1))
        gradient *= (weights * gradients[0]).unsqueeze(-1)
        return gradient.to(ctx.dtype), None, None


def labels_of(tokens: torch.Tensor) -> torch.Tensor:
    """What each position of (batch, seq) ids has to predict, flattened: the next one, and nothing at the end."""
    return functional.pad(tokens, (0, 1), value=IGNORED_LABEL)[..., 1:].reshape(-1)


def next_token_loss(logits: torch.Tensor, tokens: torch.Tensor, group: TensorGroup) -> torch.Tensor:
    """Mean cross-entropy of predicting each next token, in fp32, as transformers' causal language models compute it.

    `logits` (batch, seq, vocabulary / size); `tokens` (batch, seq): the last position predicts nothing.
    """
    labels = labels_of(tokens)
    flat = logits.reshape(-1, logits.shape[-1])
    if group.size == 1:
        return functional.cross_entropy(flat.float(), labels, ignore_index=IGNORED_LABEL)
    return _VocabParallelLoss.apply(flat, labels, group)
