"""Puts the parts of a checkpoint together to whole parameters, file by file, through mapped memory."""

from __future__ import annotations

import math
import os
import pickle
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address

from planner.errors import InputError
from planner.runtime.checkpoint_files import (
    BUFFERS_FILE,
    FORMAT,
    PORTABLE,
    STEP,
    WEIGHTS,
    Manifest,
    Place,
    PortableIndex,
    PortableParameter,
    RankParts,
    SavedPart,
    damaged,
    read_parts,
    values_name,
    write_record,
)
from planner.runtime.shards import copy_part

# What a file of DeepSpeed 0.19.8 holds beside tensors and plain values (torch's get_unsafe_globals_in_checkpoint).
_DEEPSPEED_OBJECTS = (DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address)
_MAX_WORDS = 300


def write_portable(directory: Path, name: str, manifest: Manifest, target: Path) -> None:
    """Fill the (empty) folder `target` with the whole parameters of a checkpoint.

    Raises InputError when a file cannot be read, or parts of a parameter are in none of them.
    """
    ranks = [read_parts(directory, name, rank) for rank in manifest.ranks]
    refusal = next((rank.refusal for rank in ranks if rank.refusal), "")
    if refusal:
        raise InputError(
            f"the checkpoint {directory / name} cannot be converted",
            why=refusal,
            fix="go on under the layout that it was made with",
        )
    assembly = _Assembly(directory, name, ranks, target)
    for file, wanted in _by_file(ranks).items():
        content = _load(directory, name, file)
        try:
            for rank, part, key, place in wanted:
                assembly.take(rank, part, key, place.of(content))
        except (KeyError, IndexError, TypeError, AttributeError, RuntimeError) as problem:
            raise damaged(directory, name, f"{file} does not hold what it should: {problem!r}") from None
        del content  # Keep: unmaps the file before the next is opened
    buffers = _buffers(directory, name, ranks)
    assembly.finish(manifest, buffers)


_Wanted = tuple[RankParts, SavedPart, str, Place]


def _by_file(ranks: Iterable[RankParts]) -> dict[str, list[_Wanted]]:
    """What to take from each file: of every part its weights, its optimizer states, its count of steps."""
    wanted: dict[str, list[_Wanted]] = defaultdict(list)
    for rank in ranks:
        for part in rank.parts:
            tensor = rank.tensors[part.tensor]
            wanted[tensor.weights.file].append((rank, part, WEIGHTS, tensor.weights))
            keys = (*tensor.states, STEP) if tensor.counts_steps else tensor.states
            for key in keys:
                at = Place(file=tensor.states_at.file, path=(*tensor.states_at.path, f'"{key}"'))
                wanted[at.file].append((rank, part, key, at))
    return wanted


def _load(directory: Path, name: str, file: str) -> Any:
    """A file of DeepSpeed, mapped. Of Python's objects only those that DeepSpeed itself writes are made: a checkpoint
    may come from elsewhere, and any other object in it could run code when it is made."""
    try:
        with torch.serialization.safe_globals([*_DEEPSPEED_OBJECTS]):
            return torch.load(directory / name / file, map_location="cpu", mmap=True, weights_only=True)
    except FileNotFoundError:
        raise damaged(directory, name, f"its file {file} is missing") from None
    except pickle.UnpicklingError as problem:
        why = f"{file} holds something else than tensors and DeepSpeed's own objects: {str(problem)[:_MAX_WORDS]}"
        raise damaged(directory, name, why) from None
    except Exception as problem:  # whatever torch and pickle raise: the file is not what was written
        raise damaged(directory, name, f"{file}: {type(problem).__name__}: {problem}") from None


def _buffers(directory: Path, name: str, ranks: Iterable[RankParts]) -> dict[str, torch.Tensor]:
    found = {}
    for rank in ranks:
        for buffer in rank.buffers:
            found[buffer.name] = buffer.place.of(_load(directory, name, buffer.place.file)).clone()
    return found


class _Assembly:
    """The files of whole parameters while they are filled."""

    def __init__(self, directory: Path, name: str, ranks: Iterable[RankParts], target: Path) -> None:
        self._where = (directory, name)
        self._target = target
        shapes: dict[str, tuple[int, ...]] = {}
        states: set[str] = set()
        for rank in ranks:
            shapes.update((parameter.name, parameter.shape) for parameter in rank.parameters)
            states.update(key for tensor in rank.tensors for key in tensor.states)
        self._shapes = dict(sorted(shapes.items()))
        self._states = tuple(sorted(states))
        self._offsets: dict[str, int] = {}
        self._size = 0
        for parameter, shape in self._shapes.items():
            self._offsets[parameter] = self._size
            self._size += math.prod(shape)
        self._filled: dict[tuple[str, str], int] = defaultdict(int)
        self._steps: dict[str, int] = defaultdict(lambda: -1)
        self._files = {key: self._mapped(key) for key in (WEIGHTS, *self._states)}

    def _mapped(self, key: str) -> torch.Tensor:
        path = self._target / values_name(key)
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, 4 * self._size)  # so that a full disk is an error, not a signal
        return torch.from_file(str(path), shared=True, size=self._size, dtype=torch.float32)

    def take(self, rank: RankParts, part: SavedPart, key: str, value: Any) -> None:
        """One part of the weights, of a state, or the count of steps."""
        named = rank.parameters[part.parameter]
        if key == STEP:
            self._steps[named.name] = max(self._steps[named.name], int(value))
            return
        offset = self._offsets[named.name]
        whole = self._files[key][offset : offset + math.prod(named.shape)]
        own = value.detach().reshape(-1)[part.offset : part.offset + part.count]
        if own.numel() != part.count:
            raise IndexError(f"{named.name} has {own.numel()} of {part.count} values")
        copy_part(whole, own, named, start=part.start, to_whole=True)
        self._filled[key, named.name] += part.count

    def finish(self, manifest: Manifest, buffers: dict[str, torch.Tensor]) -> None:
        """Refuse gaps, put everything on the disk, and write the index last."""
        for parameter, shape in self._shapes.items():
            for key in self._files:
                if self._filled[key, parameter] != math.prod(shape):
                    missing = math.prod(shape) - self._filled[key, parameter]
                    raise damaged(*self._where, f"{missing} values of {key} of {parameter} are in none of its files")
        self._files.clear()
        if buffers:
            torch.save(buffers, self._target / BUFFERS_FILE)
        for path in self._target.iterdir():
            with path.open("rb+") as file:
                os.fsync(file.fileno())
        index = PortableIndex(
            format=FORMAT,
            run=manifest.run,
            position=manifest.position,
            made_from=self._where[1],
            states=self._states,
            num_elements=self._size,
            parameters=tuple(
                PortableParameter(
                    name=parameter, shape=shape, offset=self._offsets[parameter], step=self._steps[parameter]
                )
                for parameter, shape in self._shapes.items()
            ),
            has_buffers=bool(buffers),
        )
        write_record(self._target / PORTABLE, index)
