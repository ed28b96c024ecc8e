"""Head and loss in one, a chunk of tokens after the other: the logits of all tokens never exist at once.

The gradients of hidden states and of the head's matrix are made while a chunk's scores are there, in the forward pass,
so nothing of the vocabulary's size is kept or computed again; the backward pass only scales them. The idea is that of
Liger-Kernel's fused linear cross-entropy (arXiv:2410.10989, section 3.2). Numbers are those of the whole loss but for
the order in which the matrix's gradient is summed, which is fp32 here.

Under tensor parallelism each rank works on its own part of the vocabulary, with three small all-reduces a chunk.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed

from planner.runtime.grid import TensorGroup
from planner.runtime.tensor_parallel import IGNORED_LABEL, enter_region, labels_of
from planner.spec.tuning import chunk_of

# Gradients are kept before the loss scale and the mean over tokens are known. A power of two keeps fp16 sums of some
# thousand tokens below its largest number, and is taken back exactly.
_KEPT_SCALE = 0.125


def chunked_next_token_loss(
    hidden: torch.Tensor, weight: torch.Tensor, tokens: torch.Tensor, group: TensorGroup, *, chunk_tokens: int = 0
) -> torch.Tensor:
    """Mean cross-entropy of predicting each next token, as `next_token_loss` of the logits `hidden` x `weight`.

    `hidden` (batch, seq, hidden size); `weight` (vocabulary / size, hidden size); `tokens` (batch, seq). `chunk_tokens`
    0: as many at once as `chunk_of` says.
    """
    flat = enter_region(hidden, group).reshape(-1, hidden.shape[-1])
    size = chunk_tokens or chunk_of(len(flat), local_vocab_size=weight.shape[0])
    return _ChunkedLoss.apply(flat, weight, labels_of(tokens), group, size)


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, group: TensorGroup, size: int
    ) -> torch.Tensor:
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        counts = labels != IGNORED_LABEL
        of_hidden = torch.empty_like(hidden) if wants_hidden else None
        of_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device) if wants_weight else None
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        for start in range(0, len(hidden), size):
            part = slice(start, start + size)
            scores = (hidden[part] @ weight.t()).float()
            total += _lose(scores, labels[part], counts[part], group)
            if not (wants_hidden or wants_weight):
                continue
            gradient = scores.mul_((counts[part] * _KEPT_SCALE).unsqueeze(-1)).to(hidden.dtype)
            if of_hidden is not None:
                torch.mm(gradient, weight, out=of_hidden[part])
            if of_weight is not None:
                of_weight += gradient.t() @ hidden[part]
        number = counts.sum()
        ctx.save_for_backward(of_hidden, None if of_weight is None else of_weight.to(weight.dtype), number)
        return total / number

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        of_hidden, of_weight, number = ctx.saved_tensors
        # Keep: one dimension and fp32, so that a 16-bit gradient is multiplied in fp32 and rounded once.
        factor = (gradients[0].float() / (number * _KEPT_SCALE)).reshape(1)
        for kept in (of_hidden, of_weight):
            if kept is not None:
                kept.mul_(factor)
        return of_hidden, of_weight, None, None, None


def _lose(scores: torch.Tensor, labels: torch.Tensor, counts: torch.Tensor, group: TensorGroup) -> torch.Tensor:
    """The summed loss of a chunk; `scores` (tokens, vocabulary / size) become its gradient: probabilities less one at
    the label."""
    peak = scores.amax(dim=-1)
    _reduce(peak, group, distributed.ReduceOp.MAX)
    scores -= peak.unsqueeze(-1)
    local = labels - group.rank * scores.shape[-1]
    here = (local >= 0) & (local < scores.shape[-1])
    local = local.clamp(0, scores.shape[-1] - 1).unsqueeze(-1)
    at_label = scores.gather(-1, local).squeeze(-1) * here
    _reduce(at_label, group, distributed.ReduceOp.SUM)
    total = scores.exp_().sum(dim=-1)
    _reduce(total, group, distributed.ReduceOp.SUM)
    scores.div_(total.unsqueeze(-1))
    scores.scatter_add_(-1, local, -here.to(scores.dtype).unsqueeze(-1))
    return ((total.log() - at_label) * counts).sum()


def _reduce(values: torch.Tensor, group: TensorGroup, operation: Any) -> None:
    if group.size > 1:
        distributed.all_reduce(values, op=operation, group=group.process_group)
