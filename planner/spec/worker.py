"""What the planner and its warm worker say to each other: one JSON document a line, strictly decoded on both sides.

Planner to worker: `RunRequest`, `Ping`, `Shutdown`. Worker to planner: `WorkerReady` once, then `RanksStarted`,
`Progress` and at last `TrialEnd` for each request, `Pong`, or `WorkerRefused`. Times called `_at_s` are the system's
monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import json
from typing import TypeAlias

from planner.spec._record import record
from planner.spec.codec import DecodeError, from_plain, to_plain
from planner.spec.kinds import Phase
from planner.spec.trial import RankReport, TrialTask


@record
class RunRequest:
    """Run one trial. `scratch_dir` exists, is empty, and is removed by the planner afterwards."""

    number: int
    task: TrialTask
    timeout_s: float  # of the whole trial, from the fork
    scratch_dir: str
    cores: int  # that all ranks together may keep busy


@record
class Ping:
    number: int


@record
class Shutdown:
    pass


@record
class WorkerReady:
    pid: int
    import_s: float


@record
class WorkerRefused:
    """The worker cannot start, or cannot do what was asked; no trial ran."""

    message: str


@record
class Pong:
    number: int


@record
class RanksStarted:
    """Every rank leads a process group of its own, named by its process id."""

    number: int
    pids: tuple[int, ...]


@record
class Progress:
    """`phase` of the rank that is furthest behind; `steps_done` optimizer steps done by all, warm-up included."""

    number: int
    phase: Phase
    steps_done: int


@record
class RankFailure:
    """Why a rank gave up, in its own words. `chain` holds the exceptions behind this one as `Type: message`.

    `allocated_bytes` and `capacity_bytes` are what the device's allocator said when it was caught (0: unknown).
    """

    exception: str  # qualified name
    message: str
    failed_at_s: float
    chain: tuple[str, ...] = ()
    allocated_bytes: int = 0
    capacity_bytes: int = 0
    diverged_at_step: int = -1  # -1: it did not diverge
    losses: tuple[float, ...] = ()


@record
class RankResult:
    """What a rank leaves behind in its scratch file: exactly one of the two."""

    report: RankReport | None = None
    failure: RankFailure | None = None


@record
class RankEnd:
    """How one rank's process ended. `exit_code` is negative for a signal; `killed`: the worker sent that signal."""

    rank: int
    exit_code: int
    killed: bool
    ended_at_s: float
    phase: Phase
    steps_done: int
    report: RankReport | None = None
    failure: RankFailure | None = None


@record
class TrialEnd:
    number: int
    ranks: tuple[RankEnd, ...]
    timed_out: bool
    duration_s: float  # from the fork of the first rank to the end of the last


Message: TypeAlias = (
    RunRequest | Ping | Shutdown | WorkerReady | WorkerRefused | Pong | RanksStarted | Progress | TrialEnd
)

_KINDS: dict[str, type[Message]] = {
    kind.__name__: kind
    for kind in (RunRequest, Ping, Shutdown, WorkerReady, WorkerRefused, Pong, RanksStarted, Progress, TrialEnd)
}


def rank_log_name(rank: int) -> str:
    """The file in the scratch directory that takes a rank's standard output and error."""
    return f"rank_{rank}.log"


def encode_message(message: Message) -> str:
    """One line of JSON, without the newline."""
    return json.dumps({"message": type(message).__name__, "body": to_plain(message)})


def decode_message(line: str) -> Message:
    """Read a line back; DecodeError says what is wrong with it."""
    try:
        envelope = json.loads(line)
    except json.JSONDecodeError as problem:
        raise DecodeError(f"not JSON: {problem}") from None
    if not isinstance(envelope, dict) or set(envelope) != {"message", "body"}:
        raise DecodeError("a message has exactly the keys 'message' and 'body'")
    kind = _KINDS.get(envelope["message"]) if isinstance(envelope["message"], str) else None
    if kind is None:
        raise DecodeError(f"message {envelope['message']!r} is not one of {', '.join(_KINDS)}")
    return from_plain(kind, envelope["body"])
