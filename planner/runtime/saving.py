"""The trainer's checkpoints: written by DeepSpeed, in the background where asked, and only the newest kept.

Owns when a checkpoint counts (`latest` names it only once every rank's files are on the disk) and which old ones go.
Leaves what is in one to DeepSpeed, and the refusal of another layout's to `checkpoints`.
"""

from __future__ import annotations

import copy
import shutil
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from deepspeed.runtime.checkpoint_engine import TorchCheckpointEngine
from torch import distributed

from planner.errors import InputError
from planner.runtime.checkpoint_files import OWN_PREFIX, complete_checkpoint, outlived
from planner.runtime.session import TrainingSession


class BackgroundWriter(TorchCheckpointEngine):
    """Writes files from a thread, after copying what is to be written to host memory.

    DeepSpeed's own decoupled writer is not used: it starts a process per rank, gives up after five minutes, and reads
    with `weights_only`, which refuses DeepSpeed's own files (0.19.8).
    """

    def __init__(self) -> None:
        super().__init__(None)
        self._pending: list[tuple[Any, str]] = []
        self._thread: threading.Thread | None = None
        self._problem: BaseException | None = None

    def save(self, state_dict: Any, path: str) -> None:
        """Take a copy; it is written once `begin` is called."""
        self._pending.append((_on_host(state_dict), path))

    def begin(self) -> None:
        """Start writing what was taken."""
        files, self._pending = self._pending, []
        self._thread = threading.Thread(target=self._write, args=(files,), name="checkpoint-writer", daemon=False)
        self._thread.start()

    def _write(self, files: list[tuple[Any, str]]) -> None:
        try:
            while files:
                state, path = files.pop(0)
                torch.save(state, path)
        except BaseException as problem:  # told to the training by `is_done`, in its own thread
            self._problem = problem

    def is_done(self, *, wait: bool = False) -> bool:
        """Whether all was written. Raises what writing raised."""
        if self._thread is not None and wait:
            self._thread.join()
        done = self._thread is None or not self._thread.is_alive()
        if done and self._problem is not None:
            problem, self._problem = self._problem, None
            raise problem
        return done


def _on_host(value: Any) -> Any:
    """A copy whose tensors lie in host memory and are nobody else's."""
    if torch.is_tensor(value):
        return value.detach().to("cpu", copy=True)
    if type(value) in (dict, OrderedDict):
        return type(value)((key, _on_host(item)) for key, item in value.items())
    if type(value) in (list, tuple):
        return type(value)(_on_host(item) for item in value)
    return copy.deepcopy(value)


class Checkpoints:
    """The checkpoints of one run in one folder. All ranks make the same calls in the same order."""

    def __init__(self, session: TrainingSession, folder: Path, *, keep: int, in_background: bool) -> None:
        self._session = session
        self._folder = folder
        self._keep = keep
        self._writer = BackgroundWriter() if in_background else None
        self._writing_tag = ""  # of the checkpoint that is being written
        self.saved_step = -1
        if self._writer is not None:
            session.engine.checkpoint_engine = self._writer

    def save(self) -> None:
        """Save the state after the last step; returns once it is on the disk or, in the background, copied."""
        self.settle(wait=True)
        tag = f"{OWN_PREFIX}{self._session.steps_done}"
        self._session.save_checkpoint(self._folder, tag=tag, names_latest=False)
        self._writing_tag = tag
        self.saved_step = self._session.steps_done
        if self._writer is not None:
            self._writer.begin()
            return
        self.settle(wait=True)

    def settle(self, *, wait: bool = False) -> None:
        """Let the checkpoint that was being written count, if every rank has written its part by now."""
        if not self._writing_tag:
            return
        done = self._writer is None or self._writer.is_done(wait=wait)
        if not _on_all_ranks(done, self._session.device):
            return
        if distributed.get_rank() == 0:
            complete_checkpoint(self._folder, self._writing_tag)
            self._drop_old()
        self._writing_tag = ""
        distributed.barrier()  # Keep: nobody may look for the newest before it is named

    def _drop_old(self) -> None:
        if not self._keep:
            return
        for path in outlived(self._folder, keep=self._keep):
            if path.name != self._writing_tag:
                shutil.rmtree(path)


def _on_all_ranks(done: bool, device: torch.device) -> bool:
    flag = torch.tensor(float(done), device=device)
    distributed.all_reduce(flag, op=distributed.ReduceOp.MIN)
    return bool(flag.item())


def checkpoint_folder(text: str) -> Path:
    """The job's checkpoint folder. InputError when the job names none."""
    if text:
        return Path(text)
    raise InputError(
        "--resume was given, but the job names no checkpoint folder",
        why="training.checkpoint.folder is where checkpoints are written and found",
        fix="set training.checkpoint in the job file, or leave out --resume",
    )
