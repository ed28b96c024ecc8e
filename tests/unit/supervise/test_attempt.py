"""One attempt's output: what becomes of it when its log cannot be written."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from planner.supervise import attempt
from planner.supervise.attempt import OUTPUT_LOG, RunningAttempt, StopFlag

LINES = 4000  # many times what a pipe holds


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_full_disk_is_said_once_and_the_ranks_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "read_tail", lambda _path, limit_bytes: "")  # the stand-in for the disk has no end
    (tmp_path / OUTPUT_LOG).symlink_to("/dev/full")
    words = (sys.executable, "-c", f"for number in range({LINES}): print('x' * 100, number)")
    out = io.StringIO()
    with Path("/dev/full").open("w") as full:
        running = RunningAttempt(words, tmp_path, environment=dict(os.environ), shown=(out, full))
        end = running.run(StopFlag(), elsewhere_failed=lambda: False)
    assert end.left.exit_code == 0
    assert len(out.getvalue().splitlines()) == LINES
    assert capsys.readouterr().err.count("No space left on device") == 1


def test_output_that_cannot_be_shown_is_still_logged(tmp_path: Path) -> None:
    words = (sys.executable, "-c", f"for number in range({LINES}): print('x' * 100, number)")

    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(28, "No space left on device")

    running = RunningAttempt(words, tmp_path, environment=dict(os.environ), shown=(Full(), Full()))
    assert running.run(StopFlag(), elsewhere_failed=lambda: False).left.exit_code == 0
    assert len((tmp_path / OUTPUT_LOG).read_text().splitlines()) == LINES


def test_long_log_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "MAX_LOG_BYTES", 300_000)
    words = (sys.executable, "-c", f"for number in range({LINES}): print('x' * 100, number)")
    running = RunningAttempt(words, tmp_path, environment=dict(os.environ), shown=(io.StringIO(), io.StringIO()))
    running.run(StopFlag(), elsewhere_failed=lambda: False)
    kept = [len((tmp_path / name).read_bytes().splitlines()) for name in ("output.1.log", OUTPUT_LOG)]
    assert sum(kept) == LINES and kept[0] > kept[1] > 0
