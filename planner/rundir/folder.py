"""A plan folder: made, opened, locked, written and read. Nothing is written to a folder that is not one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path
from typing import Any

from planner.errors import InputError
from planner.rundir import names
from planner.rundir.atomic import flush_folder, remove_stale_temporaries, write_whole
from planner.rundir.filesystem import network_filesystem
from planner.rundir.lock import FolderLock
from planner.rundir.plan_file import parse_plan, refuse_newer_format, render_plan
from planner.rundir.problems import explain_os_error, is_folder, is_there
from planner.rundir.reading import open_regular, read_regular
from planner.rundir.trials_file import append_trial, read_trials
from planner.spec._record import record
from planner.spec.plan import PLAN_FORMAT, Plan
from planner.spec.trial import TrialRecord

_MAX_TEXT_BYTES = 64 * 1024 * 1024
_MAX_IDENTITY_BYTES = 64 * 1024


@record
class _Identity:
    format: int
    job_hash: str


class RunDir:
    """One plan folder. Get one from `RunDir.create` (to plan in it) or `RunDir.open` (to read a finished one)."""

    def __init__(self, path: Path, *, job_hash: str) -> None:
        self.path = path
        self.job_hash = job_hash

    @classmethod
    def create(cls, path: Path, job_hash: str, *, other_job_allowed: bool = False) -> RunDir:
        """Make the folder, or take up the plan folder that is there.

        Raises InputError for a file, a folder with other things in it, a folder of another job (unless
        `other_job_allowed`: it then becomes this job's, and the other's trials are set aside under another name), a
        newer format, or a place that cannot be written.
        """
        path = path.absolute()
        _make_folder(path)
        found = _identity_to_take(path, job_hash, other_job_allowed=other_job_allowed)
        if found is None or found.job_hash != job_hash:
            with FolderLock(path / names.LOCK):
                # Keep: asked again, because another planner may have taken the folder before the lock was ours.
                found = _identity_to_take(path, job_hash, other_job_allowed=other_job_allowed)
                _take_over(path, found, job_hash)
        return cls(path, job_hash=job_hash)

    @classmethod
    def open(cls, path: Path) -> RunDir:
        """Open an existing plan folder, for reading or for going on. Raises InputError when it is not one."""
        path = path.absolute()
        if not is_folder(path):
            raise InputError(
                f"there is no plan folder {path}",
                why="it is a file" if is_there(path) else "nothing that may be looked at has this name",
                fix="name the folder that `planner plan` wrote (its --out)",
            )
        found = _read_identity(path)
        if found is None:
            raise InputError(
                f"{path} is not a plan folder",
                why=f"it holds neither {names.PLAN} nor {names.IDENTITY}",
                fix="name the folder that `planner plan` wrote (its --out)",
            )
        return cls(path, job_hash=found.job_hash)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other planners out while the body runs, and first clear what a killed one left half-written.

        Raises InputError, naming the other process, when there is one. A kill releases the lock.
        """
        with FolderLock(self.path / names.LOCK):
            try:
                remove_stale_temporaries(self.path)
            except OSError as problem:
                raise explain_os_error(problem, self.path, doing="write") from problem
            yield

    @property
    def network_filesystem(self) -> str:
        """The type of the network file system the folder lies on; "" for a local one."""
        return network_filesystem(self.path)

    def file(self, name: str) -> Path:
        """The path of a file by its name inside the folder. ValueError for a name that leads out of it."""
        relative = Path(name)
        if relative.is_absolute() or ".." in relative.parts or not relative.parts:
            raise ValueError(f"{name!r} is not a name inside a plan folder")
        return self.path / relative

    def log_file(self, number: int) -> Path:
        """Where the log of trial `number` goes; its folder exists afterwards."""
        return self._with_parent(f"{names.LOGS_DIR}/{names.trial_log_name(number)}")

    def write_text(self, name: str, text: str, *, executable: bool = False) -> Path:
        """Write a file whole or not at all; `launch/job.sbatch` makes its folder. Raises InputError when refused."""
        path = self._with_parent(name)
        write_whole(path, text.encode("utf-8"), executable=executable)
        return path

    def read_text(self, name: str) -> str:
        """The text of a file of the folder. Raises InputError when it is missing, unreadable, huge or not text."""
        path = self.file(name)
        try:
            return read_regular(path, max_bytes=_MAX_TEXT_BYTES).decode("utf-8")
        except FileNotFoundError:
            raise InputError(
                f"{self.path} has no {name}",
                why="the planning that made this folder did not finish, or the file was removed",
                fix="run `planner plan` with --resume on this folder",
            ) from None
        except UnicodeDecodeError as problem:
            raise InputError(f"{path} is not text", why=str(problem), fix="restore it, or plan again") from problem
        except OSError as problem:
            raise explain_os_error(problem, path, doing="read") from problem

    def read_log_end(self, name: str, *, most: int) -> str:
        """At most the last `most` bytes of a file under `logs/`, as text (what is no UTF-8 replaced); "" where there is
        none that can be read: logs are for people, and no plan fails for want of one."""
        try:
            with os.fdopen(open_regular(self.file(f"{names.LOGS_DIR}/{name}")), "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(size - most, 0))
                return file.read().decode("utf-8", errors="replace")
        except (OSError, ValueError, InputError):
            return ""

    def append_trial(self, trial: TrialRecord) -> None:
        """Add a trial; durable when this returns. Raises InputError when the disk refuses."""
        append_trial(self.file(names.TRIALS), trial)

    def read_trials(self) -> tuple[TrialRecord, ...]:
        """Every trial that had ended. Raises InputError, naming the line, when the file was damaged."""
        return read_trials(self.file(names.TRIALS))

    def write_plan(self, plan: Plan) -> Path:
        """Write `plan.yaml`."""
        return self.write_text(names.PLAN, render_plan(plan))

    def remove_plan(self) -> None:
        """Take away `plan.yaml`, if there is one: until the next is written, the folder holds no plan."""
        path = self.file(names.PLAN)
        try:
            path.unlink(missing_ok=True)
            flush_folder(path.parent)
        except OSError as problem:
            raise explain_os_error(problem, path, doing="remove") from problem

    def read_plan(self) -> Plan:
        """Read `plan.yaml`. Raises InputError when it is missing, damaged or of a newer format."""
        return parse_plan(self.read_text(names.PLAN), name=str(self.file(names.PLAN)))

    def _with_parent(self, name: str) -> Path:
        path = self.file(name)
        if not is_folder(path.parent):
            _make_folder(path.parent)
        return path


def _make_folder(path: Path) -> None:
    if is_there(path) and not is_folder(path):
        raise InputError(f"{path} is a file", why="a plan is a folder", fix="choose another name with --out")
    try:
        if not is_folder(path):
            path.mkdir(parents=True, exist_ok=True)
            flush_folder(path.parent)
    except OSError as problem:
        raise explain_os_error(problem, path, doing="make") from problem


def _holds_foreign_files(path: Path) -> bool:
    """Anything but what a planner killed in its first moment leaves: its lock and its temporary files."""
    own = (names.LOCK, names.TEMPORARY_PREFIX)
    try:
        return any(not entry.name.startswith(own) for entry in path.iterdir())
    except OSError as problem:
        raise explain_os_error(problem, path, doing="read") from problem


def _identity_to_take(path: Path, job_hash: str, *, other_job_allowed: bool) -> _Identity | None:
    """Whose the folder is, None for nobody's. Raises InputError when it may not become this job's."""
    found = _read_identity(path)
    if found is None and _holds_foreign_files(path):
        raise InputError(
            f"{path} is not empty and not a plan folder",
            why="the planner writes only into folders of its own",
            fix="choose a new or empty folder with --out",
        )
    if found is not None and found.job_hash != job_hash and not other_job_allowed:
        raise InputError(
            f"{path} holds the plan of another job",
            why=f"its job hash is {found.job_hash[:12]}, this job's is {job_hash[:12]}: model, training, cluster, "
            "ranges or objective differ",
            fix="choose another folder with --out, or delete this one to plan anew in it",
        )
    return found


def _take_over(path: Path, found: _Identity | None, job_hash: str) -> None:
    """Make `path` this job's folder. Trials and plan of another job are not this one's: they get another name."""
    if found is not None:
        _set_aside(path, found.job_hash)
    identity = {"format": PLAN_FORMAT, "job_hash": job_hash}
    write_whole(path / names.IDENTITY, json.dumps(identity).encode() + b"\n")


def _set_aside(path: Path, job_hash: str) -> None:
    mark = "".join(letter for letter in job_hash if letter.isalnum())[:12]
    for old in (path / names.TRIALS, path / names.PLAN):
        try:
            if old.exists():
                old.replace(_free_name(old, f"{old.stem}-of-{mark}"))
        except OSError as problem:
            raise explain_os_error(problem, old, doing="rename") from problem


def _free_name(path: Path, stem: str) -> Path:
    """`path` under another stem that no file bears: what was set aside before stays."""
    stems = chain((stem,), (f"{stem}-{number}" for number in count(2)))
    return next(free for free in map(path.with_stem, stems) if not free.exists())


def _read_identity(path: Path) -> _Identity | None:
    """Whose folder it is: from the identity file or, where a copy lost hidden files, from the plan itself."""
    hidden = path / names.IDENTITY
    try:
        if hidden.exists():
            return _parse_identity(read_regular(hidden, max_bytes=_MAX_IDENTITY_BYTES), hidden)
        if not (path / names.PLAN).is_file():
            return None
    except OSError as problem:
        raise explain_os_error(problem, hidden, doing="read") from problem
    plan = RunDir(path, job_hash="").read_plan()
    return _Identity(format=plan.format, job_hash=plan.job_hash)


def _parse_identity(content: bytes, path: Path) -> _Identity:
    try:
        value: Any = json.loads(content)
        refuse_newer_format(value["format"], name=str(path))
        return _Identity(format=int(value["format"]), job_hash=str(value["job_hash"]))
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        raise InputError(
            f"{path} is damaged",
            why="it does not hold a format and a job hash",
            fix="choose another folder with --out, or delete this one to plan anew in it",
        ) from problem
