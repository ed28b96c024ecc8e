"""Where the Optuna study lives. The study is derived: the trials are the truth, and a lost study is made again."""

from __future__ import annotations

import socket
from enum import StrEnum
from pathlib import Path

from planner.rundir import RunDir, names
from planner.spec._record import record, require


class StudyKind(StrEnum):
    """How a study is kept."""

    SQLITE = "sqlite"  # a file of the plan folder
    JOURNAL = "journal"  # a file of the plan folder, where SQLite's locks cannot be trusted
    URL = "url"  # any storage Optuna can open; may be shared
    MEMORY = "memory"  # gone with the process


@record
class StudyPlace:
    """`name` is the study's (it holds the job hash: two jobs never meet in one study), `note` what to tell the user.

    `worker` names the plan folder in a shared study: a trial it began and never ended is its own to clear.
    """

    kind: StudyKind
    name: str
    path: Path | None = None  # of the file
    url: str = ""
    note: str = ""
    worker: str = ""

    def __post_init__(self) -> None:
        in_file = self.kind in (StudyKind.SQLITE, StudyKind.JOURNAL)
        require(in_file == (self.path is not None), "exactly a study in a file has a path")
        require((self.kind is StudyKind.URL) == bool(self.url), "exactly a study at a URL has one")

    @property
    def file(self) -> Path:
        """The path of a study kept in a file; ValueError for any other."""
        if self.path is None:
            raise ValueError("this study is not kept in a file")
        return self.path

    @property
    def is_ours_alone(self) -> bool:
        """Nobody else writes to it while the plan folder is locked."""
        return self.kind is not StudyKind.URL


def study_place(run_dir: RunDir, *, url: str | None) -> StudyPlace:
    """Where the study of a plan folder goes: the given URL, else SQLite, else (on a network file system) a journal."""
    name = f"meshplan-{run_dir.job_hash[:16]}"
    if url:
        worker = f"{socket.gethostname()}:{run_dir.path}"
        return StudyPlace(kind=StudyKind.URL, name=name, url=url, worker=worker)
    network = run_dir.network_filesystem
    if network:
        return StudyPlace(
            kind=StudyKind.JOURNAL,
            name=name,
            path=run_dir.file(names.STUDY_JOURNAL),
            note=f"the plan folder lies on a network file system ({network}), where SQLite's locks cannot be trusted: "
            f"the study is kept in Optuna's journal file {names.STUDY_JOURNAL} instead of {names.STUDY_SQLITE}",
        )
    return StudyPlace(kind=StudyKind.SQLITE, name=name, path=run_dir.file(names.STUDY_SQLITE))
