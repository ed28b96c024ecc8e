"""One trial as the worker sees it: forks a child per rank, watches them, ends those that must, gathers what is left.

Owns the life and death of the ranks' processes. Leaves what a rank does to `worker_rank` and what an end means to the
planner (`planner.trial.classify`).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from random import SystemRandom

from planner.runtime.measure import read_driver_memory
from planner.runtime.script_rank import write_script_files
from planner.runtime.worker_marks import TrialMarks
from planner.runtime.worker_process import native_threads, settle_memory
from planner.runtime.worker_rank import RankSeat, result_path, run_rank
from planner.spec import DeviceKind, TrialTask
from planner.spec.codec import from_plain
from planner.spec.worker import Progress, RankEnd, RankResult, RunRequest, TrialEnd

PEER_GRACE_S = 0.7  # after the first death: peers that fail by themselves in this time say why
STACK_DUMP_S = 0.3  # between asking a hung rank for its stack and ending it
# Below the ports that systems give to clients (Linux: from 32768) and those of Kubernetes' nodes (from 30000).
MEETING_PORTS = range(15_000, 30_000)
REAP_S = 10.0  # a process that does not die of SIGKILL hangs in the kernel; nothing more can be done about it


class ForkRefused(Exception):
    """Forking now would not be safe."""


def fork_ranks(request: RunRequest, marks: TrialMarks, *, answers_descriptor: int) -> dict[int, int]:
    """Start a child per rank and return rank -> process id. Raises ForkRefused while other Python threads are alive.

    Threads of native libraries are only told of: the GPU's driver starts one when DeepSpeed is
    imported, and children forked beside it use the device unharmed (seen).
    """
    others = [thread.name for thread in threading.enumerate() if thread is not threading.current_thread()]
    if others:
        raise ForkRefused(f"the worker runs Python threads ({', '.join(others)}); a lock held by one would stay locked")
    if native_threads():
        print(f"[worker] native threads at the fork: {', '.join(native_threads())}", file=sys.stderr)
    gpus_before = read_driver_memory() if request.task.device is DeviceKind.CUDA else ()
    write_script_files(request.task, request.scratch_dir)
    settle_memory()
    world_size = request.task.num_processes
    init_method = f"tcp://127.0.0.1:{_meeting_port()}"
    sys.stdout.flush()
    sys.stderr.flush()
    pids: dict[int, int] = {}
    for rank in range(world_size):
        seat = RankSeat(
            rank=rank,
            world_size=world_size,
            init_method=init_method,
            scratch_dir=request.scratch_dir,
            worker_pid=os.getpid(),
            forked_at_s=time.monotonic(),
            threads=max(1, request.cores // _num_sharing_cores(request.task)),
            answers_descriptor=answers_descriptor,
            gpus_before=gpus_before,
        )
        pen = marks.of_rank(rank)
        try:
            pid = os.fork()
        except OSError as problem:  # no memory, or too many processes
            for started in pids.values():
                _end_unwatched(started)
            raise ForkRefused(f"rank {rank} could not be forked: {problem}") from problem
        if pid == 0:
            run_rank(seat, request.task, pen)
        pids[rank] = pid
    return pids


def _num_sharing_cores(task: TrialTask) -> int:
    """Processes that have the cores between them. An emulated CPU rank gets what it would beside its peers, because its
    cores are the device."""
    is_cpu = task.device is DeviceKind.CPU
    return task.candidate.layout.world_size if is_cpu else task.num_processes


def _meeting_port() -> int:
    """A port that is free now and stays so until rank 0 binds it: of `MEETING_PORTS` at random, which nobody is given
    without asking. The draw leaves Python's own generator, which the ranks inherit, as it was."""
    for port in SystemRandom().sample(MEETING_PORTS, 100):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            return port
    raise ForkRefused(f"of 100 ports from {MEETING_PORTS[0]} to {MEETING_PORTS[-1]} none is free for the ranks to meet")


