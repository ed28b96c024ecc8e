"""The product's own command line in this process: quick enough for tables of hundreds of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from planner.cli import main
from tests.unit.cli.running import Run

Planner: TypeAlias = Callable[..., Run]


@pytest.fixture(name="planner")
def planner_fixture(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Planner:
    """Runs `planner WORDS…` with the real use cases and keeps what it printed."""
    for name in ("FORCE_COLOR", "NO_COLOR", "MESHPLAN_CONFIGS", "MESHPLAN_SITE_CONFIGS"):
        monkeypatch.delenv(name, raising=False)

    def run(*words: str) -> Run:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(words)
        captured = capsys.readouterr()
        assert isinstance(end.value.code, int)
        return Run(exit_code=end.value.code, out=captured.out, err=captured.err)

    return run
