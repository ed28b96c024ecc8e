"""The shards of a parameter are parts of one full parameter, whatever the layout and the size of the blocks drawn."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from planner.errors import InputError
from planner.runtime.grid import TensorGroup
from planner.runtime.initialisation import BLOCK_ELEMENTS, FirstValues, Placement, materialise
from planner.runtime.tensor_parallel import shard_of, split_columns

SIZE = 2


def placement(
    rank: int, *, dtype: torch.dtype = torch.float32, seed: int = 3, block_elements: int = BLOCK_ELEMENTS
) -> Placement:
    return Placement(
        block_elements=block_elements,
        seed=seed,
        device=torch.device("cpu"),
        dtype=dtype,
        tensor_rank=rank,
        first_values=lambda name, shape: FirstValues(mean=0.0, deviation=0.5),
    )


def local_weight(where: Placement, *, sections: tuple[int, ...], transposed: bool, size: int = SIZE) -> torch.Tensor:
    """A linear layer's weight as one rank holds it."""
    with torch.device("meta"):
        linear = nn.Linear(12, 6, bias=False) if transposed else nn.Linear(6, 12, bias=False)
    if size > 1:
        group = TensorGroup(process_group=None, rank=where.tensor_rank, size=size)
        split_columns(linear, group=group, transposed=transposed, sections=sections)
    materialise(linear, prefix="layer", placement=where)
    return linear.weight.detach()


@pytest.mark.parametrize("block_elements", [1 << 25, 7, 1])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("sections", [(), (4, 4, 4), (8, 2, 2)])
def test_materialise_shards_are_the_parts_of_the_full_parameter(
    sections: tuple[int, ...], transposed: bool, block_elements: int
) -> None:
    full = local_weight(placement(0, block_elements=block_elements), sections=sections, transposed=transposed, size=1)
    dim = 1 if transposed else 0
    assert full.std() > 0.3
    for rank in range(SIZE):
        parts = []
        offset = 0
        for width in sections or (12,):
            parts.append(full.narrow(dim, offset + rank * width // SIZE, width // SIZE))
            offset += width
        local = local_weight(placement(rank, block_elements=block_elements), sections=sections, transposed=transposed)
        torch.testing.assert_close(local, torch.cat(parts, dim=dim), rtol=0, atol=0)


def test_materialise_other_name_or_seed_gives_other_values_and_dtype_only_rounds() -> None:
    def weight(prefix: str, where: Placement) -> torch.Tensor:
        with torch.device("meta"):
            linear = nn.Linear(4, 4, bias=False)
        materialise(linear, prefix=prefix, placement=where)
        return linear.weight.detach()

    base = weight("a", placement(0))
    assert not torch.equal(base, weight("b", placement(0)))
    assert not torch.equal(base, weight("a", placement(0, seed=4)))
    assert torch.equal(base.bfloat16(), weight("a", placement(0, dtype=torch.bfloat16)))


def test_materialise_replicated_parameters_are_counted_in_norms_on_the_first_rank_only() -> None:
    group = TensorGroup(process_group=None, rank=1, size=SIZE)
    with torch.device("meta"):
        block = nn.ModuleDict({"cut": nn.Linear(4, 4, bias=False), "whole": nn.LayerNorm(4)})
    split_columns(block["cut"], group=group, transposed=False)
    materialise(block, prefix="", placement=placement(1))
    assert block["cut"].weight.model_parallel
    assert not block["whole"].weight.model_parallel


def test_shard_of_indivisible_section_refused_naming_it() -> None:
    group = TensorGroup(process_group=None, rank=0, size=4)
    with pytest.raises(InputError, match="the vocabulary of size 10 cannot be split over 4"):
        shard_of((10, 3), dim=0, sections=(10,), group=group, what="the vocabulary")
