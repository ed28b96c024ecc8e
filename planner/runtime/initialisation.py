"""Gives parameters built on the meta device their storage and first values, one parameter at a time.

Each full parameter has values that depend on the seed and its canonical name only (the name transformers gives it), so
every layout starts from the same model, whatever part of a parameter a rank holds. Values are drawn in blocks of rows;
a rank draws the blocks that its shard touches and never holds more than one block beside the shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn

from planner.errors import InputError
from planner.runtime.data import derived_seed
from planner.runtime.gradient_norm import mark_counted
from planner.runtime.lora_names import is_adapter
from planner.runtime.pretrained import Weights
from planner.runtime.tensor_parallel import Shard
from planner.spec._record import record

BLOCK_ELEMENTS = 1 << 25  # 128 MiB of fp32 at a time


@record
class FirstValues:
    """How a parameter starts: drawn from a normal distribution around `mean`, or `mean` everywhere (deviation 0)."""

    mean: float
    deviation: float = 0.0


@record
class Placement:
    """Where parameters come to life, and what their values are drawn from."""

    seed: int
    device: torch.device
    dtype: torch.dtype
    tensor_rank: int
    first_values: Callable[[str, tuple[int, ...]], FirstValues]  # of a canonical name and full shape
    block_elements: int = BLOCK_ELEMENTS
    weights: Weights | None = None  # read instead of drawn, where the job names some


def materialise(module: nn.Module, *, prefix: str, placement: Placement) -> None:
    """Replace every parameter on the meta device by a real one with its first values; others stay as they are."""
    for path, owner in module.named_modules():
        for name, parameter in list(owner.named_parameters(recurse=False)):
            if parameter.is_meta:
                canonical = ".".join(part for part in (prefix, path, name) if part)
                setattr(owner, name, _real(parameter, canonical=canonical, placement=placement))


def _real(parameter: nn.Parameter, *, canonical: str, placement: Placement) -> nn.Parameter:
    shard: Shard | None = getattr(parameter, "shard", None)
    local = torch.empty(parameter.shape, dtype=placement.dtype, device=placement.device)
    full_shape = shard.full_shape if shard else tuple(parameter.shape)
    values = placement.first_values(canonical, full_shape)
    if placement.weights is not None and not is_adapter(canonical):
        for block, rows in _stored_blocks(canonical, full_shape, placement=placement, shard=shard):
            _copy_part(local, block, rows=rows, shard=shard)
    elif values.deviation == 0.0:
        local.fill_(values.mean)
    else:
        for block, rows in _blocks(canonical, full_shape, values=values, placement=placement, shard=shard):
            _copy_part(local, block, rows=rows, shard=shard)
    real = nn.Parameter(local, requires_grad=parameter.requires_grad)
    real.canonical = canonical
    if shard is not None:
        real.shard = shard
    mark_counted(real, is_shard=shard is not None, tensor_rank=placement.tensor_rank)
    return real


def _blocks(
    canonical: str, shape: tuple[int, ...], *, values: FirstValues, placement: Placement, shard: Shard | None
) -> Iterator[tuple[torch.Tensor, tuple[int, int]]]:
    """The blocks of rows of a full parameter that the shard touches, in fp32, each with its range of rows."""
    generator = torch.Generator(device=placement.device)
    for start, stop in _row_ranges(shape, placement=placement, shard=shard):
        generator.manual_seed(derived_seed(placement.seed, canonical, start))
        block = torch.empty((stop - start, *shape[1:]), dtype=torch.float32, device=placement.device)
        yield block.normal_(values.mean, values.deviation, generator=generator), (start, stop)


def _stored_blocks(
    canonical: str, shape: tuple[int, ...], *, placement: Placement, shard: Shard | None
) -> Iterator[tuple[torch.Tensor, tuple[int, int]]]:
    """As `_blocks`, from the job's files. InputError when they are not this model's."""
    weights = placement.weights
    assert weights is not None  # noqa: S101 - the caller asked
    found = weights.shape(canonical)
    if found is None:
        raise weights.missing(canonical)
    if found != shape:
        raise InputError(
            f"the weights of {canonical} have shape {found}, the model's have {shape}",
            why="training.pretrained holds another model, or another size of it",
            fix="name a folder of this very model, or take the model's config from that folder",
        )
    for start, stop in _row_ranges(shape, placement=placement, shard=shard):
        yield weights.rows(canonical, start, stop).to(placement.device), (start, stop)


def _row_ranges(shape: tuple[int, ...], *, placement: Placement, shard: Shard | None) -> Iterator[tuple[int, int]]:
    """The blocks of rows that the shard touches."""
    row_elements = max(1, torch.Size(shape[1:]).numel())
    rows_per_block = max(1, placement.block_elements // row_elements)
    for start in range(0, shape[0], rows_per_block):
        stop = min(shape[0], start + rows_per_block)
        if shard is None or shard.dim != 0 or any(a < stop and start < b for a, b in shard.pieces):
            yield start, stop


def _copy_part(local: torch.Tensor, block: torch.Tensor, *, rows: tuple[int, int], shard: Shard | None) -> None:
    start, stop = rows
    if shard is None:
        local[start:stop].copy_(block)
        return
    if shard.dim != 0:
        parts = [block.narrow(shard.dim, first, last - first) for first, last in shard.pieces]
        local[start:stop].copy_(torch.cat(parts, dim=shard.dim))
        return
    offset = 0
    for first, last in shard.pieces:
        low, high = max(first, start), min(last, stop)
        if low < high:
            local[offset + low - first : offset + high - first].copy_(block[low - start : high - start])
        offset += last - first
