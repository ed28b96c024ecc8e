"""The files around DeepSpeed's own in a checkpoint folder.

They say which checkpoint is the newest, whether it is whole, and where in its files each part of a parameter lies; and
there are checkpoints of whole parameters, which load under every layout.

    latest                        the name of the newest checkpoint, written last and whole or not at all
    global_step12/                DeepSpeed's files, and beside them
        planner_checkpoint.json   layout, run, position and the size of every file
        planner_parts_00000.json  of each rank that holds what no other does: where its parts lie
    portable_step12/              made by `convert_checkpoint`: every parameter whole
        planner_portable.json     names, shapes, position
        weights.f32, <state>.f32  the parameters (and each optimizer state) one after the other

Owns names, records and their reading; imports neither torch nor DeepSpeed.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from planner.errors import InputError
from planner.runtime.whole_file import write_whole
from planner.spec._record import record
from planner.spec.checkpoint import CheckpointLayout, RunIdentity
from planner.spec.codec import DecodeError, from_plain, to_plain

T = TypeVar("T")

FORMAT = 1
LATEST = "latest"
OWN_PREFIX = "global_step"  # DeepSpeed's own name of a checkpoint (runtime/engine.py, 0.19.8)
PORTABLE_PREFIX = "portable_step"
MANIFEST = "planner_checkpoint.json"
PORTABLE = "planner_portable.json"
WEIGHTS = "weights"
STEP = "step"  # the optimizer's own count of steps: one number a parameter, not one an element


@record
class Position:
    """How far the training is."""

    steps_done: int
    samples_done: int
    skipped_steps: int
    schedule_step: int


@record
class FileSize:
    name: str
    num_bytes: int


@record
class Manifest:
    """What has to be known of a checkpoint before DeepSpeed reads it. `ranks`: those that wrote their parts down;
    `files`: what it is made of, () until all of them are on the disk."""

    format: int
    layout: CheckpointLayout
    run: RunIdentity
    position: Position
    ranks: tuple[int, ...]
    files: tuple[FileSize, ...]


@record
class Place:
    """Where a value lies inside a file of DeepSpeed: keys and indexes from the outside in, each as JSON."""

    file: str
    path: tuple[str, ...]

    def of(self, content: Any) -> Any:
        """The value in the file's content. Raises KeyError, IndexError or TypeError when it is not there."""
        for key in self.path:
            content = content[json.loads(key)]
        return content


def place(file: str, *keys: str | int) -> Place:
    """A place by its keys."""
    return Place(file=file, path=tuple(json.dumps(key) for key in keys))


@record
class SavedTensor:
    """A tensor of fp32 values and what the optimizer keeps for each of them. `states` holds the keys of the latter."""

    weights: Place
    states_at: Place
    states: tuple[str, ...]
    counts_steps: bool  # there is a number of steps, too


@record
class ShardedName:
    """A parameter by transformers' name, and which part of it this rank holds: `pieces` along `dim`; dim -1: all."""

    name: str
    shape: tuple[int, ...]
    dim: int = -1
    pieces: tuple[tuple[int, int], ...] = ()


@record
class SavedPart:
    """`count` elements of the rank's (flattened) part of a parameter, from `start` on, lie in tensor number `tensor`
    from `offset` on."""

    parameter: int  # index into the rank's parameters
    start: int
    count: int
    tensor: int
    offset: int


@record
class SavedBuffer:
    name: str
    place: Place


@record
class RankParts:
    """What one rank's files hold. `refusal`: why this checkpoint cannot be taken apart; "" when it can."""

    format: int
    rank: int
    refusal: str
    parameters: tuple[ShardedName, ...]
    tensors: tuple[SavedTensor, ...]
    parts: tuple[SavedPart, ...]
    buffers: tuple[SavedBuffer, ...] = ()


@record
class PortableParameter:
    """`offset` (in elements) is the same in every file. `step`: the optimizer's count, -1 where it keeps none."""

    name: str
    shape: tuple[int, ...]
    offset: int
    step: int


@record
class PortableIndex:
    format: int
    run: RunIdentity
    position: Position
    made_from: str  # the checkpoint's name
    states: tuple[str, ...]  # of the optimizer: a file each, like the weights
    num_elements: int
    parameters: tuple[PortableParameter, ...]
    has_buffers: bool = False


