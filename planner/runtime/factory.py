"""Models from `package.module:function`: any nn.Module with a maker of batches and, where needed, a loss.

    factory() -> (module, make_batch) or (module, make_batch, loss)
    make_batch(micro_batch_size, seq_len, generator) -> dict of tensors, batch first
    module(**batch) -> the loss, or something with `.loss`, or whatever `loss(outputs, batch)` turns into the loss

Owns reading and checking what a factory gives. It imports torch only, so that describing a model is quick.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from planner.errors import InputError
from planner.spec._record import record

PROTOCOL = "factory() returns (module, make_batch) or (module, make_batch, loss)"


@record
class Product:
    """What a factory gave."""

    module: nn.Module
    make_batch: Callable[[int, int, torch.Generator], dict[str, torch.Tensor]]
    loss: Callable[[Any, dict[str, torch.Tensor]], torch.Tensor] | None


def call_factory(name: str) -> Product:
    """Import the function and call it. Raises InputError where it cannot be found or gives something else."""
    made = _import(name)()
    if not isinstance(made, tuple) or len(made) not in (2, 3):
        raise _broken(name, f"it returned {type(made).__name__}")
    module, make_batch, *rest = made
    loss = rest[0] if rest else None
    if not isinstance(module, nn.Module):
        raise _broken(name, f"the first value is {type(module).__name__}, not an nn.Module")
    if not callable(make_batch) or not (loss is None or callable(loss)):
        raise _broken(name, "make_batch and loss have to be functions")
    return Product(module=module, make_batch=make_batch, loss=loss)


def _import(name: str) -> Callable[[], Any]:
    module_name, separator, function = name.partition(":")
    if not separator or not module_name or not function:
        raise InputError(
            f"{name!r} does not name a factory",
            why="a factory is written package.module:function",
            fix="write for example model: {factory: mypackage.models:build}",
        )
    try:
        found: Any = importlib.import_module(module_name)
        for part in function.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as problem:
        raise InputError(
            f"the factory {name!r} cannot be imported: {problem}",
            why="it is imported from the installed packages, PYTHONPATH and the current folder",
            fix="check the spelling, and start from the folder (or set PYTHONPATH) where the package lies",
        ) from problem
    if not callable(found):
        raise _broken(name, "it is no function")
    result: Callable[[], Any] = found
    return result


def _broken(name: str, what: str) -> InputError:
    return InputError(f"the factory {name!r} cannot be used: {what}", why=PROTOCOL, fix="return those values from it")


def make_checked_batch(
    product: Product, size: int, seq_len: int, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """A batch of `size` samples. Raises InputError unless it is a dict of tensors, each with the batch first."""
    batch = product.make_batch(size, seq_len, generator)
    if not isinstance(batch, dict) or not batch or not all(torch.is_tensor(value) for value in batch.values()):
        raise _unfit("make_batch has to return a dict of tensors")
    for name, value in batch.items():
        if value.dim() == 0 or value.shape[0] != size:
            raise _unfit(f"{name} has shape {tuple(value.shape)} in a batch of {size}")
    return batch


def _unfit(what: str) -> InputError:
    return InputError(
        f"the factory's batches cannot be used: {what}",
        why="samples are drawn one by one and stacked, so that every layout sees the same ones",
        fix="return a dict of tensors whose first dimension is micro_batch_size",
    )


def loss_of(product: Product, outputs: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The scalar to train on."""
    if product.loss is not None:
        found = product.loss(outputs, batch)
    elif torch.is_tensor(outputs):
        found = outputs
    else:
        found = outputs.get("loss") if isinstance(outputs, dict) else getattr(outputs, "loss", None)
    if not torch.is_tensor(found) or found.dim() != 0:
        raise InputError(
            "the factory's module gives no loss",
            why="without a loss function of its own, the module has to return a scalar tensor or something with .loss",
            fix="return (module, make_batch, loss) from the factory, with loss(outputs, batch) giving a scalar",
        )
    return found


class WithLoss(nn.Module):
    """A module that gives its loss, as DeepSpeed's engine wants it."""

    def __init__(self, product: Product) -> None:
        super().__init__()
        self.module = product.module
        self._product = product

    def forward(self, **batch: torch.Tensor) -> torch.Tensor:
        """The loss of a batch."""
        return loss_of(self._product, self.module(**batch), batch)
