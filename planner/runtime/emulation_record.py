"""Writes down every collective of a step, in order, with marks on the device's own timeline.

Owns which call belongs to which phase and what the marks are. Leaves what collectives do to the group that calls it,
and what the marks of a step amount to to `emulation_count`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from planner.spec import DeviceKind, Phase
from planner.spec._record import record
from planner.spec.traffic import CollectiveKind

STEP_PHASES = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER_STEP, Phase.TRAIN_BATCH)


class Timeline(Protocol):
    """The device's main stream of work. Times are those of the device, not of the host that runs ahead of it."""

    def mark(self) -> Any:
        """A mark behind all work that was given to the stream so far."""
        ...

    def seconds(self, first: Any, second: Any) -> float:
        """From one mark to another, once the device has passed both."""
        ...

    def on_main_stream(self) -> bool:
        """Whether work launched now goes to the main stream."""
        ...

    def rest(self) -> None:
        """Wait until the device has passed every mark."""
        ...


class HostTimeline:
    """A device whose work is done when the call returns: the CPU."""

    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, first: float, second: float) -> float:
        return second - first

    def on_main_stream(self) -> bool:
        return True

    def rest(self) -> None:
        pass


class CudaTimeline:
    """Events on the default stream."""

    def mark(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.default_stream())
        return event

    def seconds(self, first: Any, second: Any) -> float:
        return float(first.elapsed_time(second)) / 1e3  # milliseconds

    def on_main_stream(self) -> bool:
        return bool(torch.cuda.current_stream() == torch.cuda.default_stream())

    def rest(self) -> None:
        torch.cuda.synchronize()


def timeline_of(device: DeviceKind) -> Timeline:
    """The main stream of this process's device."""
    return CudaTimeline() if device is DeviceKind.CUDA else HostTimeline()


@record
class CallKind:
    """What makes two calls equal. `num_bytes` as `CollectiveCount` counts them; `ranks` are global."""

    kind: CollectiveKind
    dtype: str
    num_bytes: int
    ranks: tuple[int, ...]


@dataclass(slots=True)
class Call:
    """One collective as it ran. `ended`: set where emulating it took work of the main stream. `waited`: when the main
    stream first waited for it; None: not before the end of the phase."""

    what: CallKind
    began: Any
    is_side_business: bool  # a side stream waits for it itself; the main stream does at the end of the phase
    ended: Any = None
    waited: Any = None


@dataclass(slots=True)
class Section:
    """From entering a phase to entering the next."""

    phase: Phase
    began: Any
    calls: list[Call] = field(default_factory=list)


class Recorder:
    """The record of this process. The session tells it of phases, the trial of ends of steps, the groups of calls."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self._sections: list[Section] = []
        self._steps: list[tuple[list[Section], Any]] = []

    def enter(self, phase: Phase) -> None:
        """The rank is in this phase from now on."""
        self._sections.append(Section(phase=phase, began=self.timeline.mark()))

    def began(self, what: CallKind, *, is_asynchronous: bool) -> Call:
        """A collective starts now."""
        on_side = not self.timeline.on_main_stream()
        call = Call(what=what, began=self.timeline.mark(), is_side_business=on_side and not is_asynchronous)
        if self._sections:
            self._sections[-1].calls.append(call)
        return call

    def launched(self, call: Call) -> None:
        """All that emulating the collective takes has been launched."""
        if self.timeline.on_main_stream():
            call.ended = self.timeline.mark()

    def waited(self, call: Call) -> None:
        """Something waits for the collective now."""
        if call.waited is None and not call.is_side_business:
            call.waited = self.timeline.mark()

    def step_done(self) -> None:
        """The step is over; what came before its first phase (building) is forgotten."""
        end = self.timeline.mark()
        first = next((i for i, section in enumerate(self._sections) if section.phase in STEP_PHASES), None)
        if first is not None:
            self._steps.append((self._sections[first:], end))
        self._sections = []

    def steps(self) -> list[tuple[list[Section], Any]]:
        """Every step so far: its sections and the mark of its end; the device has passed all of them."""
        self.timeline.rest()
        return list(self._steps)