_PARTS = re.compile(r"planner_parts_(\d+)\.json")


def parts_name(rank: int) -> str:
    """The file of one rank's parts."""
    return f"planner_parts_{rank:05d}.json"


def ranks_with_parts(directory: Path, name: str) -> tuple[int, ...]:
    """The ranks whose parts lie beside a checkpoint."""
    found = (_PARTS.fullmatch(path.name) for path in (directory / name).iterdir())
    return tuple(sorted(int(match.group(1)) for match in found if match is not None))


def forget_checkpoint(directory: Path, name: str) -> None:
    """Take away what an earlier save under this name wrote down: it is no checkpoint until it is saved again."""
    (directory / name / MANIFEST).unlink(missing_ok=True)
    for rank in ranks_with_parts(directory, name):
        (directory / name / parts_name(rank)).unlink(missing_ok=True)


def values_name(key: str) -> str:
    """The file of the weights, or of one optimizer state, of a portable checkpoint."""
    return f"{key}.f32"


BUFFERS_FILE = "buffers.pt"


def newest(directory: Path) -> str | None:
    """The name in `latest`; None when there is none. Raises InputError for one that leads nowhere."""
    try:
        name = (directory / LATEST).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as problem:
        raise InputError(
            f"{directory / LATEST} cannot be read",
            why=str(problem),
            fix="write the name of a checkpoint that is there into that file, or move the folder away",
        ) from None
    if not name or "/" in name or not (directory / name).is_dir():
        raise gone(directory)
    return name


def gone(directory: Path) -> InputError:
    """The error of a `latest` that names what is not there."""
    return InputError(
        f"the checkpoint that {directory}/latest names cannot be found",
        why="to begin anew would write over what is left of the training",
        fix=f"{_another(directory, '')}, or move the folder away",
    )


def foreign(directory: Path, name: str) -> InputError:
    """The error of a checkpoint that says nothing of its layout."""
    return InputError(
        f"the checkpoint {directory / name} is not one that this meshplan wrote",
        why=f"it has no {MANIFEST}, so how it is cut into files and which samples it has seen is unknown",
        fix="go on with the program that wrote it, or train into another checkpoint folder",
    )


def damaged(directory: Path, name: str, why: str) -> InputError:
    """The error of a checkpoint that is not whole, with the next best that is."""
    return InputError(
        f"the checkpoint {directory / name} is damaged",
        why=" ".join(why.split())[:500],
        fix=f"restore its files from a copy; or {_another(directory, name)}",
    )


def _another(directory: Path, bad: str) -> str:
    """What to write into `latest` instead."""
    try:
        whole = [one.name for one in directory.iterdir() if one.name != bad and _is_whole(one)]
    except OSError:
        whole = []
    if not whole:
        return f"write the name of a checkpoint that is whole into {directory / LATEST}"
    best = max(whole, key=step_of)
    return f"go on from {best}, which is whole: echo {best} > {directory / LATEST}"


def step_of(name: str) -> int:
    """The optimizer steps done at a checkpoint, by its name; -1 for another name."""
    digits = name.removeprefix(OWN_PREFIX).removeprefix(PORTABLE_PREFIX)
    return int(digits) if digits.isdecimal() else -1


def _is_whole(path: Path) -> bool:
    """Asks for no advice, as the errors of `damaged` do: that looks at all other checkpoints in turn."""
    try:
        if (path / PORTABLE).is_file():
            return not _fault_of_portable(path, _read(path / PORTABLE, PortableIndex))
        return not _fault(path, _read(path / MANIFEST, Manifest).files)
    except (OSError, ValueError):
        return False


def outlived(directory: Path, *, keep: int) -> tuple[Path, ...]:
    """The checkpoints that go when the `keep` last completed ones stay, whatever their steps: a run that was sent back
    to an earlier step completes lower numbers after higher ones. One that is not whole is never among those that stay;
    it goes once it is older than they are. Folders that no meshplan wrote stay."""
    found = [path for path in directory.glob("*_step*") if step_of(path.name) >= 0 and _is_ours(path)]
    done = {path: _is_whole(path) for path in found}
    whole = sorted((path for path in found if done[path]), key=_completed)
    if len(whole) < keep:
        return ()
    oldest = _completed(whole[-keep])
    torn = (path for path in found if not done[path] and _completed(path) < oldest)
    return (*whole[:-keep], *torn)


