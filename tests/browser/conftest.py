"""One headless Chromium for all tests of pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_PATIENCE_MS = 120_000  # a machine under load is no failure


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The system's Chromium, driven by Playwright."""
    program = next((found for name in _PROGRAMS if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("needs a Chromium (Debian: apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    # Chromium refuses its sandbox to the root user; the pages are ours and ask nothing of the network.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=program, args=[*arguments, "--disable-gpu"], timeout=_PATIENCE_MS
        )
        yield opened
        opened.close()
