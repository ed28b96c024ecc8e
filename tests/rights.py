"""Being somebody without root's rights, so that tests of refused files hold for root too."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def folder_without_rights() -> Iterator[Path]:
    """A folder of root's (or one's own) that may be read but not written while the body runs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o555)
        try:
            with as_nobody():
                yield folder
        finally:
            folder.chmod(0o755)


@contextmanager
def as_nobody() -> Iterator[None]:
    """Drop root's rights over files for a while; nothing changes for anybody else."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
