"""Several nodes that act as one: who takes part, who failed, and what all do next, through the plan folder they share.

Owns the files of that agreement (inside an attempt's folder, and greetings in `logs/`). Node 0 decides. Where the plan
folder is not shared the nodes do not find one another, and the run goes on without being restarted. While node 0's
start script makes a checkpoint fit it touches `logs/converting` again and again, and the others wait on.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from planner.rundir.atomic import write_whole
from planner.spec.codec import from_plain, to_plain
from planner.supervise.evidence import Ending
from planner.supervise.policy import FAILED, OUT_OF_MEMORY, Move, Start, Stop

MEETING_S = 120.0  # for all nodes to be seen at the start; nodes may be started by hand
ENDING_S = 90.0  # for all nodes to have ended their ranks after one has failed
DECISION_S = 180.0  # for node 0 to have said what comes next: it waits for the endings and diagnoses
PERIOD_S = 0.5
CONVERTING = "converting"  # as launch-surviving.sh has it


class Peers(Protocol):
    """The other nodes' supervisors."""

    def meet(self, pick_number: Callable[[], int]) -> int | None:
        """The attempt's number that all agree on; None when the others are not found."""
        ...

    def failed_elsewhere(self, folder: Path) -> bool:
        """Whether another node's ranks have ended badly."""
        ...

    def agree(self, folder: Path, ending: Ending, decide: Callable[[Ending], Move]) -> Move:
        """What all do next, after every node has ended its ranks."""
        ...


class Alone:
    """A run on one node."""

    def meet(self, pick_number: Callable[[], int]) -> int | None:
        return pick_number()

    def failed_elsewhere(self, folder: Path) -> bool:
        return False

    def agree(self, folder: Path, ending: Ending, decide: Callable[[Ending], Move]) -> Move:
        return decide(ending)


class SharedFolder:
    """One of several nodes whose plan folder is the same folder."""

    def __init__(
        self,
        logs: Path,
        *,
        node_rank: int,
        nodes: int,
        meeting_s: float = MEETING_S,
        say: Callable[[str], None] = lambda _text: None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._logs = logs
        self._node = node_rank
        self._nodes = nodes
        self._meeting_s = meeting_s
        self._say = say
        self._is_stopped = is_stopped
        self._token = secrets.token_hex(8)

    def meet(self, pick_number: Callable[[], int]) -> int | None:
        others = "1" if self._nodes == 2 else f"1 to {self._nodes - 1}"
        awaited = f"--node-rank {others}" if self._node == 0 else "--node-rank 0"
        self._say(f"waiting at most {self._meeting_s:.0f} s for the supervisors with {awaited} of {self._nodes} nodes")
        return self._gather(pick_number) if self._node == 0 else self._greet()

    def _met(self, ready: Callable[[], bool]) -> bool:
        found = _wait(
            lambda: self._is_stopped() or ready(), self._meeting_s, sign=lambda: _changed(self._logs / CONVERTING)
        )
        return found and not self._is_stopped()

    def _greeting(self, node: int) -> Path:
        return self._logs / f"hello-{node:05d}"

    def _roster(self) -> Path:
        return self._logs / "roster.json"

    def _gather(self, pick_number: Callable[[], int]) -> int | None:
        """Node 0: forget greetings of runs before, and wait for those of this one."""
        others = range(1, self._nodes)
        for node in others:
            self._greeting(node).unlink(missing_ok=True)
        self._roster().unlink(missing_ok=True)
        tokens: list[str] = []

        def all_greeted() -> bool:
            found = [_read(self._greeting(node)) for node in others]
            tokens[:] = [token for token in found if token is not None]
            return len(tokens) == len(found)

        if not self._met(all_greeted):
            return None
        number = pick_number()
        write_whole(self._roster(), json.dumps({"number": number, "tokens": tokens}).encode())
        return number

    def _greet(self) -> int | None:
        """Another node: greet (again, when node 0 has swept the greeting away) until the roster holds this one."""
        found: dict[str, Any] = {}

        def named() -> bool:
            if not self._greeting(self._node).is_file():
                write_whole(self._greeting(self._node), self._token.encode())
            roster = _read(self._roster())
            if roster is not None:
                found.update(json.loads(roster))
            return self._token in found.get("tokens", ())

        if not self._met(named):
            self._greeting(self._node).unlink(missing_ok=True)
            return None
        return int(found["number"])

    def failed_elsewhere(self, folder: Path) -> bool:
        return any(ending.end in (FAILED, OUT_OF_MEMORY) for ending in self._endings(folder))

    def agree(self, folder: Path, ending: Ending, decide: Callable[[Ending], Move]) -> Move:
        write_whole(folder / f"node-{self._node:05d}.json", json.dumps(to_plain(ending)).encode())
        decision = folder / "decision.json"
        if self._node == 0:
            if not _wait(lambda: len(self._endings(folder)) == self._nodes, ENDING_S):
                move: Move = Stop(reason=f"not all {self._nodes} nodes said that their ranks have ended")
            else:
                move = decide(_worst(self._endings(folder)))
            write_whole(decision, json.dumps(_plain_move(move)).encode())
            return move
        if not _wait(decision.is_file, DECISION_S):
            return Stop(reason="node 0 did not say what to do next")
        return _read_move(json.loads(decision.read_text(encoding="utf-8")))

    def _endings(self, folder: Path) -> tuple[Ending, ...]:
        files = sorted(folder.glob("node-*.json"))
        return tuple(from_plain(Ending, json.loads(path.read_text(encoding="utf-8"))) for path in files)


def _worst(endings: tuple[Ending, ...]) -> Ending:
    """Memory before other failures: ranks elsewhere merely lost their peers."""
    order = {OUT_OF_MEMORY: 0, FAILED: 1}
    return min(endings, key=lambda ending: order.get(ending.end, 2))


def _plain_move(move: Move) -> dict[str, Any]:
    return {"start": to_plain(move)} if isinstance(move, Start) else {"stop": to_plain(move)}


def _read_move(plain: dict[str, Any]) -> Move:
    return from_plain(Start, plain["start"]) if "start" in plain else from_plain(Stop, plain["stop"])


def _read(path: Path) -> str | None:
    """None: not yet there, or swept away just now by another node."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def _changed(path: Path) -> int:
    """When the file last changed by its own file system's clock, which need not be this node's; 0: it is not there."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _wait(ready: Callable[[], bool], limit_s: float, *, sign: Callable[[], int] = lambda: 0) -> bool:
    """Whether it came to be within the limit, which begins anew whenever `sign` changes."""
    seen, until = sign(), time.monotonic() + limit_s
    while not ready():
        if (now := sign()) != seen:
            seen, until = now, time.monotonic() + limit_s
        if time.monotonic() > until:
            return False
        time.sleep(PERIOD_S)
    return True
