"""What emulated collectives leave in the tensors they were given: finite values, as cheaply as that can be had.

The peers of an emulated rank do not exist. They are taken to hold what this rank holds, so that a single number (a
loss, a squared norm, a count) comes out as it would if all ranks were alike, a gathered parameter looks like a
parameter, and nothing overflows. Large sums are left as they are: the values differ, the memory and the work do not.
Leaves recording to `emulation_group`, integers that describe shapes to `emulation_pipeline`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import ReduceOp
from torch.distributed.distributed_c10d import Work

from planner.runtime.data import Sample, SampleSource
from planner.spec._record import record

# Standard deviations of what a pipeline stage receives: hidden states are about 1 between normalised layers; gradients
# of a mean over thousands of tokens are small, and must not overflow fp16 when summed over them.
_ACTIVATION_SCALE = 1.0
_GRADIENT_SCALE = 1e-3


class EmulatedWork(Work):
    """A collective that is over. `launched`: it ran kernels of its own, which a stream that waits comes after."""

    def __init__(self, *, launched: bool) -> None:
        super().__init__()
        self.launched = launched
        self._event: Any = None
        if launched and torch.cuda.is_initialized():
            self._event = torch.cuda.current_stream().record_event()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """As NCCL: order the current stream after the collective, without stopping the host."""
        if self._event is not None:
            torch.cuda.current_stream().wait_event(self._event)
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True


@record
class Invention:
    """What has to be known of the job to make up what comes. `fill_integers` writes what is received and is not
    floating point. `keeps_gathered`: what is gathered in place already holds values, those of the step before (the
    weights of ZeRO 1 and 2); otherwise it is fresh memory that may hold anything (ZeRO-3)."""

    fill_integers: Callable[[torch.Tensor], None]
    keeps_gathered: bool


class EmulatedPeers:
    """The other ranks of one group; methods and arguments are those of torch's process group backends."""

    def __init__(self, *, rank: int, size: int, invention: Invention) -> None:
        self._rank = rank
        self._size = size
        self._invention = invention
        self._generators: dict[torch.device, torch.Generator] = {}

    def allreduce(self, tensors: list[torch.Tensor], opts: Any) -> EmulatedWork:
        single = [tensor for tensor in tensors if tensor.numel() == 1] if self._sums(opts) else []
        for tensor in single:
            tensor.mul_(self._size)
        return EmulatedWork(launched=bool(single))

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any) -> EmulatedWork:
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> EmulatedWork:
        return EmulatedWork(launched=False)

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> EmulatedWork:
        return EmulatedWork(launched=False)

    def barrier(self, opts: Any) -> EmulatedWork:
        return EmulatedWork(launched=False)

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> EmulatedWork:
        launched = False
        for parts, own in zip(outputs, inputs):
            _take_flat_copy(parts)
            for part in parts:
                if not _share_storage(part, own):
                    part.copy_(own)
                    launched = True
        return EmulatedWork(launched=launched)

    def allgather_coalesced(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any
    ) -> EmulatedWork:
        for parts in outputs:  # one list a rank, an element a tensor
            for part, own in zip(parts, inputs):
                part.copy_(own)
        return EmulatedWork(launched=True)

    def _allgather_base(self, output: torch.Tensor, own: torch.Tensor, opts: Any) -> EmulatedWork:
        parts = output.view(self._size, -1)
        if not _share_storage(output, own):
            parts.copy_(own.reshape(1, -1))
            return EmulatedWork(launched=True)
        if self._invention.keeps_gathered:
            return EmulatedWork(launched=False)
        parts[: self._rank].copy_(own.reshape(1, -1))
        parts[self._rank + 1 :].copy_(own.reshape(1, -1))
        return EmulatedWork(launched=True)

    def allgather_into_tensor_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any
    ) -> EmulatedWork:
        works = [self._allgather_base(output, own, opts) for output, own in zip(outputs, inputs)]
        return EmulatedWork(launched=any(work.launched for work in works))

    def reduce_scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> EmulatedWork:
        for output, parts in zip(outputs, inputs):
            _take_flat_copy(parts)
            self._reduce_into(output, parts[self._rank], opts)
        return EmulatedWork(launched=True)

    def _reduce_scatter_base(self, output: torch.Tensor, whole: torch.Tensor, opts: Any) -> EmulatedWork:
        self._reduce_into(output, whole.view(self._size, -1)[self._rank], opts)
        return EmulatedWork(launched=True)

    def reduce_scatter_tensor_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any
    ) -> EmulatedWork:
        for output, whole in zip(outputs, inputs):
            self._reduce_scatter_base(output, whole, opts)
        return EmulatedWork(launched=True)

    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> EmulatedWork:
        return self.allgather(outputs, inputs, opts)  # no outputs beyond the root

    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> EmulatedWork:
        for output, parts in zip(outputs, inputs):
            output.copy_(parts[self._rank])
        if not inputs:
            for output in outputs:
                output.zero_()
        return EmulatedWork(launched=True)

    def alltoall_base(
        self, output: torch.Tensor, own: torch.Tensor, output_splits: list[int], input_splits: list[int], opts: Any
    ) -> EmulatedWork:
        _copy_what_fits(output.view(-1), own.reshape(-1))
        return EmulatedWork(launched=True)

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any) -> EmulatedWork:
        for output, own in zip(outputs, inputs):
            _copy_what_fits(output.view(-1), own.reshape(-1))
        return EmulatedWork(launched=True)

    def send(self, tensors: list[torch.Tensor], destination: int, tag: int) -> EmulatedWork:
        return EmulatedWork(launched=False)

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> EmulatedWork:
        scale = _ACTIVATION_SCALE if source < self._rank else _GRADIENT_SCALE
        for tensor in tensors:
            if tensor.is_floating_point():
                tensor.normal_(0.0, scale, generator=self._generator(tensor.device))
            else:
                self._invention.fill_integers(tensor)
        return EmulatedWork(launched=True)

    def _reduce_into(self, output: torch.Tensor, own: torch.Tensor, opts: Any) -> None:
        factor = self._size if self._sums(opts) else 1
        torch.mul(own.reshape(output.shape), factor, out=output)

    def _sums(self, opts: Any) -> bool:
        return bool(opts.reduceOp == ReduceOp.SUM)

    def _generator(self, device: torch.device) -> torch.Generator:
        """A generator of its own, so that the model's dropout draws what it would draw."""
        if device not in self._generators:
            self._generators[device] = torch.Generator(device=device).manual_seed(self._rank)
        return self._generators[device]


