"""One planner at a time in a plan folder. The lock ends with the process that holds it, however it ends."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from planner.errors import InputError
from planner.rundir.atomic import write_all
from planner.rundir.problems import explain_os_error

# A file system without flock (Lustre mounted without it, some FUSE clients) answers with one of these.
_UNSUPPORTED = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL})


class FolderLock:
    """An exclusive flock on a file that also says who holds it; a context manager.

    Where the file system has no flock, the note inside the file is the lock: it holds while its process lives, and a
    process of another host is believed to live. `flock` is the system call, an argument so that its absence can be
    tried.
    """

    def __init__(self, path: Path, *, flock: Callable[[int, int], None] = fcntl.flock) -> None:
        self._path = path
        self._flock = flock
        self._descriptor = -1

    def acquire(self) -> None:
        """Take the lock. Raises InputError, naming the holder's process, when another planner has it."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as problem:
            raise explain_os_error(problem, self._path, doing="write") from problem
        try:
            self._lock_or_refuse(descriptor)
            os.ftruncate(descriptor, 0)
            os.lseek(descriptor, 0, os.SEEK_SET)
            note = {"pid": os.getpid(), "host": socket.gethostname(), "since_s": round(time.time(), 3)}
            write_all(descriptor, json.dumps(note).encode())
        except OSError as problem:
            os.close(descriptor)
            raise explain_os_error(problem, self._path, doing="lock") from problem
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the lock back. The file stays: removing it would let two planners lock two files of one name."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return
        try:
            os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)

    def __enter__(self) -> FolderLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _lock_or_refuse(self, descriptor: int) -> None:
        try:
            self._flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self._refusal(_read_note(descriptor)) from None
        except OSError as problem:
            if problem.errno not in _UNSUPPORTED:
                raise
            pid, host = _read_note(descriptor)
            if pid and _may_live(pid, host):
                raise self._refusal((pid, host)) from None

    def _refusal(self, holder: tuple[int, str]) -> InputError:
        pid, host = holder
        who = f"process {pid}" + (f" on {host}" if host and host != socket.gethostname() else "")
        return InputError(
            f"another planner is at work in {self._path.parent}",
            why=f"{who if pid else 'another process'} holds the lock {self._path.name}",
            fix=(
                "wait for it to end or stop it, or choose another folder with --out"
                + (
                    f"; if no planner runs on {host} any more, delete {self._path}"
                    if who.endswith(host) and host
                    else ""
                )
            ),
        )


def _read_note(descriptor: int) -> tuple[int, str]:
    """(process, host) of the holder; (0, "") when the note is empty or half-written."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    try:
        note = json.loads(os.read(descriptor, 4096))
        return int(note["pid"]), str(note["host"])
    except (ValueError, KeyError, TypeError):
        return 0, ""


def _may_live(pid: int, host: str) -> bool:
    if host != socket.gethostname():
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
