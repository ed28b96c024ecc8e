"""Micro-batches made ahead of their use: read and stacked by a thread, pinned, and copied while the device computes.

Owns the order and how far ahead. Leaves which samples a step has to `data`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from planner.runtime.data import Sample, SampleSource, stack_samples

AHEAD = 4  # micro-batches; token ids are small, and four hide a slow read of a memory-mapped file


class Prefetcher:
    """Gives the micro-batches of any step, fastest of the steps in a row."""

    def __init__(
        self, source: SampleSource, indices_of: Callable[[int], list[list[int]]], device: torch.device
    ) -> None:
        self._source = source
        self._indices_of = indices_of
        self._device = device
        self._is_cuda = device.type == "cuda"
        self._pool = ThreadPoolExecutor(1, "prefetch", initializer=_claim, initargs=(device,))
        self._coming: deque[tuple[tuple[int, int], Future[Sample]]] = deque()
        self._stream: Any = torch.cuda.Stream(device) if self._is_cuda else None

    def batches(self, step: int) -> Iterator[Sample]:
        """The micro-batches of one optimizer step, batch first, on the device."""
        micros = self._indices_of(step)
        staged: tuple[Sample, Any] | None = None
        for number in range(len(micros)):
            batch, ready = staged if staged is not None else self._staged(step, number)
            staged = None
            if self._is_cuda:
                torch.cuda.current_stream(self._device).wait_event(ready)
                for value in batch.values():
                    value.record_stream(torch.cuda.current_stream(self._device))
                if number + 1 < len(micros):  # its copy runs while this one is computed on
                    staged = self._staged(step, number + 1)
            yield batch

    def _staged(self, step: int, number: int) -> tuple[Sample, Any]:
        """A micro-batch on the device (or on its way there), and the event that says it has arrived."""
        batch = self._taken(step, number)
        if not self._is_cuda:
            return batch, None
        with torch.cuda.stream(self._stream):
            moved = {name: value.to(self._device, non_blocking=True) for name, value in batch.items()}
            ready = torch.cuda.Event()
            ready.record(self._stream)
        return moved, ready

    def _taken(self, step: int, number: int) -> Sample:
        if not self._coming or self._coming[0][0] != (step, number):
            for _place, future in self._coming:
                future.cancel()
            self._coming.clear()
            self._order((step, number))
        place, future = self._coming.popleft()
        last = self._coming[-1][0] if self._coming else place
        while len(self._coming) < AHEAD:
            last = self._after(last)
            self._order(last)
        return future.result()

    def _after(self, place: tuple[int, int]) -> tuple[int, int]:
        step, number = place
        return (step, number + 1) if number + 1 < len(self._indices_of(step)) else (step + 1, 0)

    def _order(self, place: tuple[int, int]) -> None:
        step, number = place
        self._coming.append((place, self._pool.submit(self._made, self._indices_of(step)[number])))

    def _made(self, indices: list[int]) -> Sample:
        batch = stack_samples(self._source, indices)
        return {name: value.pin_memory() for name, value in batch.items()} if self._is_cuda else batch

    def close(self) -> None:
        """Make no more."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _claim(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_device(device)  # Keep: pinning in a fresh thread would open a context on GPU 0
