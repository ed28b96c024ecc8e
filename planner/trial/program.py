"""Runs one of the runtime's short programs to its end: config parsing, tracing, a launch script. Time-boxed.

Owns the process and all that it starts: ended by id, output to files so that no amount of it fills memory or a pipe.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from planner.spec._record import record
from planner.trial.logs import read_tail

_GRACE_S = 10.0  # for a launcher to end its ranks when it is told to stop
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
MAX_OUTPUT_BYTES = 4 << 20
MAX_LAST_WORDS = 500  # characters


@record
class ProgramEnd:
    """`exit_code` as Python's subprocess has it. `output`: standard output, at most 4 MiB of it."""

    exit_code: int
    timed_out: bool
    output: str
    error_tail: str
    duration_s: float

    @property
    def last_words(self) -> str:
        """The last line it printed, of its errors if there were any: there Python names the exception."""
        lines = [line.strip() for line in (self.error_tail.strip() or self.output).splitlines() if line.strip()]
        return lines[-1][:MAX_LAST_WORDS] if lines else "it printed nothing"


def run_program(
    command: Sequence[str], *, environment: Mapping[str, str], timeout_s: float, folder: Path | None = None
) -> ProgramEnd:
    """Run `command` and wait for its end, at most `timeout_s`; then nothing that it started runs any more.

    The program also ends when this process does, however that happens. OSError when it cannot be started.
    """
    with tempfile.TemporaryDirectory(prefix="meshplan-") as scratch:
        output, errors = Path(scratch) / "stdout", Path(scratch) / "stderr"
        started_s = time.monotonic()
        with output.open("wb") as stdout, errors.open("wb") as stderr:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=dict(environment),
                cwd=folder,
                start_new_session=True,  # a terminal's Ctrl-C reaches the planner alone, which then ends the program
                preexec_fn=death_with_parent(os.getpid()),
            )
            try:
                timed_out = _outlasts(process, timeout_s)
            finally:
                _end_family(process)
        with output.open("rb") as file:
            text = file.read(MAX_OUTPUT_BYTES).decode("utf-8", errors="replace")
        return ProgramEnd(
            exit_code=process.returncode,
            timed_out=timed_out,
            output=text,
            error_tail=read_tail(errors),
            duration_s=time.monotonic() - started_s,
        )


def _outlasts(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    try:
        process.wait(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return True
    return False


def death_with_parent(parent_pid: int) -> Callable[[], None] | None:
    """What a child does before it becomes its program: ask the kernel for SIGTERM when this process dies. None where
    the system cannot."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl  # Keep: looked up here, since between fork and exec little may be done

    def tie() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent_pid:  # it died before the call above
            os._exit(1)

    return tie


def _end_family(process: subprocess.Popen[bytes]) -> None:
    """End the program, if it runs, and what it has started; reap it.

    A launcher is first asked to: it knows its ranks, and torchrun puts each into a session of its own, where no signal
    to the program's group reaches it.
    """
    family = _descendants(process.pid)
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_GRACE_S)
    for member in family:
        with contextlib.suppress(psutil.Error):  # it has ended, the better case
            member.kill()
    with contextlib.suppress(ProcessLookupError):  # all of the group has ended by itself
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []
