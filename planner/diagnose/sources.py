"""Logs from where they lie: files, compressed files, folders of rank logs, standard input. The only part that reads.

Owns what may be opened and how much of it is read. Raises InputError for what is not a log at all.
"""

from __future__ import annotations

import gzip
import stat
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from planner.diagnose.lines import rank_of_file
from planner.diagnose.merge import merge_facts
from planner.diagnose.records import LogFacts
from planner.diagnose.scanner import Scanner
from planner.errors import InputError
from planner.spec._record import record

CHUNK_BYTES = 1 << 22
MAX_FILES = 4096  # of one folder
MAX_BYTES = 1 << 40  # read of one log; a compressed one may unpack to anything
STANDARD_INPUT = Path("-")

_LOG_SUFFIXES = (".log", ".out", ".err", ".txt", ".gz", ".json", ".jsonl", ".yaml", ".yml", "")
_SNAPSHOT_SUFFIXES = (".pickle", ".pkl")
_GZIP, _UTF16 = b"\x1f\x8b", (b"\xff\xfe", b"\xfe\xff")


@record
class LogSource:
    """One log to read. `path` "-" is standard input."""

    path: Path
    name: str
    rank: int | None = None


def find_sources(paths: tuple[Path, ...]) -> tuple[tuple[LogSource, ...], tuple[Path, ...]]:
    """The logs and the memory snapshots behind these paths; a folder stands for the files in it.

    Raises InputError for a path that is missing, a device, or a folder without logs.
    """
    logs: list[LogSource] = []
    snapshots: list[Path] = []
    for path in paths:
        files = _files_of(path)
        for file in files:
            if file != STANDARD_INPUT and is_snapshot(file):
                snapshots.append(file)
                continue
            label = str(file.relative_to(path)) if path != file and file != STANDARD_INPUT else str(file)
            rank = rank_of_file(label) if len(files) > 1 else None
            logs.append(LogSource(path=file, name=label, rank=rank))
    return tuple(logs), tuple(snapshots)


def _files_of(path: Path) -> tuple[Path, ...]:
    if path == STANDARD_INPUT:
        return (path,)
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            return _logs_in(path)
    except (OSError, ValueError) as problem:
        raise _unreadable(path, problem) from None
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        raise InputError(
            f"{path} is neither a file nor a folder",
            why="a device or a socket may never end",
            fix="name the log file, its folder, or - for standard input",
        )
    return (path,)


def _logs_in(folder: Path) -> tuple[Path, ...]:
    found = sorted(
        file
        for file in folder.rglob("*")
        if file.suffix.lower() in (*_LOG_SUFFIXES, *_SNAPSHOT_SUFFIXES)
        and not _is_hidden(file, folder)
        and file.is_file()
    )
    logs = [
        file
        for file in found
        if file.suffix.lower() in (".log", ".out", ".err", ".txt", ".gz", "", *_SNAPSHOT_SUFFIXES)
    ]
    chosen = logs or found
    if not chosen:
        raise InputError(
            f"there is no log in the folder {folder}",
            why="files ending in .log, .out, .err, .txt or .gz are looked for, in its subfolders too",
            fix="name the files themselves",
        )
    if len(chosen) > MAX_FILES:
        raise InputError(
            f"{folder} holds {len(chosen)} files",
            why=f"at most {MAX_FILES} are read at once",
            fix="name the folder of one run, or the files themselves",
        )
    return tuple(chosen)


def _is_hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def is_snapshot(path: Path) -> bool:
    """Whether this is a PyTorch memory snapshot: a pickle, by its first bytes."""
    if path.suffix.lower() in _SNAPSHOT_SUFFIXES:
        return True
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            start = file.read(3)
    except OSError as problem:
        raise _unreadable(path, problem) from None
    return len(start) == 3 and start[0] == 0x80 and 2 <= start[1] <= 5 and start[2] in b"}]\x95"


def read_logs(sources: tuple[LogSource, ...]) -> LogFacts:
    """Everything that these logs say, read one after the other."""
    return merge_facts(tuple(_read_log(source) for source in sources))


def _read_log(source: LogSource) -> LogFacts:
    scanner = Scanner(source.name, rank=source.rank)
    for chunk in chunks_of(source.path):
        scanner.feed(chunk)
    scanner.feed(b"", is_last=True)
    return scanner.facts()


def chunks_of(path: Path) -> Iterator[bytes]:
    """The log's bytes as UTF-8 text, in chunks: unpacked, and recoded where a byte order mark says UTF-16."""
    try:
        if path == STANDARD_INPUT:
            yield from _decoded(sys.stdin.buffer)
            return
        with path.open("rb") as file:
            yield from _decoded(file)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return  # a compressed log that was cut: what could be unpacked has been read
    except OSError as problem:
        raise _unreadable(path, problem) from None


def _decoded(file: IO[bytes]) -> Iterator[bytes]:
    first = file.read(CHUNK_BYTES)
    if first.startswith(_GZIP):
        yield from _unpacked(first, file)
        return
    if first.startswith(_UTF16):
        yield from _recoded(first, file)
        return
    yield from _raw(first, file)


def _raw(first: bytes, file: IO[bytes]) -> Iterator[bytes]:
    chunk, total = first, 0
    while chunk and total < MAX_BYTES:
        total += len(chunk)
        yield chunk
        chunk = file.read(CHUNK_BYTES)


def _unpacked(first: bytes, file: IO[bytes]) -> Iterator[bytes]:
    """The content of a gzip file, member after member; each piece is bounded, whatever it unpacks to."""
    unpacker = zlib.decompressobj(wbits=31)
    total = 0
    for packed in _raw(first, file):
        while packed and total < MAX_BYTES:
            if unpacker.eof:
                unpacker = zlib.decompressobj(wbits=31)
            piece = unpacker.decompress(packed, CHUNK_BYTES)
            packed = unpacker.unconsumed_tail or unpacker.unused_data
            total += len(piece)
            if piece:
                yield piece
            elif unpacker.eof and not packed.startswith(_GZIP):
                return


def _recoded(first: bytes, file: IO[bytes]) -> Iterator[bytes]:
    """UTF-16 (what PowerShell redirects) as UTF-8."""
    encoding = "utf-16-le" if first.startswith(_UTF16[0]) else "utf-16-be"
    rest = b""
    for chunk in _raw(first, file):
        data = rest + chunk
        even = len(data) - len(data) % 2
        rest = data[even:]
        yield data[:even].decode(encoding, errors="replace").encode("utf-8", errors="replace")


def _unreadable(path: Path, problem: OSError | ValueError) -> InputError:
    reason = getattr(problem, "strerror", None) or str(problem)
    return InputError(
        f"cannot read {path}", why=reason, fix="name a readable log file, its folder, or - for standard input"
    )
