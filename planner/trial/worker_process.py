"""The worker program as the planner holds it: started, spoken to in messages, ended with everything it started.

Owns the process and its pipes. Leaves what to ask and what answers mean to `pool`.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import planner
from planner.spec.worker import Message, Shutdown, decode_message, encode_message

GOODBYE_S = 2.0  # for a worker that was told to stop
STDERR_TAIL_BYTES = 4096


class WorkerDied(Exception):
    """The worker's process ended while something was expected of it."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"the trial worker ended with exit code {exit_code}")
        self.exit_code = exit_code


class WorkerProcess:
    """One running worker.

    It dies with the thread that made it (the kernel ties the two), with its pipes, or by `end`.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        python_path: tuple[Path, ...] = (),
        model_types: tuple[str, ...] = (),
        modules: tuple[str, ...] = (),
    ) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  closed by `end`
        command = [sys.executable, "-m", "planner.runtime.worker", "--parent-pid", str(os.getpid())]
        for folder in python_path:
            command += ["--python-path", str(folder)]
        for model_type in model_types:
            command += ["--model-type", model_type]
        for module in modules:
            command += ["--module", module]
        worker_input, self._requests = os.pipe()
        self._answers, worker_output = os.pipe()
        try:
            self._process = subprocess.Popen(
                command,
                stdin=worker_input,
                stdout=worker_output,
                stderr=self._stderr,
                env=_able_to_find_planner(environment),
                start_new_session=True,  # a terminal's Ctrl-C reaches the planner alone, which then ends the trial
            )
        finally:
            os.close(worker_input)  # Keep: only the worker holds these ends, so that its death closes the pipes
            os.close(worker_output)
        self._received = b""
        self._rank_pids: tuple[int, ...] = ()
        self._ended = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def remember_ranks(self, pids: tuple[int, ...]) -> None:
        """The process groups to sweep should the worker die before they do."""
        self._rank_pids = pids

    def send(self, message: Message) -> None:
        """Say something; WorkerDied when there is no one to listen."""
        line = memoryview(encode_message(message).encode() + b"\n")
        try:
            while line:
                line = line[os.write(self._requests, line) :]
        except BrokenPipeError:
            raise WorkerDied(self._process.wait()) from None

    def receive(self, *, timeout_s: float) -> Message | None:
        """The next message; None when none came in time. Raises WorkerDied when the worker is gone."""
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._received:
            left = deadline - time.monotonic()
            readable, _, _ = select.select([self._answers], [], [], max(0.0, left))
            if not readable:
                return None
            received = os.read(self._answers, 1 << 16)
            if not received:
                raise WorkerDied(self._process.wait())
            self._received += received
        line, _, self._received = self._received.partition(b"\n")
        return decode_message(line.decode())

    def stderr_tail(self) -> str:
        """The last of what the worker and its libraries printed."""
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - STDERR_TAIL_BYTES))
        return self._stderr.read().decode(errors="replace")

    def end(self) -> None:
        """End it now, and every rank it has started. Doing it twice does no harm."""
        if self._ended:
            return
        self._ended = True
        for pid in self._rank_pids:
            _end_group(pid)
        if self.alive:
            _end_group(self._process.pid)
        self._process.wait()
        os.close(self._requests)
        os.close(self._answers)
        self._stderr.close()

    def dismiss(self) -> None:
        """Tell an idle worker to stop, and end it when it does not within moments."""
        try:
            self.send(Shutdown())
            self._process.wait(timeout=GOODBYE_S)
        except (WorkerDied, subprocess.TimeoutExpired):
            pass  # ended below, one way or the other
        self.end()


def _end_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # all of it is gone (or, for the second, gone so long that somebody else has the number now)


def _able_to_find_planner(environment: Mapping[str, str]) -> dict[str, str]:
    """In a checkout the package is found by the folder this one was imported from, wherever the planner was started."""
    root = Path(planner.__file__).parent.parent
    if root.name in ("site-packages", "dist-packages"):
        return dict(environment)
    paths = [path for path in (environment.get("PYTHONPATH"), str(root)) if path]
    return {**environment, "PYTHONPATH": os.pathsep.join(paths)}
