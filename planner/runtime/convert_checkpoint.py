"""Makes a portable checkpoint of the newest one in a folder, so that the training can go on under any other layout.

    python -m planner.runtime.convert_checkpoint CHECKPOINT_DIR
    python -m planner.runtime.convert_checkpoint --task task.json    only if that plan's layout cannot load it as it is

One process does it, on any machine that sees the files; no GPU. DeepSpeed's files are mapped and copied part by part
into files of whole parameters, so that memory holds no more than the pages at work. The result is put in place whole
or not at all, and only then does `latest` name it; the old checkpoint stays. Owns the order of this and its words.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from planner.errors import InputError, PlannerError
from planner.runtime.checkpoint_files import (
    PORTABLE_PREFIX,
    Manifest,
    newest,
    read_manifest,
    read_portable,
    require_files,
    require_portable,
    write_latest,
)
from planner.spec import TrialTask
from planner.spec.checkpoint import checkpoint_layout
from planner.spec.codec import DecodeError, from_plain

LOCK = ".planner_convert.lock"
DRAFT = ".portable-draft"


def convert(directory: Path) -> str:
    """Convert the newest checkpoint of a folder; the name of the portable one, which `latest` names afterwards.

    A portable checkpoint is left as it is. Raises InputError for a folder without a checkpoint and for one that is
    damaged or cannot be taken apart; nothing is changed then.
    """
    name = newest(directory) if directory.is_dir() else None
    if name is None:
        raise InputError(
            f"there is no checkpoint in {directory}",
            why="it holds no file `latest`, which every training that saves checkpoints writes",
            fix="name the folder that training.checkpoint names in the job",
        )
    if read_portable(directory, name) is not None:
        require_portable(directory, name)
        return name
    manifest = read_manifest(directory, name)
    require_files(directory, name, manifest.files)
    with _alone(directory):
        return _convert(directory, name, manifest)


def _convert(directory: Path, name: str, manifest: Manifest) -> str:
    from planner.runtime.portable_write import write_portable

    made = f"{PORTABLE_PREFIX}{manifest.position.steps_done}"
    final = directory / made
    if not _is_there(directory, made, made_from=name):
        draft = directory / DRAFT
        shutil.rmtree(draft, ignore_errors=True)  # of a conversion that was killed
        draft.mkdir()
        try:
            write_portable(directory, name, manifest, draft)
            if final.exists():
                shutil.rmtree(final)  # damaged: it could not be used any more
            draft.rename(final)
        except OSError as problem:
            raise InputError(
                f"the converted checkpoint cannot be written to {directory}",
                why=problem.strerror or str(problem),
                fix="make room there (it takes as much as the checkpoint itself), then run the same command again",
            ) from problem
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    write_latest(directory, made)
    return made


def _is_there(directory: Path, made: str, *, made_from: str) -> bool:
    """Whether an earlier conversion of the same checkpoint is whole."""
    try:
        return (directory / made).is_dir() and require_portable(directory, made).made_from == made_from
    except InputError:
        return False


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Keep a second conversion of the folder waiting; a kill releases the lock."""
    try:
        lock = (directory / LOCK).open("w")
    except OSError as problem:
        raise InputError(
            f"nothing can be written to {directory}",
            why=problem.strerror or str(problem),
            fix="the converted checkpoint lies beside the old one: make the folder writable, or copy it",
        ) from problem
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def loads_as_is(directory: Path, task: TrialTask) -> bool:
    """Whether the task's layout can load the newest checkpoint without converting it, or there is none to load."""
    name = newest(directory) if directory.is_dir() else None
    if name is None or read_portable(directory, name) is not None:
        return True
    return read_manifest(directory, name).layout == checkpoint_layout(task.candidate)


def _task_of(path: Path) -> TrialTask:
    try:
        return from_plain(TrialTask, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, json.JSONDecodeError, DecodeError) as problem:
        raise InputError(
            f"{path} is not the task of a plan", why=str(problem), fix="name the task.json of a plan folder"
        ) from None


def _run(options: argparse.Namespace) -> str:
    directory = options.directory
    if options.task is not None:
        task = _task_of(options.task)
        if directory is None and not task.training.checkpoint_dir:
            raise InputError(
                f"{options.task} names no checkpoint folder",
                why="the job has no training.checkpoint",
                fix="name the folder on the command line",
            )
        directory = directory or Path(task.training.checkpoint_dir)
        if loads_as_is(directory, task):
            return f"nothing to convert in {directory}: the plan loads what is there"
    if directory is None:
        raise InputError(
            "no checkpoint folder is named", why="there is nothing to convert", fix="name it, or a plan's --task"
        )
    name = convert(directory)
    return f"{directory / name} loads under every layout, and is what --resume goes on from now"


def main(arguments: list[str] | None = None) -> int:
    """Convert; the exit code says how it ended (2: the input is wrong)."""
    parser = argparse.ArgumentParser(prog="python -m planner.runtime.convert_checkpoint", description=__doc__)
    parser.add_argument("directory", nargs="?", type=Path, help="the folder that holds `latest`")
    parser.add_argument("--task", type=Path, help="task.json of the plan that shall go on")
    options = parser.parse_args(arguments)
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    try:
        print(_run(options), flush=True)
    except PlannerError as problem:
        print(problem, file=sys.stderr, flush=True)
        return problem.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