def _is_ours(path: Path) -> bool:
    return path.is_dir() and any((path / name).is_file() for name in (MANIFEST, PORTABLE, parts_name(0)))


def _completed(path: Path) -> tuple[int, int]:
    """When its last file was named (of one that is not whole: when its folder last changed), and its step."""
    named = next((path / name for name in (PORTABLE, MANIFEST) if (path / name).is_file()), path)
    return named.stat().st_mtime_ns, step_of(path.name)


def complete_checkpoint(directory: Path, name: str) -> None:
    """Every rank's files are on the disk: write their sizes down, and name the checkpoint the newest. One rank does."""
    manifest = read_manifest(directory, name)
    write_record(directory / name / MANIFEST, replace(manifest, files=file_sizes(directory / name)))
    write_latest(directory, name)


def write_latest(directory: Path, name: str) -> None:
    """Name the newest checkpoint."""
    write_whole(directory / LATEST, name, durable=True)


def write_record(path: Path, value: Any) -> None:
    """One record as JSON, whole or not at all, and on the disk when this returns."""
    write_whole(path, json.dumps(to_plain(value), separators=(",", ":")) + "\n", durable=True)


def read_manifest(directory: Path, name: str) -> Manifest:
    """What is known of a checkpoint. Raises InputError when there is no manifest, or a damaged one."""
    path = directory / name / MANIFEST
    if not path.exists():
        raise foreign(directory, name)
    return _checked(directory, name, path, Manifest)


def read_parts(directory: Path, name: str, rank: int) -> RankParts:
    """One rank's parts. Raises InputError when they are not there or cannot be read."""
    return _checked(directory, name, directory / name / parts_name(rank), RankParts)


def read_portable(directory: Path, name: str) -> PortableIndex | None:
    """The index of a portable checkpoint; None for any other. Raises InputError when it is damaged."""
    path = directory / name / PORTABLE
    return _checked(directory, name, path, PortableIndex) if path.exists() else None


def _checked(directory: Path, name: str, path: Path, kind: type[T]) -> T:
    try:
        return _read(path, kind)
    except (OSError, ValueError) as problem:
        raise damaged(directory, name, f"{path.name}: {problem}") from None


def _read(path: Path, kind: type[T]) -> T:
    value = json.loads(path.read_text(encoding="utf-8"))
    found = value.get("format", FORMAT) if isinstance(value, dict) else FORMAT
    if isinstance(found, int) and found > FORMAT:
        raise DecodeError(f"it has format {found}, this meshplan knows formats up to {FORMAT}: install a newer one")
    return from_plain(kind, value)


def require_files(directory: Path, name: str, files: tuple[FileSize, ...]) -> None:
    """Raise InputError unless each file is there with its size."""
    fault = _fault(directory / name, files)
    if fault:
        raise damaged(directory, name, fault)


def _fault(folder: Path, files: tuple[FileSize, ...]) -> str:
    if not files:
        return "it was never finished"
    for file in files:
        try:
            size = (folder / file.name).stat().st_size
        except OSError:
            return f"its file {file.name} is missing"
        if size != file.num_bytes:
            return f"{file.name} has {size} bytes of {file.num_bytes}"
    return ""


def require_portable(directory: Path, name: str) -> PortableIndex:
    """The index of a portable checkpoint whose files are all there. Raises InputError otherwise."""
    index = read_portable(directory, name)
    if index is None:
        raise damaged(directory, name, f"{PORTABLE} is missing")
    fault = _fault_of_portable(directory / name, index)
    if fault:
        raise damaged(directory, name, fault)
    return index


def _fault_of_portable(folder: Path, index: PortableIndex) -> str:
    sizes = [FileSize(name=values_name(key), num_bytes=4 * index.num_elements) for key in (WEIGHTS, *index.states)]
    fault = _fault(folder, tuple(sizes))
    if not fault and index.has_buffers and not (folder / BUFFERS_FILE).is_file():
        return f"its file {BUFFERS_FILE} is missing"
    return fault


def file_sizes(folder: Path) -> tuple[FileSize, ...]:
    """All files of a folder but the manifest itself, by name."""
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.stat().st_size) for entry in entries if entry.is_file()]
    return tuple(
        FileSize(name=name, num_bytes=size)
        for name, size in sorted(found)
        if name != MANIFEST and not name.startswith(".")
    )
