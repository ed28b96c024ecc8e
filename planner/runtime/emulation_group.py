"""A process group that writes down what passes through it, and hands it on to whoever really does it.

Owns the names under which torch calls a group (those of 2.13 and the older ones), and how many bytes a collective
counts for. `peers` does the work, under the names of torch's own backends: `EmulatedPeers` where there are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import ProcessGroup, Work

from planner.runtime.emulation_record import Call, CallKind, Recorder
from planner.spec.traffic import CollectiveKind


class RecordedWork(Work):
    """A collective under way whose waiting is written down."""

    def __init__(self, work: Any, call: Call, recorder: Recorder) -> None:
        super().__init__()
        self._work = work
        self._call = call
        self._recorder = recorder

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        self._recorder.waited(self._call)
        self._work.wait()
        return True

    def is_completed(self) -> bool:
        return bool(self._work.is_completed())

    def is_success(self) -> bool:
        return bool(self._work.is_success())


class RecordedGroup(ProcessGroup):
    """One group of ranks. `ranks`: their global numbers, in the order of the group."""

    def __init__(self, *, rank: int, ranks: Sequence[int], peers: Any, recorder: Recorder) -> None:
        super().__init__(rank, len(ranks))
        self._ranks = tuple(ranks)
        self._peers = peers
        self._recorder = recorder

    @property
    def group_name(self) -> str:
        """The name torch gave this group. Keep: the base class asks a backend for it, and there is none."""
        return str(distributed_c10d._world.pg_names[self])

    def getBackendName(self) -> str:
        return "recorded"

    # -- to all and from all

    def allreduce(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        return self._pass(CollectiveKind.ALL_REDUCE, tensors, "allreduce", tensors, opts)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        return self._pass(CollectiveKind.ALL_REDUCE, tensors, "allreduce_coalesced", tensors, opts)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        return self._pass(CollectiveKind.BROADCAST, tensors, "broadcast", tensors, opts)

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        return self._pass(CollectiveKind.REDUCE, tensors, "reduce", tensors, opts)

    def barrier(self, opts: Any) -> Work:
        return self._pass(CollectiveKind.BARRIER, [], "barrier", opts)

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> Work:
        return self._pass(CollectiveKind.ALL_GATHER, _flat(outputs), "allgather", outputs, inputs, opts)

    def allgather_coalesced(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> Work:
        return self._pass(CollectiveKind.ALL_GATHER, _flat(outputs), "allgather_coalesced", outputs, inputs, opts)

    def all_gather_single(self, output: torch.Tensor, own: torch.Tensor, opts: Any) -> Work:
        return self._pass(CollectiveKind.ALL_GATHER, [output], "_allgather_base", output, own, opts)

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        return self._pass(CollectiveKind.ALL_GATHER, outputs, "allgather_into_tensor_coalesced", outputs, inputs, opts)

    def reduce_scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> Work:
        return self._pass(CollectiveKind.REDUCE_SCATTER, _flat(inputs), "reduce_scatter", outputs, inputs, opts)

    def reduce_scatter_single(self, output: torch.Tensor, whole: torch.Tensor, opts: Any) -> Work:
        return self._pass(CollectiveKind.REDUCE_SCATTER, [whole], "_reduce_scatter_base", output, whole, opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any
    ) -> Work:
        return self._pass(
            CollectiveKind.REDUCE_SCATTER, inputs, "reduce_scatter_tensor_coalesced", outputs, inputs, opts
        )

    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> Work:
        return self._pass(CollectiveKind.GATHER, inputs, "gather", outputs, inputs, opts)

    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> Work:
        return self._pass(CollectiveKind.SCATTER, outputs, "scatter", outputs, inputs, opts)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        own: torch.Tensor,
        output_splits: list[int] | None,
        input_splits: list[int] | None,
        opts: Any,
    ) -> Work:
        splits = (output_splits or [], input_splits or [])
        return self._pass(CollectiveKind.ALL_TO_ALL, [own], "alltoall_base", output, own, *splits, opts)

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any) -> Work:
        return self._pass(CollectiveKind.ALL_TO_ALL, inputs, "alltoall", outputs, inputs, opts)

    # The names before torch 2.13.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # -- from one to one

    def send(self, tensors: list[torch.Tensor], destination: int, tag: int) -> Work:
        return self._pass_between(CollectiveKind.SEND, tensors, destination, "send", tag)

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> Work:
        return self._pass_between(CollectiveKind.RECEIVE, tensors, source, "recv", tag)

    def _pass_between(self, kind: CollectiveKind, tensors: list[torch.Tensor], peer: int, name: str, tag: int) -> Work:
        pair = (self._ranks[self.rank()], self._ranks[peer])
        call = self._recorder.began(_what(kind, tensors, pair), is_asynchronous=False)
        return self._finish(call, getattr(self._peers, name)(tensors, peer, tag))

    def _pass(self, kind: CollectiveKind, counted: list[torch.Tensor], name: str, *arguments: Any) -> Work:
        is_asynchronous = bool(getattr(arguments[-1], "asyncOp", False))
        call = self._recorder.began(_what(kind, counted, self._ranks), is_asynchronous=is_asynchronous)
        return self._finish(call, getattr(self._peers, name)(*arguments))

    def _finish(self, call: Call, work: Any) -> Work:
        if getattr(work, "launched", False):
            self._recorder.launched(call)
        return RecordedWork(work, call, self._recorder)


def _flat(lists: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    return [tensor for tensors in lists for tensor in tensors]


def _what(kind: CollectiveKind, tensors: list[torch.Tensor], ranks: tuple[int, ...]) -> CallKind:
    dtype = str(tensors[0].dtype).removeprefix("torch.") if tensors else ""
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return CallKind(kind=kind, dtype=dtype, num_bytes=num_bytes, ranks=ranks)
