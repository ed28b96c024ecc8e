"""What the supervisor, the plan and the ranks tell one another about running out of memory.

A rank leaves a `RankExit` in the attempt's folder when it does not simply reach the end; the supervisor keeps a
`SupervisorState` in the plan folder, so that the next start knows what the last one learnt.
"""

from __future__ import annotations

from planner.spec._record import record, require
from planner.spec.kinds import Phase
from planner.spec.worker import RankFailure

STOP_FILE = "stop"  # in the attempt's folder: ranks that see it save a checkpoint and end


REFUSAL_FILE = "refusal.json"  # in the attempt's folder: a `Refusal`, of any rank


@record
class Refusal:
    """Why ranks will not train: an error that the user can mend, and the exit code that it has."""

    error: str
    why: str
    fix: str
    exit_code: int


@record
class RankExit:
    """How a rank of the trainer left. `stopped`: it was told to, and saved what it had. `snapshot`: a file's name."""

    rank: int
    phase: Phase
    steps_done: int
    failure: RankFailure | None = None
    stopped: bool = False
    snapshot: str = ""
    traceback: str = ""


@record
class Attempt:
    """One start of all ranks. `level` 0: the plan itself, n: its n-th fallback. `end`: one word, see `supervise`."""

    number: int
    level: int
    end: str
    cause: str = ""  # of the diagnosis; "" where nothing failed
    steps_done: int = 0
    exit_code: int = 0


@record
class SupervisorState:
    attempts: tuple[Attempt, ...] = ()

    def __post_init__(self) -> None:
        numbers = [attempt.number for attempt in self.attempts]
        require(numbers == sorted(set(numbers)), "attempts are numbered upwards")


def exit_name(rank: int) -> str:
    """The file in an attempt's folder in which a rank leaves its `RankExit`."""
    return f"rank-{rank:05d}.json"
