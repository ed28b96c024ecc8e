"""Which samples a step consumes, and that their tokens depend on nothing but seed and number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import InputError
from planner.runtime.data import SyntheticTokens, TokenFile, TokenSamples, micro_batches, sample_indices
from planner.spec import BatchSplit, DataSpec

small = st.integers(min_value=1, max_value=6)


@given(micro=small, accumulation=small, ranks=small, step=st.integers(min_value=0, max_value=50))
def test_sample_indices_all_ranks_cover_the_step_once(micro: int, accumulation: int, ranks: int, step: int) -> None:
    batch = BatchSplit(micro_batch_size=micro, gradient_accumulation_steps=accumulation, data_parallel_size=ranks)
    drawn = [sample_indices(batch, step=step, data_parallel_rank=rank) for rank in range(ranks)]
    assert all([len(part) for part in parts] == [micro] * accumulation for parts in drawn)
    consumed = sorted(index for parts in drawn for part in parts for index in part)
    first = step * batch.global_batch_size
    assert consumed == list(range(first, first + batch.global_batch_size))


def test_synthetic_tokens_same_number_same_tokens_whatever_was_drawn_before() -> None:
    source = SyntheticTokens(seed=1, seq_len=50, vocab_size=11)
    later = source.tokens(7)
    torch.manual_seed(99)
    again = SyntheticTokens(seed=1, seq_len=50, vocab_size=11)
    again.tokens(3)
    assert torch.equal(again.tokens(7), later)
    assert not torch.equal(again.tokens(8), later)
    assert not torch.equal(SyntheticTokens(seed=2, seq_len=50, vocab_size=11).tokens(7), later)
    assert set(later.tolist()) <= set(range(11))


@pytest.mark.parametrize("token_bytes", [2, 4])
def test_token_file_one_pass_visits_every_sequence_once_in_another_order_each_time(
    token_bytes: int, tmp_path: Path
) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(np.arange(43).astype(f"<u{token_bytes}").tobytes() + b"\x01")  # a remainder and a torn token
    data = DataSpec(path=str(path), token_bytes=token_bytes)
    source = TokenFile(data, seed=5, seq_len=4, vocab_size=50)
    first, second = ([tuple(source.tokens(index).tolist()) for index in range(n, n + 10)] for n in (0, 10))
    whole = [tuple(range(start, start + 4)) for start in range(0, 40, 4)]
    assert sorted(first) == sorted(second) == whole
    assert first != second != whole
    jumped = TokenFile(data, seed=5, seq_len=4, vocab_size=50)
    assert tuple(jumped.tokens(13).tolist()) == second[3]  # a resume finds the same place


@pytest.mark.parametrize(
    ("content", "vocab_size", "reason"),
    [(None, 50, "does not exist"), (3, 50, "fewer than one sequence"), (40, 20, "vocabulary ends at 20")],
)
def test_token_file_unusable_refused_with_reason(
    content: int | None, vocab_size: int, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "tokens"
    if content is not None:
        path.write_bytes(np.arange(content).astype("<u4").tobytes())
    with pytest.raises(InputError, match=reason):
        source = TokenFile(DataSpec(path=str(path)), seed=1, seq_len=8, vocab_size=vocab_size)
        [source.tokens(index) for index in range(5)]


def test_micro_batches_stack_samples_in_order() -> None:
    source = SyntheticTokens(seed=1, seq_len=5, vocab_size=9)
    batches = list(micro_batches(TokenSamples(source), [[4, 2], [0, 1]], torch.device("cpu")))
    assert torch.equal(batches[0]["tokens"], torch.stack([source.tokens(4), source.tokens(2)]))
    assert torch.equal(batches[1]["tokens"], torch.stack([source.tokens(0), source.tokens(1)]))
