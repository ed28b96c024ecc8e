"""How an attempt is started and ended: a command that cannot be, a launcher that will not."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from planner.errors import InputError
from planner.supervise import attempt
from planner.supervise.attempt import RunningAttempt, StopFlag
from planner.supervise.loop import make_logs

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
)


def run(folder: Path, *command: str, out: io.StringIO | None = None) -> RunningAttempt:
    return RunningAttempt(command, folder, environment=dict(os.environ), shown=(out or io.StringIO(), io.StringIO()))


@pytest.mark.parametrize(("program", "why"), [("/nonexistent/x", "no such file"), ("/tmp", "permission denied")])
def test_command_that_cannot_be_started_is_refused(tmp_path: Path, program: str, why: str) -> None:
    with pytest.raises(InputError, match=program) as refused:
        run(tmp_path, program)
    assert why in refused.value.why


def test_told_to_stop_twice_a_launcher_that_ignores_it_is_killed_without_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "LAUNCHER_GRACE_S", 3600.0)
    stop = StopFlag()
    ready = threading.Event()

    class Seen(io.StringIO):
        def write(self, text: str) -> int:
            ready.set()
            return super().write(text)

    running = run(tmp_path, sys.executable, "-c", STUBBORN, out=Seen())
    assert ready.wait(60)
    stop.tell()
    stop.tell()
    end = running.run(stop, elsewhere_failed=lambda: False)
    assert end.left.exit_code == -signal.SIGKILL


def test_logs_that_are_a_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("x")
    with pytest.raises(InputError, match="not a folder"):
        make_logs(tmp_path)
