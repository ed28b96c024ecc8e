"""A small file that another process reads: there whole, or as it was before."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, text: str, *, durable: bool = False) -> None:
    """Put `text` at `path`; with `durable` it is on the disk when this returns. Raises OSError, and then leaves nothing
    but the old content."""
    draft = path.with_name(f".{path.name}.draft-{os.getpid()}")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
