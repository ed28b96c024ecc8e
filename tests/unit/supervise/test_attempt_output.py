"""What becomes of an attempt's output: nothing is lost, lines stay whole, and no line is held whole."""

from __future__ import annotations

import io
import os
import sys
import threading
from pathlib import Path

import pytest

from planner.supervise import attempt
from planner.supervise.attempt import OUTPUT_LOG, PIECE_BYTES, RunningAttempt, StopFlag


def shown_and_logged(folder: Path, program: str) -> tuple[str, str, str]:
    out, err = io.StringIO(), io.StringIO()
    words = (sys.executable, "-c", program)
    running = RunningAttempt(words, folder, environment=dict(os.environ), shown=(out, err))
    assert running.run(StopFlag(), elsewhere_failed=lambda: False).left.exit_code == 0
    return out.getvalue(), err.getvalue(), (folder / OUTPUT_LOG).read_text(encoding="utf-8")


def test_lines_of_two_streams_all_arrive_whole(tmp_path: Path) -> None:
    line = r"b'line %d \xe2\x82\xac\n' % n"
    program = f"import os\nfor n in range(20000): os.write(1 + n % 2, {line})"
    out, err, log = shown_and_logged(tmp_path, program)
    expected = [f"line {number} €" for number in range(20000)]
    assert out.splitlines() == expected[0::2]
    assert err.splitlines() == expected[1::2]
    assert sorted(log.splitlines()) == sorted(expected)


def test_endless_line_is_passed_on_in_bounded_pieces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    longest = [0]
    write = attempt._Log.write

    def measured(log: attempt._Log, piece: bytes) -> None:
        longest[0] = max(longest[0], len(piece))
        write(log, piece)

    monkeypatch.setattr(attempt._Log, "write", measured)
    text = "€" * 1_000_000  # three bytes each: pieces end inside of characters
    out, _err, log = shown_and_logged(tmp_path, "import sys; sys.stdout.buffer.write('€'.encode() * 1_000_000)")
    assert out == text and log == text
    assert 0 < longest[0] <= 2 * PIECE_BYTES


def test_beginning_of_a_line_is_shown_before_its_end(tmp_path: Path) -> None:
    seen = threading.Event()

    class Seen(io.StringIO):
        def write(self, text: str) -> int:
            if "100%" in text:
                seen.set()
                (tmp_path / "seen").touch()
            return super().write(text)

    program = (
        "import os, pathlib, sys, time\nos.write(1, b'at 100%')\n"
        f"while not pathlib.Path({str(tmp_path / 'seen')!r}).exists(): time.sleep(0.05)"
    )
    words = (sys.executable, "-c", program)
    running = RunningAttempt(words, tmp_path, environment=dict(os.environ), shown=(Seen(), io.StringIO()))
    assert running.run(StopFlag(), elsewhere_failed=lambda: False).left.exit_code == 0
    assert seen.is_set()
