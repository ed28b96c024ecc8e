"""Copying between a whole parameter and the part of it that one rank holds, without a copy of either beside them.

A rank's part is a range of its flattened shard; the shard is what tensor parallelism left it of the parameter. Such a
range is taken apart into pieces that lie in one stretch on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from planner.runtime.checkpoint_files import ShardedName


def local_shape(parameter: ShardedName) -> tuple[int, ...]:
    """The shape of the rank's shard."""
    if parameter.dim < 0:
        return parameter.shape
    shape = list(parameter.shape)
    shape[parameter.dim] = sum(stop - start for start, stop in parameter.pieces)
    return tuple(shape)


def stretches(parameter: ShardedName, *, start: int, count: int) -> Iterator[tuple[int, int, int]]:
    """(place in the flattened whole, place in the part, length) of each stretch; the part is `count` elements of the
    flattened shard from `start` on."""
    if parameter.dim < 0:
        if count:
            yield start, 0, count
        return
    inner = math.prod(parameter.shape[parameter.dim + 1 :])
    row_whole = parameter.shape[parameter.dim] * inner
    row_local = sum(stop - first for first, stop in parameter.pieces) * inner
    end = start + count
    for row in range(start // row_local, -(-end // row_local)):
        local = row * row_local
        for first, stop in parameter.pieces:
            length = (stop - first) * inner
            low, high = max(local, start), min(local + length, end)
            if low < high:
                yield row * row_whole + first * inner + low - local, low - start, high - low
            local += length


def copy_part(whole: torch.Tensor, part: torch.Tensor, parameter: ShardedName, *, start: int, to_whole: bool) -> None:
    """Copy a part (one-dimensional) into the flattened whole, or out of it."""
    count = part.numel()
    block = _block(whole, part, parameter, start=start)
    if block is not None:
        source, target = (block[1], block[0]) if to_whole else block
        target.copy_(source)
        return
    for at, offset, length in stretches(parameter, start=start, count=count):
        source, target = whole[at : at + length], part[offset : offset + length]
        if to_whole:
            source, target = target, source
        target.copy_(source)


def _block(
    whole: torch.Tensor, part: torch.Tensor, parameter: ShardedName, *, start: int
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Both sides as one rectangle, where the shard is one run of columns and the part whole rows of it: then one copy
    does for the thousands of stretches that a row-parallel matrix has."""
    if parameter.dim <= 0 or len(parameter.pieces) != 1:
        return None
    inner = math.prod(parameter.shape[parameter.dim + 1 :])
    ((first, stop),) = parameter.pieces
    row_whole, row_local = parameter.shape[parameter.dim] * inner, (stop - first) * inner
    if start % row_local or part.numel() % row_local:
        return None
    rows = slice(start // row_local, (start + part.numel()) // row_local)
    return whole.view(-1, row_whole)[rows, first * inner : stop * inner], part.view(-1, row_local)
