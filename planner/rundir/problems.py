"""What the operating system refuses, in the words of a user: a full disk, a read-only folder, no permission."""

from __future__ import annotations

import errno
from pathlib import Path

from planner.errors import InputError

_CAUSES: dict[int, tuple[str, str]] = {
    errno.ENOSPC: ("the disk is full", "free some space, then run the same command again with --resume"),
    errno.EDQUOT: ("the disk quota is used up", "free some space, then run the same command again with --resume"),
    errno.EROFS: ("the file system is read-only", "choose a folder on a writable file system with --out"),
    errno.EACCES: ("this user may not write there", "choose another folder with --out, or change its permissions"),
    errno.EPERM: ("this user may not write there", "choose another folder with --out, or change its permissions"),
    errno.ENOTDIR: ("a part of the path is a file, not a folder", "choose another folder with --out"),
    errno.EISDIR: ("a folder stands where a file belongs", "move that folder away, or choose another with --out"),
    errno.ENAMETOOLONG: ("the path is too long", "choose a shorter path with --out"),
    errno.ENOENT: ("the folder is gone", "run the command again; if it was moved, name the new place with --out"),
    errno.EFBIG: ("a file size limit was reached", "raise the limit (`ulimit -f`), then run again with --resume"),
}


def explain_os_error(problem: OSError, path: Path, *, doing: str) -> InputError:
    """The InputError for an OSError met while `doing` something ("write", "read") with `path`."""
    why, fix = _CAUSES.get(
        problem.errno or 0,
        (problem.strerror or str(problem), "check the folder and its disk, then run again with --resume"),
    )
    return InputError(f"cannot {doing} {path}", why=why, fix=fix)


def is_folder(path: Path) -> bool:
    """Whether there is a folder to be seen at `path`: a path too long for the system, or behind a folder that may not
    be looked into, has none; what is then done with it says why."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def is_there(path: Path) -> bool:
    """Whether anything is to be seen at `path`."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False
