"""The blocks a causal language model is made of: token embedding, positions, decoder layers, final norm, head.

Each takes and gives one tensor, so that a pipeline stage can be any run of them. The decoder layers are transformers'
own; what transformers computes once per forward pass (rotary tables, masks) depends on the sequence length alone here
and is kept by `LayerInputs`, shared by all layers of a rank.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from planner.runtime.checkpointing import Recompute
from planner.runtime.chunked_loss import chunked_next_token_loss
from planner.runtime.compiling import compiled
from planner.runtime.families import Family
from planner.runtime.grid import TensorGroup
from planner.runtime.tensor_parallel import cut, enter_region, leave_region, shard_of


class TokenEmbedding(nn.Module):
    """Token ids to hidden states, and, where the model ties them, hidden states back to logits. The vocabulary is
    split over the tensor-parallel ranks."""

    def __init__(self, family: Family, group: TensorGroup) -> None:
        super().__init__()
        self._group = group
        self._scale = family.embedding_scale
        self.weight = _vocabulary_matrix(self, family, group)
        self._rows = self.weight.shape[0]
        padding, first = family.padding_token, group.rank * self._rows
        self._padding = padding - first if padding is not None and first <= padding < first + self._rows else None

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(batch, seq) ids to (batch, seq, hidden)."""
        if self._group.size == 1:
            hidden = functional.embedding(tokens, self.weight, padding_idx=self._padding)
        else:
            local = tokens - self._group.rank * self._rows
            elsewhere = (local < 0) | (local >= self._rows)
            looked_up = functional.embedding(local.masked_fill(elsewhere, 0), self.weight, padding_idx=self._padding)
            hidden = leave_region(looked_up.masked_fill(elsewhere.unsqueeze(-1), 0.0), self._group)
        return hidden if self._scale == 1.0 else hidden * torch.tensor(self._scale, dtype=hidden.dtype)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """(batch, seq, hidden) to this rank's (batch, seq, vocabulary / size)."""
        return functional.linear(enter_region(hidden, self._group), self.weight)


class Head(nn.Module):
    """Hidden states to this rank's logits. `tied`: the embedding's matrix, given by the container."""

    def __init__(self, family: Family, group: TensorGroup, tied: nn.Parameter | None = None) -> None:
        super().__init__()
        self._group = group
        self.weight = _vocabulary_matrix(self, family, group) if tied is None else tied

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(batch, seq, hidden) to (batch, seq, vocabulary / size)."""
        return functional.linear(enter_region(hidden, self._group), self.weight)


class LosingHead(nn.Module):
    """Head and loss in one, chunk by chunk. `tied`: the embedding's matrix, given by the container."""

    def __init__(self, family: Family, group: TensorGroup, tied: nn.Parameter | None = None) -> None:
        super().__init__()
        self._group = group
        self.weight = _vocabulary_matrix(self, family, group) if tied is None else tied

    def forward(self, hidden: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """(batch, seq, hidden) and the (batch, seq) ids to the mean loss."""
        return chunked_next_token_loss(hidden, self.weight, tokens, self._group)


def _vocabulary_matrix(owner: nn.Module, family: Family, group: TensorGroup) -> nn.Parameter:
    shape = (family.config.vocab_size, family.config.hidden_size)
    owner.weight = nn.Parameter(torch.empty(shape, device="meta"))
    if group.size > 1:
        cut(owner, "weight", shard_of(shape, dim=0, sections=shape[:1], group=group, what="the vocabulary"))
    return owner.weight


class Positions(nn.Module):
    """Adds learned positions (GPT-2) and applies the embedding's dropout."""

    def __init__(self, family: Family) -> None:
        super().__init__()
        if family.position_name:
            shape = (family.config.max_position_embeddings, family.config.hidden_size)
            self.weight = nn.Parameter(torch.empty(shape, device="meta"))
        else:
            self.weight = None
        self._dropout = family.embedding_dropout_fraction

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(batch, seq, hidden) to the same."""
        if self.weight is not None:
            hidden = hidden + self.weight[: hidden.shape[1]]
        return functional.dropout(hidden, self._dropout, training=self.training)


class LayerInputs:
    """What decoder layers take beside the hidden states: rotary tables and attention masks, made once per sequence
    length. No module, so that neither DeepSpeed's casts nor checkpoints touch it."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._tables: dict[tuple[int, torch.dtype], tuple[torch.Tensor, torch.Tensor]] = {}
        self._masks: dict[tuple[int, int, torch.dtype], torch.Tensor | None] = {}

    def of(self, hidden: torch.Tensor, index: int) -> dict[str, Any]:
        """Keyword arguments for layer `index`."""
        mask = self._mask(hidden, self._family.window_of(index))
        if self._family.rotary is None:
            return {"attention_mask": mask}
        key = (hidden.shape[1], hidden.dtype)
        if key not in self._tables:
            positions = torch.arange(hidden.shape[1], device=hidden.device).unsqueeze(0)
            with torch.no_grad():
                self._tables[key] = self._family.rotary.to(hidden.device)(hidden, position_ids=positions)
        return {"attention_mask": mask, "position_embeddings": self._tables[key]}

    def _mask(self, hidden: torch.Tensor, window: int) -> torch.Tensor | None:
        seq_len = hidden.shape[1]
        window = window if window < seq_len else 0
        key = (seq_len, window, hidden.dtype)
        if key not in self._masks:
            eager = self._family.config._attn_implementation == "eager"
            self._masks[key] = _causal_mask(hidden, window=window, eager=eager)
        return self._masks[key]


def _causal_mask(hidden: torch.Tensor, *, window: int, eager: bool) -> torch.Tensor | None:
    """(1, 1, seq, seq): additive for eager attention, boolean for SDPA; None where SDPA's causal flag says it all."""
    if not eager and not window:
        return None
    position = torch.arange(hidden.shape[1], device=hidden.device)
    distance = position.unsqueeze(1) - position.unsqueeze(0)
    seen = (distance >= 0) & (distance < window) if window else distance >= 0
    seen = seen.unsqueeze(0).unsqueeze(0)
    if not eager:
        return seen
    blocked = torch.full((), torch.finfo(hidden.dtype).min, dtype=hidden.dtype, device=hidden.device)
    return torch.where(seen, torch.zeros_like(blocked), blocked)


class DecoderBlock(nn.Module):
    """One of transformers' decoder layers, recomputed in the backward pass as `recompute` says; `compiles`: by
    torch.compile, its recomputation with it."""

    def __init__(
        self, layer: nn.Module, *, index: int, inputs: LayerInputs, recompute: Recompute, compiles: bool = False
    ) -> None:
        super().__init__()
        self.layer = layer
        self._index = index
        self._inputs = inputs
        self._recompute = recompute
        self._run = compiled(self._run_layer) if compiles else self._run_layer

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(batch, seq, hidden) to the same."""
        # Made outside of what is compiled: tables are kept from call to call, and the number would tell layers apart.
        return self._run(hidden, self._inputs.of(hidden, self._index))

    def _run_layer(self, hidden: torch.Tensor, inputs: dict[str, Any]) -> torch.Tensor:
        def run(hidden: torch.Tensor) -> torch.Tensor:
            output = self.layer(hidden, **inputs)
            return output[0] if isinstance(output, tuple) else output

        return self._recompute.run(run, hidden) if self.training else run(hidden)
