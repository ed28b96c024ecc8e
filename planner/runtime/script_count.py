"""How many sequences a script feeds its engine, from the tensors it passes. Pure.

A batch is whatever the script makes of it: a dict with `input_ids`, a tuple of inputs and labels, a single tensor. Its
rows are the first dimension of the tensor that looks most like the input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

_INPUT_NAMES = ("input_ids", "inputs_embeds", "pixel_values", "tokens", "x", "inputs", "images")


def count_rows(batch: Any) -> int:
    """Rows of a batch; 0 where there is no tensor to count by."""
    tensor = input_of(batch)
    return int(tensor.shape[0]) if tensor is not None else 0


def count_sequences(arguments: tuple[Any, ...], named: dict[str, Any], *, micro_batch_size: int, seq_len: int) -> int:
    """Sequences of one forward call: its rows, or, where several sequences lie packed in one row, as many as their
    tokens make."""
    tensor = input_of((named, *arguments))
    if tensor is None:
        return 0
    tokens = int(tensor.shape[0]) * (int(tensor.shape[1]) if tensor.ndim > 1 else 1)
    packed = not tensor.is_floating_point() and tensor.shape[0] < micro_batch_size * seq_len
    if packed and tensor.shape[0] != micro_batch_size and tokens == micro_batch_size * seq_len:
        return micro_batch_size
    return int(tensor.shape[0])


def input_of(batch: Any) -> torch.Tensor | None:
    """The tensor of a batch that holds its samples: by its usual name, else the first that has a dimension."""
    found = [(name, tensor) for name, tensor in _tensors(batch) if tensor.ndim > 0]
    for usual in _INPUT_NAMES:
        for name, tensor in found:
            if name == usual:
                return tensor
    return found[0][1] if found else None


def _tensors(value: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(item, str(key))
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)


def loss_of(outputs: Any) -> torch.Tensor | None:
    """The loss in what a module returned: the scalar itself, its `.loss`, `["loss"]`, or the first of a tuple."""
    candidate = outputs
    if isinstance(outputs, Mapping):
        candidate = outputs.get("loss")
    elif isinstance(outputs, (tuple, list)):
        candidate = outputs[0] if outputs else None
    elif not isinstance(outputs, torch.Tensor):
        candidate = getattr(outputs, "loss", None)
    # Without a dimension: the outputs of a micro-batch of one sample have one element, too.
    is_scalar = isinstance(candidate, torch.Tensor) and candidate.ndim == 0 and candidate.is_floating_point()
    return candidate if is_scalar else None
