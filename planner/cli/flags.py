"""Flag values that are more than a word or a number, and what they are read as."""

from __future__ import annotations

import re
from pathlib import Path

from planner.errors import InputError

_UNIT_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)([smhd]))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_LONGEST_S = 366 * 86400.0
DEFAULT_PLANS_DIR = Path("plans")


def parse_duration_s(text: str, *, flag: str) -> float:
    """Seconds of `90s`, `10m`, `1h30m`, `2d`; InputError for anything else, zero, or more than a year."""
    parts = _PART.findall(text) if len(text) < 50 and _DURATION.fullmatch(text) else []
    duration_s = sum(float(amount) * _UNIT_SECONDS[unit] for amount, unit in parts)
    if not 0 < duration_s <= _LONGEST_S:
        raise InputError(
            f"{flag} does not take {text[:50]!r}",
            why="a duration is a number with a unit: s, m, h or d, more than zero and at most a year",
            fix=f"write it like {flag} 90s, {flag} 10m or {flag} 1h30m",
        )
    return duration_s


def plan_dirs(job_paths: tuple[Path, ...], out_dir: Path | None) -> tuple[Path, ...]:
    """The plan folder of each job: `--out` itself for one job, a folder in it by the job file's name for several.

    InputError when two job files would share one folder.
    """
    if len(job_paths) == 1 and out_dir is not None:
        return (out_dir,)
    parent = out_dir if out_dir is not None else DEFAULT_PLANS_DIR
    folders = tuple(parent / (path.stem or "plan") for path in job_paths)
    shared = [folder for place, folder in enumerate(folders) if folder in folders[:place]]
    if shared:
        raise InputError(
            f"two job files would write the plan folder {shared[0]}",
            why="with several job files each gets a folder of its file's name",
            fix="rename one of the files, or plan them one by one with --out",
        )
    return folders
