"""The kernel's small files under /sys and /proc: what is not there, or not for us to read, is empty."""

from __future__ import annotations

from pathlib import Path


def read_all(path: Path) -> str:
    """The text; "" where there is none. Reading `speed` of an interface that is down, say, is an error."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def read_line(path: Path) -> str:
    """The text without what surrounds it."""
    return read_all(path).strip()
