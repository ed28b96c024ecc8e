"""The chunked loss and its gradients are those of the whole loss, whatever the chunk."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.runtime.chunked_loss import chunked_next_token_loss
from planner.runtime.grid import ALONE
from planner.runtime.tensor_parallel import next_token_loss

VOCABULARY, HIDDEN = 37, 12


def _inputs(batch: int, seq: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(batch * 1000 + seq)
    hidden = torch.randn(batch, seq, HIDDEN, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(VOCABULARY, HIDDEN, generator=generator).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(VOCABULARY, (batch, seq), generator=generator)


def _whole(hidden: torch.Tensor, weight: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return next_token_loss(torch.nn.functional.linear(hidden, weight), tokens, ALONE)


@settings(deadline=None, max_examples=30)
@given(batch=st.integers(1, 3), seq=st.integers(2, 9), chunk=st.integers(1, 30), scale=st.sampled_from([1.0, 4096.0]))
def test_chunked_loss_any_chunk_equals_whole_loss_and_gradients(batch: int, seq: int, chunk: int, scale: float) -> None:
    hidden, weight, tokens = _inputs(batch, seq, torch.float32)
    (scale * _whole(hidden, weight, tokens)).backward()
    wanted = hidden.grad, weight.grad
    other, matrix = hidden.detach().clone().requires_grad_(), weight.detach().clone().requires_grad_()
    loss = chunked_next_token_loss(other, matrix, tokens, ALONE, chunk_tokens=chunk)
    (scale * loss).backward()
    assert loss.item() == pytest.approx(_whole(hidden, weight, tokens).item(), rel=1e-6)
    for found, expected in zip((other.grad, matrix.grad), wanted):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6 * scale)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float16, 3e-3)])
def test_chunked_loss_16_bit_gradients_stay_within_its_digits_of_fp32(dtype: torch.dtype, tolerance: float) -> None:
    hidden, weight, tokens = _inputs(4, 64, dtype)
    exact = hidden.detach().float().requires_grad_(), weight.detach().float().requires_grad_()
    _whole(*exact, tokens).backward()
    loss = chunked_next_token_loss(hidden, weight, tokens, ALONE, chunk_tokens=50)
    (1024.0 * loss).backward()  # as a loss scale would
    for found, expected in zip((hidden.grad, weight.grad), exact):
        assert expected.grad is not None
        error = (found.float() / 1024.0 - expected.grad).norm() / expected.grad.norm()
        assert float(error) < tolerance


def test_chunked_loss_frozen_matrix_gets_no_gradient() -> None:
    hidden, weight, tokens = _inputs(2, 8, torch.float32)
    frozen = weight.detach()
    chunked_next_token_loss(hidden, frozen, tokens, ALONE, chunk_tokens=3).backward()
    assert frozen.grad is None and hidden.grad is not None
    with torch.no_grad():
        again = chunked_next_token_loss(hidden, frozen, tokens, ALONE)
    assert again.item() == pytest.approx(_whole(hidden, weight, tokens).item(), rel=1e-6)
