"""What to do after an attempt ended. Pure, and it never loops: no step of the ladder is started more than twice."""

from __future__ import annotations

from typing import TypeAlias

from planner.spec._record import record
from planner.spec.supervision import Attempt
from planner.spec.tuning import ALLOCATOR_ENVIRONMENT

DONE, STOPPED, OUT_OF_MEMORY, FAILED = "done", "stopped", "out-of-memory", "failed"

# Causes that starting again takes away, at least for a while: the configuration itself is not too large.
RETRIED_CAUSES = {
    "leak": "a fresh start gives the leaked memory back",
    "fragmentation": "a fresh start begins without fragments",
    "other-process": "the other process may be gone",
}
MAX_STARTS = 2  # of one step of the ladder


def _named(level: int) -> str:
    return f"fallback {level}" if level else "the plan"


@record
class Start:
    """Go on at this step of the ladder (0: the plan). `environment`: variables beside the usual ones."""

    level: int
    reason: str
    environment: tuple[tuple[str, str], ...] = ()
    pause_s: float = 0.0


@record
class Stop:
    """Give up, in words."""

    reason: str


Move: TypeAlias = Start | Stop


def next_move(attempts: tuple[Attempt, ...], *, num_fallbacks: int) -> Move:
    """After the last of `attempts` (those of this supervisor; it ended out of memory): the next start, or the end.

    What is too large goes one step down at once. What a fresh start may mend is tried once more as it is; a step that
    fails twice is left.
    """
    last = attempts[-1]
    starts = sum(attempt.level == last.level for attempt in attempts)
    if last.cause in RETRIED_CAUSES and starts < MAX_STARTS:
        fragmented = last.cause == "fragmentation"
        return Start(
            level=last.level,
            reason=f"the cause is {last.cause}: {RETRIED_CAUSES[last.cause]}",
            environment=ALLOCATOR_ENVIRONMENT if fragmented else (),
            pause_s=10.0 if last.cause == "other-process" else 0.0,
        )
    if last.level < num_fallbacks:
        return Start(level=last.level + 1, reason=f"{_named(last.level)} does not fit, the next needs less memory")
    if not num_fallbacks:
        return Stop(reason="the plan has no fallbacks: nothing that keeps batch and layout needs less memory")
    return Stop(reason=f"all {num_fallbacks} fallbacks of the plan ran out of memory too")
