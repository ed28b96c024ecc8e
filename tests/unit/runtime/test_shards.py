"""Parts of a shard and the whole parameter: whatever is taken apart can be put together again."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.runtime.checkpoint_files import ShardedName
from planner.runtime.shards import copy_part, local_shape


@st.composite
def splits(draw: st.DrawFn) -> tuple[tuple[ShardedName, ...], tuple[int, ...]]:
    """The shards of all ranks of one parameter: `sections` fused along `dim`, each cut evenly; and where each rank's
    flattened shard is cut into parts."""
    ranks = draw(st.integers(1, 3))
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    dim = draw(st.integers(-1, len(shape) - 1))
    if dim < 0:
        return (ShardedName(name="p", shape=tuple(shape)),), tuple(draw(st.lists(st.integers(0, 64), max_size=3)))
    shares = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    shape[dim] = sum(shares) * ranks
    shards = []
    for rank in range(ranks):
        offset, pieces = 0, []
        for share in shares:
            pieces.append((offset + rank * share, offset + (rank + 1) * share))
            offset += share * ranks
        shards.append(ShardedName(name="p", shape=tuple(shape), dim=dim, pieces=tuple(pieces)))
    return tuple(shards), tuple(draw(st.lists(st.integers(0, 64), max_size=3)))


@settings(deadline=None)
@given(splits())
def test_parts_put_together_give_the_whole_and_back(split: tuple[tuple[ShardedName, ...], tuple[int, ...]]) -> None:
    shards, cuts = split
    size = math.prod(shards[0].shape)
    whole = torch.arange(size, dtype=torch.float32)
    built = torch.full((size,), -1.0)
    for shard in shards:
        length = math.prod(local_shape(shard))
        ends = sorted({0, length, *(min(cut, length) for cut in cuts)})
        parts = []
        for start, stop in pairwise(ends):
            part = torch.empty(stop - start)
            copy_part(whole, part, shard, start=start, to_whole=False)
            copy_part(built, part, shard, start=start, to_whole=True)
            parts.append(part)
        expected = whole.view(shard.shape)
        if shard.dim >= 0:
            pieces = [expected.narrow(shard.dim, first, stop - first) for first, stop in shard.pieces]
            expected = torch.cat(pieces, dim=shard.dim)
        assert torch.equal(torch.cat(parts), expected.flatten())
    assert torch.equal(built, whole)
