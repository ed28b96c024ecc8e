"""What collectives without peers leave behind: finite values, whatever was there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.distributed_c10d import AllgatherOptions, AllreduceOptions, ReduceOp, ReduceScatterOptions

from planner.runtime.emulation_values import EmulatedPeers, Invention, OwnVocabulary

SIZE = 4
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def peers(rank: int = 1, *, keeps_gathered: bool = False, integers: Callable[..., None] | None = None) -> EmulatedPeers:
    def refuse(tensor: torch.Tensor) -> None:
        raise AssertionError("no integers were expected")

    return EmulatedPeers(
        rank=rank, size=SIZE, invention=Invention(fill_integers=integers or refuse, keeps_gathered=keeps_gathered)
    )


def garbage(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape, float("nan"), dtype=dtype)


def options(kind: Any, op: Any = ReduceOp.SUM) -> Any:
    made = kind()
    if hasattr(made, "reduceOp"):
        made.reduceOp = op
    return made


@given(st.integers(0, SIZE - 1), st.sampled_from(DTYPES))
def test_gathered_memory_holds_this_ranks_part_everywhere(rank: int, dtype: torch.dtype) -> None:
    own = torch.randn(6).to(dtype)
    separate = garbage(SIZE * 6, dtype=dtype)
    peers(rank)._allgather_base(separate, own, options(AllgatherOptions))
    in_place = garbage(SIZE * 6, dtype=dtype)
    part = in_place.view(SIZE, -1)[rank]
    part.copy_(own)
    peers(rank)._allgather_base(in_place, part, options(AllgatherOptions))
    listed = [garbage(6, dtype=dtype) for _ in range(SIZE)]
    peers(rank).allgather([listed], [own], options(AllgatherOptions))
    for gathered in (separate, in_place, torch.cat(listed)):
        assert torch.equal(gathered.view(SIZE, -1), own.expand(SIZE, -1))


def test_weights_gathered_in_place_keep_the_values_of_the_step_before() -> None:
    weights = torch.arange(8.0)
    before = weights.clone()
    work = peers(keeps_gathered=True)._allgather_base(weights, weights.view(SIZE, -1)[1], options(AllgatherOptions))
    assert torch.equal(weights, before)
    assert not work.launched


@given(st.integers(0, SIZE - 1), st.sampled_from(DTYPES))
def test_scattered_sum_is_as_if_all_ranks_were_alike_and_a_mean_this_ranks_own(rank: int, dtype: torch.dtype) -> None:
    whole = torch.randn(SIZE * 3).to(dtype)
    part = whole.view(SIZE, -1)[rank].clone()
    total, mean, listed = (garbage(3, dtype=dtype) for _ in range(3))
    peers(rank)._reduce_scatter_base(total, whole.clone(), options(ReduceScatterOptions))
    peers(rank)._reduce_scatter_base(mean, whole.clone(), options(ReduceScatterOptions, ReduceOp.AVG))
    peers(rank).reduce_scatter([listed], [list(whole.clone().view(SIZE, -1))], options(ReduceScatterOptions))
    assert torch.equal(total, part * SIZE)
    assert torch.equal(listed, total)
    assert torch.equal(mean, part)


def test_scattered_sum_may_go_back_into_its_own_input() -> None:
    whole = torch.ones(SIZE * 3)  # as ZeRO-3 reduces a bucket
    peers(2)._reduce_scatter_base(whole.view(SIZE, -1)[2], whole, options(ReduceScatterOptions))
    assert whole.view(SIZE, -1).sum(dim=1).tolist() == [3.0, 3.0, 12.0, 3.0]


@pytest.mark.parametrize(("op", "expected"), [(ReduceOp.SUM, 12.0), (ReduceOp.MAX, 3.0), (ReduceOp.AVG, 3.0)])
def test_single_number_is_as_if_all_ranks_were_alike(op: Any, expected: float) -> None:
    number, many = torch.tensor(3.0), torch.tensor([3.0, 1.0])
    peers().allreduce([number], options(AllreduceOptions, op))
    work = peers().allreduce([many], options(AllreduceOptions, op))
    assert number.item() == expected
    assert many.tolist() == [3.0, 1.0]  # a large sum costs nothing and stays
    assert not work.launched


@given(st.sampled_from(DTYPES))
def test_received_activations_are_of_unit_size_and_gradients_small(dtype: torch.dtype) -> None:
    from_before, from_behind = garbage(4096, dtype=dtype), garbage(4096, dtype=dtype)
    peers(1).recv([from_before], 0, 0)
    peers(1).recv([from_behind], 2, 0)
    assert from_before.float().std().item() == pytest.approx(1.0, rel=0.1)
    assert from_behind.float().std().item() == pytest.approx(1e-3, rel=0.1)


def test_receiving_draws_nothing_from_the_generator_that_dropout_uses() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    peers().recv([garbage(64)], 0, 0)
    assert torch.equal(torch.rand(3), expected)


def test_received_integers_are_filled_by_who_knows_their_meaning() -> None:
    tensor = torch.zeros(3, dtype=torch.int64)
    peers(integers=lambda given: given.fill_(7)).recv([tensor], 0, 0)
    assert tensor.tolist() == [7, 7, 7]


class Tokens:
    def sample(self, index: int) -> dict[str, torch.Tensor]:
        return {"tokens": torch.arange(32)}


@pytest.mark.parametrize("rank", range(SIZE))
def test_tokens_are_moved_into_the_ranks_slice_of_the_vocabulary(rank: int) -> None:
    source = OwnVocabulary(Tokens(), tensor_rank=rank, tensor_size=SIZE, vocab_size=32)
    tokens = source.sample(0)["tokens"]
    assert tokens.tolist() == [rank * 8 + token % 8 for token in range(32)]