class OwnVocabulary:
    """Samples of a rank that holds one slice of a split vocabulary, moved into that slice.

    A rank looks up nothing for tokens of other slices, and here nobody adds what the others find. Hidden states of
    zero would then be divided by a norm of zero in every layer, and gradients explode.
    """

    def __init__(self, source: SampleSource, *, tensor_rank: int, tensor_size: int, vocab_size: int) -> None:
        self._source = source
        self._rows = vocab_size // tensor_size
        self._first = tensor_rank * self._rows

    def sample(self, index: int) -> Sample:
        """The same sample, each token replaced by one of this rank's."""
        sample = self._source.sample(index)
        return {name: self._first + tokens % self._rows for name, tokens in sample.items()}


def _share_storage(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _take_flat_copy(parts: list[torch.Tensor]) -> None:
    """Take and give back what NCCL needs for a list of equal parts: one flat copy of them all
    (torch 2.13, ProcessGroupNCCL.cpp, `newLikeFlat`), so that the peak of memory is the real one."""
    if parts and parts[0].is_cuda:
        torch.empty((len(parts), *parts[0].shape), dtype=parts[0].dtype, device=parts[0].device)


def _copy_what_fits(output: torch.Tensor, own: torch.Tensor) -> None:
    """Copy the common beginning; what peers would have sent beyond it is zero."""
    common = min(output.numel(), own.numel())
    output[:common].copy_(own[:common])
    output[common:].zero_()
