"""Writes down, beside each checkpoint that DeepSpeed saves, where in its files each part of a parameter lies.

So that a checkpoint can be taken apart later by one process, without the ranks and the engine that made it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from planner.runtime.checkpoint_files import (
    FORMAT,
    STEP,
    Place,
    RankParts,
    SavedBuffer,
    SavedPart,
    SavedTensor,
    ShardedName,
    parts_name,
    place,
    write_record,
)
from planner.runtime.grid import Coordinates
from planner.runtime.live_parts import LivePart, LiveParts, LiveTensor, NoParts, live_parts


def write_parts(engine: Any, directory: Path, name: str, *, rank: int, where: Coordinates) -> None:
    """Write this rank's parts of a checkpoint that is about to be saved; nothing when others hold all of them."""
    try:
        live = live_parts(engine, directory=str(directory), name=name)
        parts = _own_parts(live, where)
        saved = _saved(live, parts, rank=rank, buffers=_buffers(engine.module, directory, name, engine, rank=rank))
    except NoParts as problem:
        if rank:
            return
        saved = RankParts(format=FORMAT, rank=rank, refusal=str(problem), parameters=(), tensors=(), parts=())
    if saved.parts or saved.buffers or saved.refusal:
        write_record(directory / name / parts_name(rank), saved)


def _own_parts(live: LiveParts, where: Coordinates) -> tuple[LivePart, ...]:
    """Those that no other rank writes down: of copies the first one's."""
    if where.data_rank and not live.is_shared:
        return ()
    return tuple(
        part
        for part in live.parts
        if (part.named.dim >= 0 or where.tensor_rank == 0) and not getattr(part.parameter, "ds_pipe_replicated", False)
    )


def _saved(live: LiveParts, parts: tuple[LivePart, ...], *, rank: int, buffers: tuple[SavedBuffer, ...]) -> RankParts:
    parameters: dict[ShardedName, int] = {}
    tensors: dict[int, int] = {}
    written = []
    for part in parts:
        written.append(
            SavedPart(
                parameter=parameters.setdefault(part.named, len(parameters)),
                start=part.start,
                count=part.count,
                tensor=tensors.setdefault(part.tensor, len(tensors)),
                offset=part.offset,
            )
        )
    return RankParts(
        format=FORMAT,
        rank=rank,
        refusal="",
        parameters=tuple(parameters),
        tensors=tuple(_saved_tensor(live.tensors[number], live) for number in tensors),
        parts=tuple(written),
        buffers=buffers,
    )


def _saved_tensor(tensor: LiveTensor, live: LiveParts) -> SavedTensor:
    state = live.inner.state.get(tensor.master, {})
    kept = {key: value for key, value in state.items() if value is not None}
    states = tuple(
        sorted(
            key
            for key, value in kept.items()
            if key != STEP and torch.is_tensor(value) and value.numel() == tensor.master.numel()
        )
    )
    strange = [key for key in kept if key != STEP and key not in states]
    if strange:
        raise NoParts(f"the optimizer keeps {strange[0]}, which is not a value for each element")
    return SavedTensor(weights=tensor.weights, states_at=tensor.states_at, states=states, counts_steps=STEP in kept)


def _buffers(module: nn.Module, directory: Path, name: str, engine: Any, *, rank: int) -> tuple[SavedBuffer, ...]:
    """Values that are no parameters (running means): DeepSpeed saves those of the first rank."""
    if rank:
        return ()
    kept = set(module.state_dict(keep_vars=True)) if any(True for _ in module.buffers()) else set()
    file = Path(engine._get_ckpt_name(str(directory), name)).name
    names = [path for path, _ in module.named_buffers() if path in kept]
    places: list[Place] = [place(file, "module", path) for path in names]
    return tuple(SavedBuffer(name=path, place=where) for path, where in zip(names, places))
