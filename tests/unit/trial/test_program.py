"""Short programs are run to their end, and nothing of them is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from planner.trial.program import ProgramEnd, run_program

# A launcher like torchrun: its child is in a session of its own, and is ended only by the launcher itself, if at all.
LAUNCHER = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""


def _run(code: str, *, timeout_s: float = 30.0, folder: Path | None = None) -> ProgramEnd:
    return run_program([sys.executable, "-c", code], environment={"MARK": "here"}, timeout_s=timeout_s, folder=folder)


def _is_gone(pid: int) -> bool:
    for _ in range(100):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def test_run_program_gives_exit_code_output_and_environment(tmp_path: Path) -> None:
    end = _run("import os, sys; print(os.getcwd(), os.environ['MARK']); sys.exit(3)", folder=tmp_path)
    assert (end.exit_code, end.timed_out, end.output) == (3, False, f"{tmp_path} here\n")


def test_run_program_does_not_stop_for_a_full_pipe_and_bounds_what_it_keeps() -> None:
    end = _run("print('x' * (5 << 20))")
    assert (end.exit_code, len(end.output)) == (0, 4 << 20)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("print('a'); print('b\\n\\n')", "b"),
        ("print('a'); raise ValueError('no such thing')", "ValueError: no such thing"),
        ("pass", "it printed nothing"),
    ],
)
def test_last_words_are_the_exception_or_the_last_line(code: str, words: str) -> None:
    assert _run(code).last_words == words


def test_run_program_past_its_time_leaves_no_rank_in_a_session_of_its_own() -> None:
    started_s = time.monotonic()
    end = _run(LAUNCHER, timeout_s=2.0)
    assert end.timed_out
    assert end.exit_code == -signal.SIGTERM
    assert time.monotonic() - started_s < 20
    assert _is_gone(int(end.output))


def test_run_program_that_ends_leaves_nothing_of_its_group() -> None:
    code = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).pid)"
    end = _run(code)
    assert end.exit_code == 0
    assert _is_gone(int(end.output))


def test_run_program_ends_when_the_planner_is_killed(tmp_path: Path) -> None:
    said = tmp_path / "pid"
    inner = f"import os, time; open({str(said)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    outer = (
        "import os, sys; from planner.trial.program import run_program;"
        f"run_program([sys.executable, '-c', {inner!r}], environment=dict(os.environ), timeout_s=60)"
    )
    planner = subprocess.Popen([sys.executable, "-c", outer])
    try:
        for _ in range(400):
            if said.exists() and said.read_text():
                break
            time.sleep(0.05)
        pid = int(said.read_text())
        os.kill(planner.pid, signal.SIGKILL)
    finally:
        planner.kill()
        planner.wait()
    assert _is_gone(pid)
