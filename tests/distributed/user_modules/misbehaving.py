"""Modules of a user who makes every mistake there is; each function is a factory of the job file's kind."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Batch = dict[str, torch.Tensor]
Factory = tuple[nn.Module, Callable[[int, int, torch.Generator], Batch]]

_MISDEED_AT_PASS = 3  # forward passes go well before


class Regressor(nn.Module):
    """A small model whose third forward pass does something first."""

    def __init__(self, misdeed: Callable[[], Any] | None = None) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
        self._misdeed = misdeed
        self._passes = 0

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self._passes += 1
        loss = (self.layers(x) - y).square().mean()
        if self._misdeed is not None and self._passes == _MISDEED_AT_PASS:
            return loss * float(self._misdeed() or 1.0)
        return loss


def _make_batch(micro_batch_size: int, seq_len: int, generator: torch.Generator) -> Batch:
    x = torch.randn(micro_batch_size, 16, generator=generator)
    return {"x": x, "y": x.sum(dim=1, keepdim=True)}


def _on_last_rank(deed: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: deed() if os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) - 1) else None


def sleeps() -> Factory:
    return Regressor(lambda: time.sleep(3600)), _make_batch


def segfaults_on_last_rank() -> Factory:
    return Regressor(_on_last_rank(lambda: os.kill(os.getpid(), signal.SIGSEGV))), _make_batch


def killed_on_last_rank() -> Factory:
    return Regressor(_on_last_rank(lambda: os.kill(os.getpid(), signal.SIGKILL))), _make_batch


def exits() -> Factory:
    return Regressor(lambda: sys.exit(7)), _make_batch


def leaves_silently() -> Factory:
    return Regressor(lambda: os._exit(0)), _make_batch


def becomes_nan() -> Factory:
    return Regressor(lambda: float("nan")), _make_batch


def wrong_shape_on_last_rank() -> Factory:
    return Regressor(_on_last_rank(lambda: torch.ones(2, 3) @ torch.ones(2, 3))), _make_batch


def hoards_on_last_rank() -> Factory:
    return Regressor(_on_last_rank(lambda: torch.ones(1 << 30).sum())), _make_batch


def prints_endlessly() -> Factory:
    return Regressor(lambda: print("chatter\n" * 1_000_000)), _make_batch


def starts_a_program_and_sleeps() -> Factory:
    def deed() -> None:
        import subprocess

        program = subprocess.Popen(["sleep", "3600"])
        print(f"started program {program.pid}", flush=True)
        time.sleep(3600)

    return Regressor(deed), _make_batch


def cannot_be_built() -> Factory:
    raise FileNotFoundError("weights.bin")