class TrialWatch:
    """Watches the ranks of one trial until all have ended.

    The order of things: a rank that ends without a report is the first failure; its peers, which then wait in a
    collective for ever, get `PEER_GRACE_S` to fail by themselves and are ended by their process groups. Past the time
    limit every rank is asked for its stack (it lands in its log) and ended.
    """

    def __init__(self, request: RunRequest, pids: dict[int, int], marks: TrialMarks) -> None:
        self._request = request
        self._marks = marks
        self._alive = dict(pids)
        self._ends: dict[int, RankEnd] = {}
        self._killed: set[int] = set()
        self._began_s = time.monotonic()
        self._first_failure_s: float | None = None
        self._asked_for_stacks_s: float | None = None
        self._killed_at_s: float | None = None
        self._last_progress: Progress | None = None

    def run(self, *, pause: Callable[[], None], tell: Callable[[Progress], None]) -> TrialEnd:
        """Watch to the end. `pause` waits a moment (and may raise); whatever happens, no rank outlives this call."""
        try:
            while self._alive:
                pause()
                self._notice_ends()
                self._end_the_doomed(time.monotonic())
                self._tell_progress(tell)
        finally:
            self._kill_all()
        return TrialEnd(
            number=self._request.number,
            ranks=tuple(self._ends[rank] for rank in sorted(self._ends)),
            timed_out=self._asked_for_stacks_s is not None,
            duration_s=time.monotonic() - self._began_s,
        )

    def _notice_ends(self) -> None:
        for rank, pid in list(self._alive.items()):
            # Keep: WNOWAIT, so that the id still belongs to the rank while its group is swept.
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            _kill_group(pid)  # what the rank itself had started
            _, status = os.waitpid(pid, 0)
            self._bury(rank, os.waitstatus_to_exitcode(status))

    def _bury(self, rank: int, exit_code: int) -> None:
        del self._alive[rank]
        result = _read_result(self._request.scratch_dir, rank)
        now_s = time.monotonic()
        if result.report is None and self._first_failure_s is None:
            self._first_failure_s = now_s
        phase, steps_done = self._marks.read(rank)
        self._ends[rank] = RankEnd(
            rank=rank,
            exit_code=exit_code,
            killed=self._was_ended_here(rank, exit_code),
            ended_at_s=now_s,
            phase=phase,
            steps_done=steps_done,
            report=result.report,
            failure=result.failure,
        )

    def _was_ended_here(self, rank: int, exit_code: int) -> bool:
        # A rank so young that it does not yet know how to show its stack dies of being asked.
        asked = self._asked_for_stacks_s is not None and exit_code == -signal.SIGUSR1
        return asked or (rank in self._killed and exit_code == -signal.SIGKILL)

    def _end_the_doomed(self, now_s: float) -> None:
        if self._killed_at_s is not None:
            if now_s > self._killed_at_s + REAP_S:
                self._give_up()
        elif self._first_failure_s is not None:
            if now_s > self._first_failure_s + PEER_GRACE_S:
                self._kill_all()
        elif self._asked_for_stacks_s is not None:
            if now_s > self._asked_for_stacks_s + STACK_DUMP_S:
                self._kill_all()
        elif now_s > self._began_s + self._request.timeout_s:
            self._asked_for_stacks_s = now_s
            for pid in self._alive.values():
                os.kill(pid, signal.SIGUSR1)

    def _kill_all(self) -> None:
        for rank, pid in self._alive.items():
            _kill_group(pid)
            self._killed.add(rank)
        self._killed_at_s = self._killed_at_s or time.monotonic()

    def _give_up(self) -> None:
        for rank, pid in list(self._alive.items()):
            print(f"[worker] rank {rank} (process {pid}) does not die; it hangs in the kernel", file=sys.stderr)
            self._bury(rank, -signal.SIGKILL)

    def _tell_progress(self, tell: Callable[[Progress], None]) -> None:
        phase, steps_done = self._marks.furthest_behind()
        progress = Progress(number=self._request.number, phase=phase, steps_done=steps_done)
        if progress != self._last_progress:
            self._last_progress = progress
            tell(progress)


def _kill_group(pid: int) -> None:
    """End a rank and all it started. The rank may not lead its group yet: then it is ended by its own id."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return  # gone by itself


def _end_unwatched(pid: int) -> None:
    _kill_group(pid)
    os.waitpid(pid, 0)


def _read_result(scratch_dir: str, rank: int) -> RankResult:
    path = result_path(scratch_dir, rank)
    return from_plain(RankResult, json.loads(path.read_text())) if path.exists() else RankResult()
