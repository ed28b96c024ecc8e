"""Standard output kept for a child program's one result, whatever libraries print."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def result_channel() -> Iterator[int]:
    """A descriptor of the real standard output, while everything that prints is sent to standard error."""
    sys.stdout.flush()
    channel = os.dup(1)
    os.dup2(2, 1)
    try:
        yield channel
    finally:
        os.close(channel)
