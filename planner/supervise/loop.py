"""Attempts one after the other, until the training is done, stopped, broken, or out of ways to need less memory.

Owns the order of things and the exit code: 0 done, 130 stopped, 3 every way ran out of memory, 2 (or the error's own)
refused by the ranks, else the launcher's own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from planner.errors import InputError, NoFeasiblePlan, PlannerError
from planner.rundir import explain_os_error, is_folder, is_there, names
from planner.rundir.atomic import write_whole
from planner.spec._record import record
from planner.spec.codec import DecodeError, from_plain, to_plain
from planner.spec.supervision import Attempt, Refusal, SupervisorState
from planner.supervise.attempt import AttemptEnd, RunningAttempt, StopFlag
from planner.supervise.command import Variation, value_of, vary_command
from planner.supervise.evidence import Ending, is_preflight, judge
from planner.supervise.nodes import Alone, Peers
from planner.supervise.policy import DONE, OUT_OF_MEMORY, STOPPED, Move, Start, Stop, next_move

STOPPED_EXIT = 130
TOLD = "it was told to stop meanwhile"


@record
class Supervision:
    """What is supervised. `fallbacks`: folders inside the plan folder, in order. `checkpoint_dir` "": none."""

    plan_dir: Path
    command: tuple[str, ...]
    fallbacks: tuple[str, ...]
    checkpoint_dir: str
    environment: Mapping[str, str]
    on_stderr: bool = False  # where the command's output is shown
    is_first_node: bool = True


@record
class Ports:
    """What the loop asks of others. `diagnose` names the cause of an out-of-memory, given the attempt's folder;
    `pause` waits, but not when told to stop."""

    diagnose: Callable[[Path], str]
    say: Callable[[str], None]
    pause: Callable[[float], None]


class Supervisor:
    """Runs one supervision."""

    def __init__(self, supervision: Supervision, peers: Peers, ports: Ports, stop: StopFlag) -> None:
        self._what = supervision
        self._peers = peers
        self._ports = ports
        self._stop = stop
        self._logs = make_logs(supervision.plan_dir)
        self._earlier = read_state(supervision.plan_dir).attempts
        self._attempts: list[Attempt] = []  # of this supervisor
        self._end_step = self._target()
        self._can_restart = True

    def _checkpoints(self) -> bool:
        return bool(self._what.checkpoint_dir) and "--no-checkpoint" not in self._what.command

    def _saved_step(self) -> int:
        """Of the newest checkpoint; 0: there is none that this run may use."""
        if not self._checkpoints():
            return 0
        latest = Path(self._what.checkpoint_dir) / "latest"
        name = latest.read_text(encoding="utf-8").strip() if latest.is_file() else ""
        digits = name.removeprefix("global_step").removeprefix("portable_step")  # DeepSpeed's own, or converted
        return int(digits) if digits.isdecimal() else 0

    def _target(self) -> int | None:
        """The step at which `--steps` of the first start ends; None without it."""
        steps = value_of(self._what.command, "--steps")
        if steps is None or not steps.isdecimal():
            return None
        return int(steps) + (self._saved_step() if "--resume" in self._what.command else 0)

    def run(self) -> int:
        """The exit code. Raises NoFeasiblePlan when every way ran out of memory, and what the ranks refused with."""
        move: Move = Start(level=self._first_level(), reason="")
        number = self._peers.meet(self._next_number)
        if self._stop.times:  # while the others were waited for
            return STOPPED_EXIT
        if number is None:
            self._ports.say(
                "the other nodes' supervisors were not seen in this plan folder, so it is not shared: the run goes on, "
                "but it will not be started again if it runs out of memory"
            )
            self._peers, self._can_restart = Alone(), False
            number = self._next_number()
        while isinstance(move, Start):
            end = self._attempt(number, move)
            if end.refusal is not None:  # no attempt to remember: the next start begins where the last run ended
                raise _refused(end.refusal)
            ending = judge(end.left)
            if ending.end != OUT_OF_MEMORY and not self._peers.failed_elsewhere(end.folder):
                self._remember(number, move.level, ending, cause="", exit_code=end.left.exit_code)
                return self._leave(ending, end)
            move = self._after(number, move, ending, end)
            number += 1
        if move.reason == TOLD:
            return STOPPED_EXIT
        if self._attempts[-1].end != OUT_OF_MEMORY:
            return self._leave(ending, end)
        raise self._given_up(move, end.folder)

    def _first_level(self) -> int:
        """Where the run before this one got to, when it is this run that goes on."""
        if "--resume" not in self._what.command or not self._earlier:
            return 0
        level = min(self._earlier[-1].level, len(self._what.fallbacks))
        if level:
            self._ports.say(f"going on with fallback {level}, which the run before ended with")
        return level

    def _next_number(self) -> int:
        found = [path.name.removeprefix("run-") for path in self._logs.glob("run-*")]
        return 1 + max((int(digits) for digits in found if digits.isdecimal()), default=0)

    def _attempt(self, number: int, start: Start) -> AttemptEnd:
        folder = self._logs / names.run_name(number)
        _make_folder(folder)
        saved = self._saved_step()
        again = bool(self._attempts)
        variation = Variation(
            folder=self._what.fallbacks[start.level - 1] if start.level else "",
            attempt_dir=str(folder),
            resume=again and saved > 0,
            end_step=self._end_step if again else None,
        )
        command = vary_command(self._what.command, variation)
        environment = {**self._what.environment, **dict(start.environment)}
        out = sys.stderr if self._what.on_stderr else sys.__stdout__ or sys.stderr
        attempt = RunningAttempt(command, folder, environment=environment, shown=(out, sys.stderr))
        return attempt.run(self._stop, elsewhere_failed=lambda: self._peers.failed_elsewhere(folder))

    def _after(self, number: int, start: Start, ending: Ending, end: AttemptEnd) -> Move:
        """After an attempt that failed here or on another node: what all nodes do next."""

        def decide(worst: Ending) -> Move:
            if worst.end != OUT_OF_MEMORY:
                self._remember(number, start.level, worst, cause="", exit_code=end.left.exit_code)
                return Stop(reason=worst.message)
            self._ports.say(f"out of memory: {_where(worst)}{worst.message}")
            cause = "other-process" if is_preflight(worst.message) else self._ports.diagnose(end.folder)
            self._remember(number, start.level, worst, cause=cause, exit_code=end.left.exit_code)
            if not self._can_restart:
                return Stop(reason="the nodes share no plan folder, so they cannot agree on a fallback")
            return next_move(tuple(self._attempts), num_fallbacks=len(self._what.fallbacks))

        move = self._peers.agree(end.folder, ending, decide)
        if not self._attempts or self._attempts[-1].number != number:  # decided by node 0
            self._remember(number, start.level, ending, cause="", exit_code=end.left.exit_code)
        if self._stop.times:
            return Stop(reason=TOLD)
        if isinstance(move, Start):
            self._ports.say(f"{self._next_words(move)} ({move.reason})")
            self._ports.pause(move.pause_s)
        return move

    def _next_words(self, move: Start) -> str:
        what = f"fallback {move.level} of {len(self._what.fallbacks)}" if move.level else "the plan as it is"
        saved = self._saved_step()
        where = f"from the checkpoint after step {saved}" if saved else "from the beginning: there is no checkpoint"
        return f"starting again with {what}, {where}"

    def _remember(self, number: int, level: int, ending: Ending, *, cause: str, exit_code: int) -> None:
        attempt = Attempt(
            number=number,
            level=level,
            end=ending.end,
            cause=cause,
            steps_done=ending.steps_done,
            exit_code=exit_code,
        )
        self._attempts.append(attempt)
        if self._what.is_first_node:
            state = SupervisorState(attempts=(*self._earlier, *self._attempts))
            text = json.dumps(to_plain(state), indent=2) + "\n"
            write_whole(self._what.plan_dir / names.SUPERVISOR, text.encode())

    def _leave(self, ending: Ending, end: AttemptEnd) -> int:
        if ending.end == DONE:
            return 0
        if ending.end == STOPPED:
            return STOPPED_EXIT
        self._ports.say(f"the training failed, and not for want of memory: {_where(ending)}{ending.message}")
        self._ports.say(f"what its ranks said is in {end.folder}")
        return end.left.exit_code if end.left.exit_code > 0 else 1

    def _given_up(self, move: Stop, folder: Path) -> NoFeasiblePlan:
        return NoFeasiblePlan(
            "the training ran out of memory and is not started again",
            why=move.reason,
            fix=f"read the diagnosis in {folder}, plan again with what it names or more memory_headroom, then --resume",
        )


def _refused(refusal: Refusal) -> PlannerError:
    problem = PlannerError(refusal.error, why=refusal.why, fix=refusal.fix)
    problem.exit_code = refusal.exit_code
    return problem


def make_logs(plan_dir: Path) -> Path:
    """The plan's folder of logs, made where it is missing. InputError where that cannot be."""
    logs = plan_dir / names.LOGS_DIR
    if is_there(logs) and not is_folder(logs):
        raise InputError(
            f"{logs} is not a folder", why="what the ranks say is kept in it", fix="move that file away, then run again"
        )
    _make_folder(logs)
    return logs


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as problem:
        raise explain_os_error(problem, folder, doing="make") from problem


def _where(ending: Ending) -> str:
    return f"rank {ending.rank} in {ending.phase}: " if ending.rank >= 0 else ""


def read_state(plan_dir: Path) -> SupervisorState:
    """What earlier supervisors of this plan left. InputError for a file that is none of theirs."""
    path = plan_dir / names.SUPERVISOR
    if not path.is_file():
        return SupervisorState()
    try:
        return from_plain(SupervisorState, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, DecodeError) as problem:
        raise InputError(
            f"{path} cannot be read", why=str(problem), fix="move the file away; the run then begins with the plan"
        ) from problem
