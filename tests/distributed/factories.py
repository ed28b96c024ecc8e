"""Factories as a user might write them, for tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Linear(width, 2 * width)
        self.back = nn.Linear(2 * width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.back(functional.gelu(self.mix(hidden)))


class Regressor(nn.Module):
    """A stack of blocks over (batch, seq, width) features."""

    def __init__(self, width: int = 16, depth: int = 3) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(_Block(width) for _ in range(depth)))
        self.out = nn.Linear(width, 1)

    def forward(self, features: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.out(self.blocks(features)).squeeze(-1)


def make_batch(micro_batch_size: int, seq_len: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Features and a target that depends on them."""
    features = torch.randn(micro_batch_size, seq_len, 16, generator=generator)
    return {"features": features, "target": features.sum(dim=-1)}


def mean_square(outputs: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The loss, apart from the module."""
    return functional.mse_loss(outputs.float(), batch["target"].float())


def regressor() -> tuple[Any, ...]:
    """Module, batches and loss."""
    return Regressor(), make_batch, mean_square


class _Scored(Regressor):
    def forward(self, features: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:  # type: ignore[override]
        return {"loss": functional.mse_loss(super().forward(features, target), target)}


def scored_regressor() -> tuple[Any, ...]:
    """A module that gives its loss itself."""
    return _Scored(), make_batch


def peeking_regressor() -> tuple[Any, ...]:
    """A module that looks at values, which cannot be traced without memory."""

    class Peeking(_Scored):
        def forward(self, features: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:  # type: ignore[override]
            if features.abs().max().item() > 1e6:
                features = features.clamp(-1e6, 1e6)
            return super().forward(features, target)

    return Peeking(), make_batch


def particular_regressor() -> tuple[Any, ...]:
    """One that takes plain tensors only, which fake ones are not."""

    class Particular(_Scored):
        def forward(self, *arguments: Any, **batch: torch.Tensor) -> torch.Tensor:
            given = (*arguments, *batch.values())
            assert all(type(tensor) is torch.Tensor for tensor in given)
            return super().forward(*arguments, **batch)

    return Particular(), make_batch


def without_loss() -> tuple[Any, ...]:
    """Neither a loss function nor an output that is one."""
    return Regressor(), make_batch


def with_stray_tensor() -> tuple[Any, ...]:
    """A batch that holds something that is not per sample."""
    return Regressor(), lambda size, seq_len, generator: {"scale": torch.ones(3)}


def not_a_module() -> tuple[Any, ...]:
    """The wrong kind of thing."""
    return "a module", make_batch


not_a_function = 3


class _Averaging(Regressor):
    """Keeps running means, which are no parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16, momentum=0.5)

    def forward(self, features: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        centred = features - self.norm.running_mean
        self.norm(features.flatten(0, 1))
        return super().forward(centred, target)


def averaging_regressor() -> tuple[Any, ...]:
    """A module whose output depends on its buffers."""
    return _Averaging(), make_batch, mean_square
