"""One start of all ranks of this node: the launcher's process and its family, watched to the end.

Owns processes and the attempt's folder. Every process is ended by its own id; nothing outlives `run`.
"""

from __future__ import annotations

import codecs
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
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
TAIL_BYTES = 256 << 10  # more than both pipes and both readers hold: what one stream said last is in it
PIECE_BYTES = 64 << 10  # of output, read and passed on at once: what a pipe holds
IDLE_S = 0.5  # after which the beginning of a line is shown without its end
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
        self._mark = f"{folder}:{secrets.token_hex(4)}"  # its own: another node's may run on this very machine
        self._family: dict[tuple[int, float], psutil.Process] = {}
        self._process = _start(command, {**environment, MARK: self._mark})
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
        for member in _marked(self._mark, launcher=self._process.pid):
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


def _marked(mark: str, *, launcher: int) -> list[psutil.Process]:
    """Processes of the attempt by what they inherited: one whose launcher died at once was never seen as its child."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != launcher and process.environ().get(MARK) == mark:
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
    """The attempt's output in one file, from two readers. What cannot be written (a full disk) is said once and left
    out: a reader that ended would fill the pipe, and the ranks would wait for ever in their next line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._file = path.open("ab", buffering=0)
        self._said = False

    def write(self, line: bytes) -> None:
        """One more line, or what of it there is room for."""
        with self._lock:
            try:
                self._file.write(line)
                if self._file.tell() > MAX_LOG_BYTES:
                    self._begin_anew()
            except OSError as problem:
                self._say(problem)

    def _begin_anew(self) -> None:
        self._path.replace(self._path.with_suffix(".1.log"))
        new = self._path.open("ab", buffering=0)  # Keep before the close: if it fails, the old one is written on
        self._file.close()
        self._file = new

    def _say(self, problem: OSError) -> None:
        if self._said:
            return
        self._said = True
        with suppress(OSError, ValueError):  # it may go to the same disk
            print(
                f"[supervisor] {self._path} cannot be written ({problem}); the training goes on without it",
                file=sys.stderr,
                flush=True,
            )


def _copy(source: IO[bytes] | None, shown: IO[str], log: _Log, hushed: threading.Event) -> None:
    """Pass output on as it comes, in whole lines as far as possible (the other reader writes into the same log): what
    has no line end goes on when it is long, or when nothing follows for a while."""
    assert source is not None  # noqa: S101 - asked for as a pipe
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for piece in _pieces(source.fileno()):
        log.write(piece)
        text = decoder.decode(piece)
        if hushed.is_set():
            continue
        with suppress(OSError, ValueError):  # whoever watched has gone, or keeps it on a full disk; the log goes on
            shown.write(text)
            shown.flush()


def _pieces(descriptor: int) -> Iterator[bytes]:
    """What can be read, at most about twice PIECE_BYTES at a time, cut behind the last line end where there is one.

    Many short lines come as one piece as soon as the reader is behind, so that none of them waits for a flush.
    """
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    held = b""
    while True:
        if held and not waiting.poll(IDLE_S * 1000):
            yield held
            held = b""
        read = os.read(descriptor, PIECE_BYTES)
        if not read:
            break
        end = 1 + max(read.rfind(b"\n"), read.rfind(b"\r"))
        if end or len(held) + len(read) >= PIECE_BYTES:
            cut = end or len(read)
            yield held + read[:cut]
            held = read[cut:]
        else:
            held += read
    if held:
        yield held
