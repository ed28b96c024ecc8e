"""What the trainer says while it runs: lines on rank 0's standard output, and TensorBoard where the job asks for it."""

from __future__ import annotations

import sys
from typing import Any

from planner.errors import InputError
from planner.runtime.session import StepResult
from planner.runtime.watch import StepHealth
from planner.spec import DeviceKind, TrialTask

GIB = 1 << 30


def write_line(text: str) -> None:
    """A line in one piece: ranks share their standard output, and two writes of one rank let another's come between."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class RunLog:
    """Speaks on rank 0 only. `end`: the step that the training goes up to."""

    def __init__(self, task: TrialTask, *, rank: int, end: int) -> None:
        self._is_first = rank == 0
        self._promise = task.promise
        # A CPU's peak is too rough a figure for a share of it.
        self._has_mfu = bool(task.promise.ideal_step_s) and task.device is not DeviceKind.CPU
        self._end = end
        self._board = _open_board(task.training.run.tensorboard_dir) if self._is_first else None

    def say(self, text: str) -> None:
        """One line."""
        if self._is_first:
            write_line(text)

    def step(self, number: int, result: StepResult, health: StepHealth, *, learning_rate: float) -> None:
        """One optimizer step; `learning_rate` is the one that it was made with."""
        promised = self._promise
        mfu = f"  MFU {health.mfu_ratio:.1%}" if self._has_mfu else ""
        plan = f" of {promised.device_used_bytes / GIB:.2f} planned" if promised.device_used_bytes else ""
        self.say(
            f"step {number}/{self._end}  loss {result.loss:.4f}  lr {learning_rate:.3e}  "
            f"{health.tokens_per_s:,.0f} tokens/s  {health.step_seconds:.3f} s{mfu}  "
            f"{health.used_bytes / GIB:.2f} GiB{plan}"
        )
        self._draw(
            number,
            {
                "train/loss": result.loss,
                "train/learning_rate": learning_rate,
                "speed/tokens_per_s": health.tokens_per_s,
                "speed/step_s": health.step_seconds,
                **({"speed/mfu": health.mfu_ratio} if self._has_mfu else {}),
                "memory/used_gib": health.used_bytes / GIB,
                "memory/allocated_gib": health.allocated_bytes / GIB,
            },
        )

    def evaluation(self, number: int, loss: float, *, num_sequences: int) -> None:
        """The held-out loss after a step."""
        self.say(f"eval after step {number}  loss {loss:.4f}  over {num_sequences} sequences")
        self._draw(number, {"eval/loss": loss})

    def _draw(self, number: int, values: dict[str, float]) -> None:
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(name, value, number)

    def close(self) -> None:
        """Write out what is buffered."""
        if self._board is not None:
            self._board.close()


def _open_board(folder: str) -> Any:
    if not folder:
        return None
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as problem:
        raise InputError(
            "training.tensorboard is set, but TensorBoard is not installed",
            why=str(problem),
            fix="pip install tensorboard, or leave the setting out",
        ) from problem
    return SummaryWriter(log_dir=folder)
