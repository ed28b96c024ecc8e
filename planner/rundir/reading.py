"""Reading a file of a plan folder: an ordinary one, of bounded size, never a pipe or a device that would not end."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from planner.errors import InputError


def open_regular(path: Path) -> int:
    """A descriptor to read `path` by. Raises OSError as `os.open` does, InputError for a pipe, a device or a folder
    (a pipe without a writer would be waited on for ever, a device may never end)."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError(
            f"{path} is not an ordinary file",
            why="a file of a plan folder is read whole, and this is a pipe, a device or a folder, or a link to one",
            fix="restore the file, or plan again into a new folder",
        )
    return descriptor


def read_regular(path: Path, *, max_bytes: int) -> bytes:
    """The content of an ordinary file. Raises OSError, and InputError for anything else or more than `max_bytes`."""
    with os.fdopen(open_regular(path), "rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise InputError(f"{path} is too large", why="no file of a plan is", fix="plan again into a new folder")
    return content
