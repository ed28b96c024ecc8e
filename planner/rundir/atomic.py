"""Writing a file whole or not at all, and making that survive a power cut.

A file is written under a temporary name in its own folder, flushed to the disk, renamed over the old one, and the
folder is flushed too: at every moment the name holds either the old content or the new.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from planner.rundir.names import TEMPORARY_PREFIX
from planner.rundir.problems import explain_os_error


def write_whole(path: Path, content: bytes, *, executable: bool = False) -> None:
    """Put `content` at `path`, whole or not at all; the parent folder must exist. What is there and no file (a pipe,
    `/dev/stdout`) is written to, not replaced.

    Permissions follow the umask. Raises InputError when the system refuses (full, read-only, no permission); the
    temporary file is then removed and the old content stands.
    """
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(6)}")
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        try:
            _write_new(temporary, content, mode=0o777 if executable else 0o666)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        flush_folder(path.parent)
    except OSError as problem:
        raise explain_os_error(problem, path, doing="write") from problem


def _write_new(path: Path, content: bytes, *, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        write_all(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, content: bytes) -> None:
    """Write every byte: the system may take fewer than it is offered."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def flush_folder(folder: Path) -> None:
    """Make created and renamed names in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_stale_temporaries(folder: Path) -> tuple[str, ...]:
    """Remove what killed writers left in `folder` and its direct subfolders; returns the names. Only under the lock."""
    removed = []
    for pattern in (f"{TEMPORARY_PREFIX}*", f"*/{TEMPORARY_PREFIX}*"):
        for path in sorted(folder.glob(pattern)):
            path.unlink(missing_ok=True)
            removed.append(path.name)
    return tuple(removed)
