"""A small residual network over images, as `model: {factory: small_vision:build}` takes it (vision-factory.yaml).

A factory returns (module, make_batch, loss):

- `module(**batch)` is called with what `make_batch` returned;
- `make_batch(micro_batch_size, seq_len, generator)` makes synthetic samples, batch first, drawn from `generator` alone,
  so that every layout is tried on the same ones (`seq_len` is the job's; images have none);
- `loss(outputs, batch)` is the scalar to train on, a mean over the samples. Without it the module itself returns the
  loss, or something with `.loss`.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

CLASSES = 10
SIZE = 32  # pixels


class Residual(nn.Module):
    """Two convolutions beside the identity. Group normalisation: batch statistics would depend on the micro-batch."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.GroupNorm(4, channels),
            nn.GELU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.GroupNorm(4, channels),
            nn.GELU(),
            nn.Conv2d(channels, channels, 3, padding=1),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Same shape as the input."""
        return images + self.body(images)


class SmallVision(nn.Module):
    """Three stages of halving resolution and doubling width, then a linear head."""

    def __init__(self, width: int = 16, depth: int = 2) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width]
        stages: list[nn.Module] = []
        for before, after in zip([3, *widths], widths):
            stages.append(nn.Conv2d(before, after, 3, stride=2, padding=1))
            stages += [Residual(after) for _ in range(depth)]
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(widths[-1], CLASSES)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Class scores; the labels of the batch are for the loss."""
        return self.head(self.stages(images).mean(dim=(2, 3)))


def make_batch(micro_batch_size: int, seq_len: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Images and labels."""
    images = torch.randn(micro_batch_size, 3, SIZE, SIZE, generator=generator)
    return {"images": images, "labels": torch.randint(CLASSES, (micro_batch_size,), generator=generator)}


def cross_entropy(outputs: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """In fp32, whatever the model's precision."""
    return functional.cross_entropy(outputs.float(), batch["labels"])


def build() -> tuple[nn.Module, object, object]:
    """What `factory:` names."""
    return SmallVision(), make_batch, cross_entropy
