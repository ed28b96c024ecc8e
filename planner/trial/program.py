"""Runs one of the runtime's short programs to its end: config parsing, tracing, a launch script. Time-boxed.

Owns the process: its own group, ended by id, output to files so that no amount of it fills memory or a pipe.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from planner.spec._record import record
from planner.trial.logs import read_tail

_POLL_S = 0.2
MAX_OUTPUT_BYTES = 4 << 20


@record
class ProgramEnd:
    """`exit_code` as Python's subprocess has it. `output`: standard output, at most 4 MiB of it."""

    exit_code: int
    timed_out: bool
    output: str
    error_tail: str
    duration_s: float


def run_program(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    timeout_s: float,
    folder: Path | None = None,
    on_wait: Callable[[float], None] | None = None,
) -> ProgramEnd:
    """Run `command` and wait for its end, at most `timeout_s`; then its whole process group is killed by id.

    `on_wait` is called a few times a second with the seconds gone by. OSError when it cannot be started.
    """
    with tempfile.TemporaryDirectory(prefix="meshplan-") as scratch:
        output, errors = Path(scratch) / "stdout", Path(scratch) / "stderr"
        with output.open("wb") as stdout, errors.open("wb") as stderr:
            started_s = time.monotonic()
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=dict(environment),
                cwd=folder,
                start_new_session=True,
            )
            try:
                timed_out = _wait(process, deadline_s=started_s + timeout_s, started_s=started_s, on_wait=on_wait)
            finally:
                _end_group(process)
        with output.open("rb") as file:
            text = file.read(MAX_OUTPUT_BYTES).decode("utf-8", errors="replace")
        return ProgramEnd(
            exit_code=process.returncode,
            timed_out=timed_out,
            output=text,
            error_tail=read_tail(errors),
            duration_s=time.monotonic() - started_s,
        )


def _wait(
    process: subprocess.Popen[bytes], *, deadline_s: float, started_s: float, on_wait: Callable[[float], None] | None
) -> bool:
    while process.poll() is None:
        now_s = time.monotonic()
        if now_s > deadline_s:
            return True
        if on_wait is not None:
            on_wait(now_s - started_s)
        try:
            process.wait(timeout=_POLL_S)
        except subprocess.TimeoutExpired:
            continue
    return False


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill what the program started and left, and reap the program itself."""
    with contextlib.suppress(ProcessLookupError):  # all of it has ended by itself
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
