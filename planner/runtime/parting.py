"""How a rank of the reference trainer leaves: told to stop it finishes its step, failing it says why and goes at once.

Owns the signals, the stop file and the `RankExit` it writes for the supervisor. Leaves ending processes to the
supervisor: a rank whose peers wait in a collective cannot end them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import NoReturn

import torch
from torch import distributed

from planner.runtime.failure import describe_failure
from planner.runtime.measure import Meter
from planner.runtime.whole_file import write_whole
from planner.runtime.worker_process import lift_data_limit
from planner.spec import DeviceKind, Phase, TrialTask
from planner.spec.codec import to_plain
from planner.spec.supervision import STOP_FILE, RankExit, exit_name

_TRACEBACK_CHARS = 8000
FAILED_EXIT = 1


class StopRequest:
    """Whether the training shall end after the step that runs: SIGTERM, SIGINT or the supervisor's stop file.

    Signals are taken from when it is made; a second one ends the process at once, as without us.
    """

    def __init__(self, folder: Path | None) -> None:
        self._file = folder / STOP_FILE if folder is not None else None
        self._told = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._tell)

    def _tell(self, number: int, _frame: FrameType | None) -> None:
        self._told = True
        signal.signal(number, signal.SIG_DFL)

    def agreed(self) -> bool:
        """Whether any rank was told to stop; the same answer on all of them, which have to call it together. It is
        also the barrier that makes every rank time the same stretch."""
        here = self._told or (self._file is not None and self._file.exists())
        told = torch.tensor(float(here), device=_group_device())
        distributed.all_reduce(told, op=distributed.ReduceOp.MAX)
        return bool(told.item())


def _group_device() -> torch.device:
    """Where a tensor has to be for the group's collectives."""
    return torch.device("cuda" if distributed.get_backend() == "nccl" else "cpu")


def leave_word(folder: Path, word: RankExit) -> None:
    """Write the rank's `RankExit`, whole or not at all."""
    write_whole(folder / exit_name(word.rank), json.dumps(to_plain(word)) + "\n")


def fail(
    error: BaseException,
    task: TrialTask,
    meter: Meter | None,
    *,
    rank: int,
    phase: Phase,
    steps_done: int,
    folder: Path | None,
) -> NoReturn:
    """Say why this rank cannot go on and end its process at once. Never returns.

    Leaving in the usual way would wait: for peers in collectives, for NCCL's watchdog, for destructors that allocate.
    """
    failed_at_s = time.time()
    if task.device is DeviceKind.CPU:
        lift_data_limit()
    text = "".join(traceback.format_exception(error))
    print(text, file=sys.stderr, flush=True)
    if folder is not None:
        word = RankExit(
            rank=rank,
            phase=phase,
            steps_done=steps_done,
            failure=describe_failure(error, task, meter, failed_at_s=failed_at_s),
            snapshot=_snapshot(task, folder, rank=rank),
            traceback=text[-_TRACEBACK_CHARS:],
        )
        leave_word(folder, word)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(FAILED_EXIT)


def _snapshot(task: TrialTask, folder: Path, *, rank: int) -> str:
    """Keep the allocator's own picture of what is held (torch reads it, and so does `planner diagnose`)."""
    if task.device is not DeviceKind.CUDA or not torch.cuda.is_initialized():
        return ""
    name = f"memory-rank-{rank:05d}.pickle"
    try:
        torch.cuda.memory._dump_snapshot(str(folder / name))
    except (RuntimeError, OSError) as problem:  # after an illegal access every call fails; a disk may be full
        print(f"[rank] no memory snapshot could be kept: {problem}", file=sys.stderr)
        return ""
    return name
