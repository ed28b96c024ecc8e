"""Which tensor has the size that was asked for: logits, scores, one-hot router masks, flat buffers. Pure.

Sizes are exact products, so a match within the allocator's rounding (2 MiB, and the two decimals that messages print)
is strong evidence; without a model nothing is matched.
"""

from __future__ import annotations

import math

from planner.diagnose.records import Hint, KnownTensor, ModelView
from planner.diagnose.situation import Situation

_ROUNDING_BYTES = 2 * 2**20  # the allocator rounds large requests up to 2 MiB
_PRINTED_FRACTION = 0.006  # `1.96 GiB` has two decimals
_SMALLEST_BYTES = 32 * 2**20  # below this too many tensors have the same size


def match_tensor(request: int | None, model: ModelView | None) -> KnownTensor | None:
    """The tensor of the model whose size is that of the request; None when none is, or several kinds are."""
    if request is None or model is None or request < _SMALLEST_BYTES:
        return None
    near = [
        tensor
        for tensor in model.tensors
        if abs(tensor.size_bytes - request) <= max(_ROUNDING_BYTES, _PRINTED_FRACTION * request)
    ]
    return near[0] if near else None


def square_of_sequence(situation: Situation) -> bool:
    """Whether the request is a matrix of scores: the failing line multiplies queries with keys, or the size is a small
    multiple of s^2 for the sequence length s that the log names."""
    request, total = situation.event.figures.requested, situation.event.figures.total
    if not request:
        return False
    is_large = request >= 0.05 * total if total else request >= 2**30
    if is_large and situation.said(Hint.ATTENTION):
        return True
    seq_len = situation.facts.settings.seq_len
    if seq_len < 1024 or not is_large:
        return False
    multiple = request / (seq_len * seq_len)  # batch x heads x bytes of an element
    return (
        multiple >= 2
        and math.isclose(multiple, round(multiple), rel_tol=_PRINTED_FRACTION)
        and round(multiple) % 2 == 0
        and multiple <= 4096
    )
