"""Several plans in one call: which candidate clusters a job names, and the comparison's file."""

from __future__ import annotations

from pathlib import Path

from planner.errors import InputError
from planner.jobfile import list_choices
from planner.report import PlannedRow, render_comparison
from planner.rundir.atomic import write_whole

COMPARISON = "comparison.md"


def candidate_clusters(job_path: Path, overrides: tuple[str, ...]) -> tuple[str, ...]:
    """The labels of a job's candidate clusters; () for one cluster, and for a file that planning will refuse."""
    try:
        return tuple(choice.label for choice in list_choices(job_path, overrides))
    except InputError:
        return ()


def write_comparison(folder: Path, rows: tuple[PlannedRow, ...]) -> Path:
    """`comparison.md` in the folder that holds the plans' folders. Raises InputError when it cannot be written."""
    path = folder / COMPARISON
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise InputError(
            f"{folder} cannot be made: {problem.strerror}", why="the comparison is written into it", fix="check --out"
        ) from None
    write_whole(path, render_comparison(rows).encode("utf-8"))
    return path
