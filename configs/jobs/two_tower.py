"""A two-tower recommender, as `model: {factory: two_tower:build}` takes it (two-tower-factory.yaml).

A user (a history of items) and an item become a vector each; their product says whether the user takes the item.
The module returns its loss itself, so the factory returns (module, make_batch); `small_vision.py` has a loss apart.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

ITEMS = 4096
WIDTH = 64


class Tower(nn.Module):
    """From an embedding to the common space."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, embedded: torch.Tensor) -> torch.Tensor:
        """(samples, width) to (samples, width), of length 1."""
        return functional.normalize(self.layers(embedded), dim=-1)


class TwoTower(nn.Module):
    """Both towers over one table of items."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(ITEMS, WIDTH)
        self.user, self.item = Tower(), Tower()
        self.temperature = nn.Parameter(
            torch.tensor([5.0])
        )  # one element: DeepSpeed takes no parameter without a dimension

    def forward(self, history: torch.Tensor, item: torch.Tensor, taken: torch.Tensor) -> dict[str, torch.Tensor]:
        """The scores, and the loss as a mean over the samples: each sample by itself, so that how the batch is split
        over ranks and micro-batches does not change it."""
        users = self.user(self.items(history).mean(dim=1))
        scores = (users * self.item(self.items(item))).sum(dim=-1).float() * self.temperature.float()
        return {"loss": functional.binary_cross_entropy_with_logits(scores, taken), "scores": scores}


def make_batch(micro_batch_size: int, seq_len: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Histories of `seq_len` items, an item each, and whether it was taken."""
    return {
        "history": torch.randint(ITEMS, (micro_batch_size, seq_len), generator=generator),
        "item": torch.randint(ITEMS, (micro_batch_size,), generator=generator),
        "taken": torch.randint(2, (micro_batch_size,), generator=generator).float(),
    }


def build() -> tuple[nn.Module, object]:
    """What `factory:` names."""
    return TwoTower(), make_batch
