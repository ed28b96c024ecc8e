"""Flag values that are more than a word or a number, and what they are read as."""

from __future__ import annotations

from pathlib import Path

from planner.errors import InputError

DEFAULT_PLANS_DIR = Path("plans")


def parse_duration_s(text: str, *, flag: str) -> float:
    """Seconds of a duration as a job file has it: `90s`, `10m`, `1h30m`; InputError for anything else, a millisecond to
    30 days."""
    from planner.jobfile.quantities import MAX_DURATION_S, MIN_DURATION_S, duration_of_text  # Keep: loads pydantic

    duration_s = duration_of_text(text)
    if duration_s is None or not MIN_DURATION_S <= duration_s <= MAX_DURATION_S:
        raise InputError(
            f"{flag} does not take {text[:50]!r}",
            why="a duration is numbers with their units, d, h, m and s in this order, from a millisecond to 30 days",
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
