"""Where each rank is, told through memory shared with the worker: no system call, no lock, readable after a death.

A rank writes its own two numbers; the worker reads all of them. Leaves what to conclude to `worker_trial`.
"""

from __future__ import annotations

import mmap
import struct

from planner.spec import Phase

_PHASES = tuple(Phase)
_SLOT = struct.Struct("<II")  # index of the phase, optimizer steps done


class RankMarks:
    """The pen of one rank."""

    def __init__(self, shared: mmap.mmap, rank: int) -> None:
        self._shared = shared
        self._offset = rank * _SLOT.size
        self._phase = Phase.START
        self._steps_done = 0
        self._write()

    def enter(self, phase: Phase) -> None:
        """The rank is in this phase from now on."""
        self._phase = phase
        self._write()

    def step_done(self) -> None:
        """One more optimizer step is done."""
        self._steps_done += 1
        self._write()

    def _write(self) -> None:
        _SLOT.pack_into(self._shared, self._offset, _PHASES.index(self._phase), self._steps_done)


class TrialMarks:
    """The board of all ranks of one trial; made before the fork."""

    def __init__(self, world_size: int) -> None:
        self._shared = mmap.mmap(-1, max(1, world_size) * _SLOT.size)
        self._world_size = world_size

    def of_rank(self, rank: int) -> RankMarks:
        """The pen that this rank takes along."""
        return RankMarks(self._shared, rank)

    def read(self, rank: int) -> tuple[Phase, int]:
        """Phase and optimizer steps done of a rank."""
        phase, steps_done = _SLOT.unpack_from(self._shared, rank * _SLOT.size)
        return _PHASES[phase], steps_done

    def furthest_behind(self) -> tuple[Phase, int]:
        """Phase and steps of the rank that all others wait for."""
        places = [self.read(rank) for rank in range(self._world_size)]
        return min(places, key=lambda place: (place[1], _PHASES.index(place[0])))

    def close(self) -> None:
        """Give the memory back."""
        self._shared.close()
