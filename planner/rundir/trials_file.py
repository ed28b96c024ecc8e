"""`trials.jsonl`: one line per trial as it ended, the truth from which everything else can be rebuilt.

A line is durable when `append_trial` returns. A kill can only tear the last line; a torn last line is no trial: reading
drops it and the next append cuts it off. Anything else that cannot be read is an error that names the line: silently
skipping trials would spend them again, or choose from what is left.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from planner.errors import InputError
from planner.rundir.atomic import flush_folder, write_all
from planner.rundir.problems import explain_os_error
from planner.rundir.reading import read_regular
from planner.spec.codec import DecodeError, from_plain, to_plain
from planner.spec.trial import TrialRecord

_MAX_BYTES = 1024**3  # a line is some kilobytes: a million trials


def append_trial(path: Path, trial: TrialRecord) -> None:
    """Add one line and flush it to the disk. Raises InputError when the system refuses; the file is then as before."""
    line = json.dumps(to_plain(trial), separators=(",", ":"), allow_nan=False).encode() + b"\n"
    try:
        is_new = not path.exists()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _append_line(descriptor, line)
        finally:
            os.close(descriptor)
        if is_new:
            flush_folder(path.parent)
    except OSError as problem:
        raise explain_os_error(problem, path, doing="write") from problem


def _append_line(descriptor: int, line: bytes) -> None:
    end = _end_of_whole_lines(descriptor)
    os.ftruncate(descriptor, end)  # Keep: a torn line followed by a whole one would be a corrupt middle line
    os.lseek(descriptor, end, os.SEEK_SET)
    try:
        write_all(descriptor, line)
        os.fsync(descriptor)
    except OSError:
        os.ftruncate(descriptor, end)
        raise


def _end_of_whole_lines(descriptor: int) -> int:
    """The offset just after the last line that is whole and readable."""
    size = os.lseek(descriptor, 0, os.SEEK_END)
    os.lseek(descriptor, 0, os.SEEK_SET)
    with os.fdopen(os.dup(descriptor), "rb") as file:
        content = file.read(size)
    return sum(len(line) + 1 for line in _whole_lines(content))


def _whole_lines(content: bytes) -> list[bytes]:
    """All lines but a torn last one: one without its newline, or (a power cut may leave zeros) one that is no JSON."""
    lines = content.split(b"\n")[:-1]
    if lines and not _is_json_object(lines[-1]):
        return lines[:-1]
    return lines


def _is_json_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def read_trials(path: Path) -> tuple[TrialRecord, ...]:
    """All trials that had ended, in order; () when there is no file yet.

    Raises InputError, naming the line, for a line in the middle that is not a trial, or a number that comes twice.
    """
    try:
        content = read_regular(path, max_bytes=_MAX_BYTES)
    except FileNotFoundError:
        return ()
    except OSError as problem:
        raise explain_os_error(problem, path, doing="read") from problem
    trials: list[TrialRecord] = []
    seen: set[int] = set()
    for number, line in enumerate(_whole_lines(content), start=1):
        trial = _parse_line(line, path=path, line_number=number)
        if trial.number in seen:
            raise _corrupt(path, number, f"trial number {trial.number} was already on an earlier line")
        seen.add(trial.number)
        trials.append(trial)
    return tuple(trials)


def _parse_line(line: bytes, *, path: Path, line_number: int) -> TrialRecord:
    try:
        value: Any = json.loads(line)
        return from_plain(TrialRecord, value)
    except (DecodeError, ValueError, RecursionError) as problem:
        raise _corrupt(path, line_number, str(problem)) from problem


def _corrupt(path: Path, line_number: int, why: str) -> InputError:
    return InputError(
        f"line {line_number} of {path} is not a trial this planner wrote",
        why=why[:500],
        fix=f"restore {path.name} from a copy, or delete that one line: its trial will be run again on --resume",
    )
