"""A script of the user's own that is not there: told before the trials, with what it was probably meant to be.

Owns where it was looked for, in words. Which folder it starts in is decided by `jobfile`.
"""

from __future__ import annotations

import os
from pathlib import Path

from planner.app.progress import Progress
from planner.emit import read_command
from planner.errors import InputError, near_matches
from planner.spec import JobSpec, TrialMode

_MAX_NAMES = 10_000  # of a folder's files that are compared


def refuse_missing_script(job: JobSpec, *, job_path: Path, mode: TrialMode, console: Progress) -> None:
    """Raise InputError where trials here would run a script that is not here; without them it may well be on the
    cluster only, and a note says so."""
    if not job.launch.command:
        return
    command = read_command(job.launch)
    name = command.words[0]
    if command.is_module or "{" in name:
        return
    places = _places(job, job_path)
    if _is_file(places[0] / name):  # `jobfile` has taken the first folder that holds it
        return
    near = _near(name, places)
    looked = ", then ".join(f"{what} {folder}" for what, folder in _named(places))
    if mode is not TrialMode.REAL:
        meant = f"; did you mean {near[0]}?" if near else ""
        console.note(f"there is no script {name} here (looked in {looked}): the plan expects it on the cluster{meant}")
        return
    fix = "did you mean " + " or ".join(near) + "?" if near else "correct the path, or set launch.folder"
    raise InputError(f"there is no script {name}", why=f"looked in {looked}", fix=fix)


def _places(job: JobSpec, job_path: Path) -> tuple[Path, ...]:
    return (Path(job.launch.folder or "."), Path(os.path.normpath(job_path.absolute().parent)), Path.cwd())


def _named(places: tuple[Path, ...]) -> list[tuple[str, Path]]:
    """The folders in the order in which they were looked in, each once."""
    names = ("launch.folder", "beside the job file in", "the current folder")
    named: dict[Path, str] = {}
    for name, folder in zip(names, places):
        named.setdefault(folder, name)
    return [(name, folder) for folder, name in named.items()]


def _near(name: str, places: tuple[Path, ...]) -> tuple[str, ...]:
    """Files whose names are near, as they would be written: relative to the first folder that has some."""
    wanted = Path(name)
    for folder in dict.fromkeys(places):
        found = near_matches(wanted.name, _files(folder / wanted.parent, wanted.suffix))
        if found:
            return tuple(str(wanted.parent / one) for one in found)
    return ()


def _files(folder: Path, suffix: str) -> list[str]:
    try:
        entries = sorted(folder.iterdir())[:_MAX_NAMES]
        return [entry.name for entry in entries if entry.suffix == suffix and entry.is_file()]
    except OSError:
        return []


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False
