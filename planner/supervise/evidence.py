"""Why an attempt ended: from the words that ranks left, the launcher's exit code and the end of the log. Pure."""

from __future__ import annotations

from dataclasses import replace

from planner.diagnose.memory_text import says_device_memory_ran_out, says_host_memory_ran_out, says_peer_was_lost
from planner.spec._record import record
from planner.spec.kinds import Phase
from planner.spec.supervision import RankExit
from planner.supervise.policy import DONE, FAILED, OUT_OF_MEMORY, STOPPED

PREFLIGHT = "NotEnoughFreeMemory"
# As torchrun tells of a rank that the kernel killed, and as a shell's exit code has it.
_KILLED_WORDS = ("exitcode  : -9", "exitcode: -9", "Signal 9 (SIGKILL)", "exit code 137")


@record
class Ending:
    """`end`: one of the words of `policy`. `rank` -1: not known which."""

    end: str
    message: str
    rank: int = -1
    phase: Phase = Phase.START
    steps_done: int = 0


@record
class Leftovers:
    """What an attempt leaves behind. `exit_code` as Python's subprocess has it."""

    exits: tuple[RankExit, ...]
    exit_code: int
    log_tail: str
    kernel_oom_kills: int
    told_to_stop: bool


def judge(left: Leftovers) -> Ending:
    """How the attempt ended. The earliest rank that failed by itself is the cause; those that lost a peer are not: the
    peer may have been killed for want of memory, without a word."""
    failed = [word for word in left.exits if word.failure is not None]
    steps = max((word.steps_done for word in left.exits), default=0)
    own = [word for word in failed if not says_peer_was_lost(_said(word)) or _is_memory(word)]
    silent = _silent(left) if failed and not own else None
    if silent is not None and silent.end == OUT_OF_MEMORY:
        return replace(silent, steps_done=steps)
    if own or failed:
        first = min(own or failed, key=_failed_at_s)
        return Ending(
            end=OUT_OF_MEMORY if _is_memory(first) else FAILED,
            message=_message(first),
            rank=first.rank,
            phase=first.phase,
            steps_done=steps,
        )
    if left.told_to_stop or any(word.stopped for word in left.exits):
        return Ending(end=STOPPED, message="told to stop", steps_done=steps)
    if left.exit_code == 0:
        return Ending(end=DONE, message="", steps_done=steps)
    return _silent(left)


def _silent(left: Leftovers) -> Ending:
    """No rank said a word of its own: it was killed, or a library ended it."""
    if left.kernel_oom_kills and any(word in left.log_tail for word in _KILLED_WORDS):
        message = f"the kernel's out-of-memory killer ended {left.kernel_oom_kills} process(es)"
        return Ending(end=OUT_OF_MEMORY, message=message)
    for line in left.log_tail.splitlines():
        if says_device_memory_ran_out(line) or says_host_memory_ran_out(line):
            return Ending(end=OUT_OF_MEMORY, message=line.strip()[:500])
    return Ending(end=FAILED, message=f"the launcher ended with exit code {left.exit_code}")


def _failed_at_s(word: RankExit) -> float:
    return word.failure.failed_at_s if word.failure is not None else float("inf")


def _said(word: RankExit) -> str:
    failure = word.failure
    return "" if failure is None else "\n".join((f"{failure.exception}: {failure.message}", *failure.chain))


def _message(word: RankExit) -> str:
    return (_said(word).splitlines() or [""])[0][:500]


def _is_memory(word: RankExit) -> bool:
    text = _said(word)
    named = PREFLIGHT in text or "MemoryError" in text or "OutOfMemoryError" in text
    return named or says_device_memory_ran_out(text) or says_host_memory_ran_out(text)


def is_preflight(message: str) -> bool:
    """Whether the attempt never began because the memory was already taken."""
    return PREFLIGHT in message
