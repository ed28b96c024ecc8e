"""Running the console scripts in this process, and in a child as a user does."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from planner.cli import main, plan_main
from tests.unit.cli.fakes import FakeUseCases

ROOT = Path(__file__).parents[3]

# A child's program: the real console script on a product that stands in for the real one.
CHILD = "from planner.cli import main; from tests.unit.cli.fakes import build; main(use_cases=build())"


@dataclass(frozen=True)
class Run:
    exit_code: int
    out: str
    err: str


class Cli:
    """Runs `planner` with a stand-in product and keeps what it printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str, product: FakeUseCases | None = None, script: str = "planner") -> Run:
        entry = plan_main if script == "plan" else main
        with pytest.raises(SystemExit) as end:
            entry(arguments, use_cases=product or FakeUseCases())
        captured = self._capsys.readouterr()
        assert isinstance(end.value.code, int)
        return Run(exit_code=end.value.code, out=captured.out, err=captured.err)


def run_child(*arguments: str, program: str = CHILD, stdin: str = "") -> Run:
    """The script in a child process; ends after a minute at most."""
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, cwd=ROOT, input=stdin, capture_output=True, text=True, timeout=60, check=False)
    return Run(exit_code=done.returncode, out=done.stdout, err=done.stderr)


def assert_three_lines(text: str) -> None:
    """`error:`, `why:`, `fix:`, one line each, as the last lines."""
    lines = text.splitlines()[-3:]
    assert [line.split(":")[0] for line in lines] == ["error", "why", "fix"], text
    assert all(line.split(": ", 1)[1] for line in lines)
