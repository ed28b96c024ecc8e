"""One start of all ranks of this node: the launcher's process and its family, watched to the end.

Owns processes and the attempt's folder. Every process is ended by its own id; nothing outlives `run`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

import psutil

from planner.probe.host import kernel_oom_kills
from planner.spec._record import record
from planner.spec.codec import DecodeError, from_plain
from planner.spec.supervision import REFUSAL_FILE, STOP_FILE, RankExit, Refusal
from planner.supervise.command import cannot_start
from planner.supervise.evidence import Leftovers
from planner.trial.logs import read_tail
from planner.trial.program import death_with_parent

OUTPUT_LOG = "output.log"
MARK = "MESHPLAN_ATTEMPT"  # in the environment of everything that an attempt starts
MAX_LOG_BYTES = 64 << 20  # then it is set aside as output.1.log
TAIL_BYTES = 64 << 10
PERIOD_S = 0.2
PEER_GRACE_S = 1.5  # after the first failure: ranks that fail by themselves in this time leave word
LAUNCHER_GRACE_S = 15.0  # for the launcher to notice that its ranks are gone


@record
class AttemptEnd:
    """`folder` holds what the ranks left."""

    left: Leftovers
    folder: Path
    refusal: Refusal | None = None  # the ranks would not train


class StopFlag:
    """How often this supervisor was told to stop: once to save and end, twice to end now."""

    def __init__(self) -> None:
        self.times = 0

    def tell(self) -> None:
        """Once more."""
        self.times += 1


class RunningAttempt:
    """A started launcher. `elsewhere_failed`: asked now and then whether another node's ranks have failed."""

    def __init__(
        self, command: tuple[str, ...], folder: Path, *, environment: dict[str, str], shown: tuple[IO[str], IO[str]]
    ) -> None:
        self.folder = folder
        self._kills_before = kernel_oom_kills()
        self._family: dict[tuple[int, float], psutil.Process] = {}
        self._process = _start(command, {**environment, MARK: str(folder)})
        log = _Log(folder / OUTPUT_LOG)
        self._hushed = threading.Event()  # what the launcher says of ranks that refused goes to the log alone
        self._readers = [
            threading.Thread(target=_copy, args=(source, target, log, self._hushed), daemon=True)
            for source, target in ((self._process.stdout, shown[0]), (self._process.stderr, shown[1]))
        ]
        for reader in self._readers:
            reader.start()

    def run(self, stop: StopFlag, *, elsewhere_failed: Callable[[], bool]) -> AttemptEnd:
        """Watch to the end; whatever happens, no rank outlives this call."""
        try:
            self._watch(stop, elsewhere_failed)
        finally:
            self._end_all(stop)
        for reader in self._readers:
            reader.join(timeout=5.0)
        left = Leftovers(
            exits=read_exits(self.folder),
            exit_code=self._process.returncode,
            log_tail=read_tail(self.folder / OUTPUT_LOG, limit_bytes=TAIL_BYTES),
            kernel_oom_kills=kernel_oom_kills() - self._kills_before,
            told_to_stop=stop.times > 0,
        )
        return AttemptEnd(left=left, folder=self.folder, refusal=read_refusal(self.folder))

    def _watch(self, stop: StopFlag, elsewhere_failed: Callable[[], bool]) -> None:
        failed_at_s: float | None = None
        while self._process.poll() is None:
            time.sleep(PERIOD_S)
            self._remember_family()
            if stop.times > 1:
                return
            if (self.folder / REFUSAL_FILE).exists():
                self._hushed.set()
                return
            if stop.times == 1:
                (self.folder / STOP_FILE).touch()
            if failed_at_s is None and (_any_failed(self.folder) or elsewhere_failed()):
                failed_at_s = time.monotonic()
            if failed_at_s is not None and time.monotonic() > failed_at_s + PEER_GRACE_S:
                return

    def _remember_family(self) -> None:
        """Ranks lead sessions of their own, and when the launcher dies they belong to nobody: so they are known before
        that."""
        try:
            for member in psutil.Process(self._process.pid).children(recursive=True):
                self._family[(member.pid, member.create_time())] = member
        except psutil.Error:
            return  # it has just ended

    def _end_all(self, stop: StopFlag) -> None:
        self._remember_family()
        for member in _marked(str(self.folder), launcher=self._process.pid):
            self._family[(member.pid, member.create_time())] = member
        for member in self._family.values():
            try:
                member.kill()  # psutil sees to it that the id still is this process's
            except psutil.Error:
                continue  # it has ended, the better case
        if self._process.poll() is None:
            self._process.terminate()
        until_s = time.monotonic() + LAUNCHER_GRACE_S
        while self._process.poll() is None and time.monotonic() < until_s and stop.times < 2:
            time.sleep(PERIOD_S)
        if self._process.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _start(command: tuple[str, ...], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """InputError for a command that cannot be started."""
    try:
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,  # a terminal's Ctrl-C reaches the supervisor alone, which lets the ranks save
            preexec_fn=death_with_parent(os.getpid()),
        )
    except OSError as problem:
        raise cannot_start(command, problem) from problem


def _marked(folder: str, *, launcher: int) -> list[psutil.Process]:
    """Processes of the attempt by what they inherited: one whose launcher died at once was never seen as its child."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != launcher and process.environ().get(MARK) == folder:
                found.append(process)
        except (psutil.Error, OSError):
            continue  # gone, or somebody else's
    return found


def read_exits(folder: Path) -> tuple[RankExit, ...]:
    """What the ranks left, in order; a file that cannot be read is said and left out."""
    found = []
    for path in sorted(folder.glob("rank-*.json")):
        try:
            found.append(from_plain(RankExit, json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, DecodeError) as problem:
            print(f"[supervisor] {path} cannot be read: {problem}", file=sys.stderr, flush=True)
    return tuple(found)


def read_refusal(folder: Path) -> Refusal | None:
    """Why the ranks would not train; None where they did. What cannot be read is said and taken for none."""
    path = folder / REFUSAL_FILE
    if not path.is_file():
        return None
    try:
        return from_plain(Refusal, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, DecodeError) as problem:
        print(f"[supervisor] {path} cannot be read: {problem}", file=sys.stderr, flush=True)
        return None


def _any_failed(folder: Path) -> bool:
    return any(word.failure is not None for word in read_exits(folder))


class _Log:
    """The attempt's output in one file, from two readers."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._file = path.open("ab")

    def write(self, line: bytes) -> None:
        with self._lock:
            self._file.write(line)
            self._file.flush()
            if self._file.tell() > MAX_LOG_BYTES:
                self._file.close()
                self._path.replace(self._path.with_suffix(".1.log"))
                self._file = self._path.open("ab")


def _copy(source: IO[bytes] | None, shown: IO[str], log: _Log, hushed: threading.Event) -> None:
    assert source is not None  # noqa: S101 - asked for as a pipe
    for line in source:
        log.write(line)
        if hushed.is_set():
            continue
        try:
            shown.write(line.decode(errors="replace"))
            shown.flush()
        except (BrokenPipeError, ValueError):
            continue  # whoever watched has gone; the log goes on
