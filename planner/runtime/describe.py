"""Traces an arbitrary module without a GPU and prints what the planner needs to know of it.

    python -m planner.runtime.describe --factory package.module:function --seq-len N

Prints a `TracedModule` as JSON on standard output (what the user's code prints goes to standard error). Exit 2 when the
factory cannot be used. The trace runs on fake tensors, which have shapes but no memory; code that looks at values is
run for real instead, on the CPU, with the two small batches.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from planner.errors import InputError, PlannerError
from planner.runtime.factory import Product, call_factory, loss_of, make_checked_batch
from planner.spec import TracedModule
from planner.spec._record import record
from planner.spec.codec import to_plain

SMALL_BATCH, LARGE_BATCH = 2, 4  # two points of a line; batch normalisation refuses batches of one


@record
class _Pass:
    """One forward pass of some batch size."""

    saved_bytes: int
    flops: int


def describe_factory(name: str, *, seq_len: int) -> TracedModule:
    """Trace the factory's module at two batch sizes. Raises InputError when it cannot be used."""
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            return _describe(call_factory(name), seq_len=seq_len)
    except PlannerError:
        raise
    except Exception as problem:  # code of any kind may stumble over fake tensors; what is really wrong comes up again
        print(f"tracing without memory did not work ({problem}): running {name} on the CPU", file=sys.stderr)
        return _describe(call_factory(name), seq_len=seq_len)


def _describe(product: Product, *, seq_len: int) -> TracedModule:
    product.module.train()
    sizes = [parameter.numel() for parameter in product.module.parameters()]
    if not sizes:
        raise InputError(
            "the factory's module has no parameters",
            why="there is nothing to train",
            fix="return the module itself, with its layers assigned as attributes",
        )
    scalars = [name for name, parameter in product.module.named_parameters() if parameter.dim() == 0]
    if scalars:
        raise InputError(
            f"the parameter {scalars[0]} of the factory's module has no dimension",
            why="DeepSpeed sends parameters as bytes, and a tensor without a dimension cannot be viewed as such "
            "(deepspeed/runtime/engine.py, _broadcast_model, 0.19)",
            fix=f"give it the shape (1,): nn.Parameter(torch.tensor([…])) for {scalars[0]}",
        )
    generator = torch.Generator().manual_seed(0)
    small = make_checked_batch(product, SMALL_BATCH, seq_len, generator)
    large = make_checked_batch(product, LARGE_BATCH, seq_len, generator)
    low, high = _run(product, small), _run(product, large)
    per_sample = max(0, (high.saved_bytes - low.saved_bytes) // (LARGE_BATCH - SMALL_BATCH))
    is_sequence = any(value.dim() > 1 and value.shape[1] == seq_len for value in small.values())
    return TracedModule(
        num_parameters=sum(sizes),
        largest_parameter=max(sizes),
        saved_bytes_per_sample_fp32=per_sample,
        fixed_saved_bytes=max(0, low.saved_bytes - SMALL_BATCH * per_sample),
        forward_flops_per_sample=max(0, (high.flops - low.flops) // (LARGE_BATCH - SMALL_BATCH)),
        tokens_per_sample=seq_len if is_sequence else 1,
    )


def _run(product: Product, batch: dict[str, torch.Tensor]) -> _Pass:
    """Run forward, adding up the storages that autograd keeps, each once, without parameters and the batch itself."""
    held = {tensor.untyped_storage()._cdata for tensor in [*product.module.parameters(), *batch.values()]}
    saved: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in held:
            saved[storage._cdata] = storage  # Keep: holding it, so that its address is not used again
        return tensor

    with FlopCounterMode(display=False) as counter, torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept):
        loss_of(product, product.module(**batch), batch)
    return _Pass(saved_bytes=sum(storage.nbytes() for storage in saved.values()), flops=counter.get_total_flops())


def main(arguments: list[str]) -> int:
    """Describe; the JSON is all that reaches standard output."""
    parser = argparse.ArgumentParser(prog="python -m planner.runtime.describe", description="Trace a factory's module.")
    parser.add_argument("--factory", required=True, help="package.module:function")
    parser.add_argument("--seq-len", type=int, required=True)
    options: Any = parser.parse_args(arguments)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            traced = describe_factory(options.factory, seq_len=options.seq_len)
    except PlannerError as problem:
        print(problem, file=sys.stderr)
        return problem.exit_code
    print(json.dumps(to_plain(traced)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
