"""Saving and loading the checkpoints of a training: DeepSpeed's own, with what is written down beside them.

Owns the order in which files become visible, and every refusal in words. Leaves the names and records to
`checkpoint_files`, other layouts to `portable_load`.
"""

from __future__ import annotations

import pickle
import shlex
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from planner.errors import InputError
from planner.runtime.checkpoint_files import (
    FORMAT,
    MANIFEST,
    Manifest,
    Position,
    damaged,
    forget_checkpoint,
    gone,
    newest,
    ranks_with_parts,
    read_manifest,
    read_portable,
    require_files,
    write_record,
)
from planner.runtime.checkpoint_parts import write_parts
from planner.runtime.grid import coordinates_of
from planner.runtime.portable_load import load_portable
from planner.spec import TrialTask
from planner.spec.checkpoint import CheckpointLayout, RunIdentity, checkpoint_layout, differences, run_identity

# What torch, pickle and DeepSpeed raise for files that are not what was written.
_UNREADABLE = (RuntimeError, OSError, EOFError, LookupError, ValueError, TypeError, AttributeError, AssertionError)


def save_checkpoint(engine: Any, task: TrialTask, directory: Path, name: str) -> None:
    """Write a checkpoint under this name; all ranks call it. It counts once `complete_checkpoint` has named it, when
    the files of every rank are on the disk: until then the one before is the newest."""
    rank = distributed.get_rank()
    (directory / name).mkdir(parents=True, exist_ok=True)
    if rank == 0:
        forget_checkpoint(directory, name)  # of a run that came to this step before, perhaps with more ranks
    distributed.barrier()
    write_parts(engine, directory, name, rank=rank, where=coordinates_of(rank, task.candidate.layout))
    engine.save_checkpoint(str(directory), tag=name, save_latest=False)
    if rank == 0:
        manifest = Manifest(
            format=FORMAT,
            layout=checkpoint_layout(task.candidate),
            run=run_identity(task.training),
            position=_position(engine),
            ranks=ranks_with_parts(directory, name),
            files=(),
        )
        write_record(directory / name / MANIFEST, manifest)


def _position(engine: Any) -> Position:
    scheduler = engine.lr_scheduler
    return Position(
        steps_done=int(engine.global_steps),
        samples_done=int(engine.global_samples),
        skipped_steps=int(engine.skipped_steps),
        schedule_step=int(scheduler.state_dict()["step"]) if scheduler is not None else 0,
    )


def load_checkpoint(engine: Any, task: TrialTask, directory: Path) -> bool:
    """Bring the engine to the newest checkpoint in the directory; False when there is none. All ranks call it.

    Raises InputError when the checkpoint is gone, damaged, of another layout, or of a run whose samples differ.
    """
    name = newest(directory)
    if name is None:
        return False
    if read_portable(directory, name) is not None:
        index = load_portable(engine, directory, name)
        _require_same_run(index.run, task)
        return True
    manifest = read_manifest(directory, name)
    _require_same_run(manifest.run, task)
    _require_same_layout(manifest.layout, task, directory)
    if distributed.get_rank() == 0:  # one look at every file is enough
        require_files(directory, name, manifest.files)
    _load_own(engine, directory, name)
    return True


def _load_own(engine: Any, directory: Path, name: str) -> None:
    try:
        path, _state = engine.load_checkpoint(str(directory), tag=name)
    except torch.OutOfMemoryError:
        raise
    except (*_UNREADABLE, pickle.UnpicklingError) as problem:
        raise damaged(directory, name, f"{type(problem).__name__}: {problem}") from problem
    if path is None:
        raise gone(directory)


def _require_same_layout(saved: CheckpointLayout, task: TrialTask, directory: Path) -> None:
    changed = differences(saved, checkpoint_layout(task.candidate))
    if changed:
        command = shlex.join((sys.executable, "-m", "planner.runtime.convert_checkpoint", str(directory.absolute())))
        raise InputError(
            f"the checkpoint in {directory} is of another layout: {changed}",
            why="each rank loads the part of weights and optimizer states that it saved",
            fix=f"convert it once, then run the same command again: {command}",
        )


def _require_same_run(saved: RunIdentity, task: TrialTask) -> None:
    changed = differences(saved, run_identity(task.training))
    if changed:
        raise InputError(
            f"the checkpoint is of a run with another {changed}",
            why="the samples it has already seen could not be told from those still to come",
            fix="resume with the job's former values, or train into another checkpoint folder",
        )
