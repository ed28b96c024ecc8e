"""The learning rate over the steps of a training run: linear warm-up, then half a cosine down to a floor."""

from __future__ import annotations

import math
from typing import Any

import torch

from planner.spec import TrainingSpec


def learning_rate_fraction(step: int, training: TrainingSpec) -> float:
    """Share of the peak learning rate in optimizer step `step` (from 0); the floor holds after the last step."""
    if step < training.warmup_steps:
        return (step + 1) / training.warmup_steps
    progress = (step - training.warmup_steps) / max(1, training.steps - training.warmup_steps)
    floor = training.min_learning_rate_fraction
    return floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))


class WarmupCosine:
    """Sets the rate on the optimizer's parameter groups; the engine steps it after each optimizer step that was not
    skipped, and keeps its state in the checkpoint."""

    def __init__(self, optimizer: torch.optim.Optimizer, training: TrainingSpec) -> None:
        self._optimizer = optimizer
        self._training = training
        self._peaks = [float(group["lr"]) for group in optimizer.param_groups]
        self._step = 0
        self._write()

    def _write(self) -> None:
        for group, rate in zip(self._optimizer.param_groups, self.get_last_lr()):
            group["lr"] = rate

    def step(self) -> None:
        """Move on by one optimizer step."""
        self._step += 1
        self._write()

    def get_last_lr(self) -> list[float]:
        """The rate of each parameter group in the coming step."""
        fraction = learning_rate_fraction(self._step, self._training)
        return [peak * fraction for peak in self._peaks]

    @property
    def peak(self) -> float:
        """The highest rate of the first parameter group."""
        return self._peaks[0]

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"step": self._step, "peaks": self._peaks}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a checkpoint stopped."""
        self._step = int(state["step"])
        self._peaks = list(state["peaks"])
        self._write()
