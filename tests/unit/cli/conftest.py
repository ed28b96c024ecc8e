"""Fixtures of the command line's tests."""

from __future__ import annotations

import pytest

from tests.unit.cli.running import Cli


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line in this process, with a width and colours that do not depend on who runs the tests."""
    monkeypatch.setenv("COLUMNS", "120")
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    return Cli(capsys)
