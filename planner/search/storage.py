"""Where the Optuna study lives. The study is derived: the trials are the truth, and a lost study is made again.

A study is either kept in a file of the plan folder, and then nobody else's, or at a URL, and then it may be shared by
several planners, each with a folder of its own. Owns what may be said as a URL; opening it is `study`'s.
"""

from __future__ import annotations

import re
import socket
from enum import StrEnum
from pathlib import Path

from planner.errors import InputError, did_you_mean
from planner.redaction import hide_url_passwords
from planner.rundir import RunDir, is_folder, names, network_filesystem
from planner.spec._record import record, require

# How often a worker says that its trial is alive, and how long it may be silent before another takes it for dead. A
# busy database or a network file system answers within seconds; a trial taken back too early is only run twice.
BEAT_S = 5.0
GRACE_S = 30.0

DATABASES = ("sqlite", "postgresql", "mysql", "mariadb")
_OTHERS = ("journal", "redis", "rediss")
_DEFAULT_DRIVERS = {"postgresql": "psycopg", "mysql": "pymysql", "mariadb": "pymysql"}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9]*)(?:\+([A-Za-z0-9_]+))?:(//.*)", re.DOTALL)
_FORMS = (
    "write sqlite:///file.db, journal:///file.journal (for network file systems), "
    "postgresql://user@host/database, mysql://user@host/database, or redis://host"
)


class StudyKind(StrEnum):
    """How a study is kept."""

    SQLITE = "sqlite"  # a file of the plan folder
    JOURNAL = "journal"  # a file of the plan folder, where SQLite's locks cannot be trusted
    URL = "url"  # any storage Optuna can open; may be shared
    MEMORY = "memory"  # gone with the process


@record
class StudyPlace:
    """`name` is the study's: it holds the job hash (two jobs never meet in one study) and, at a URL, the machine's
    fingerprint (figures of two kinds of machine do not either). `note` is what to tell the user.

    `worker` names the plan folder in a shared study: a trial it began and never ended is its own to clear. `must_exist`
    says that somebody else has to have begun the study.
    """

    kind: StudyKind
    name: str
    path: Path | None = None  # of the file
    url: str = ""
    note: str = ""
    worker: str = ""
    must_exist: bool = False
    beat_s: float = BEAT_S
    grace_s: float = GRACE_S

    def __post_init__(self) -> None:
        in_file = self.kind in (StudyKind.SQLITE, StudyKind.JOURNAL)
        require(in_file == (self.path is not None), "exactly a study in a file has a path")
        require((self.kind is StudyKind.URL) == bool(self.url), "exactly a study at a URL has one")
        require(self.kind is StudyKind.URL or not self.must_exist, "a study of one's own need not exist")
        require(0 < self.beat_s < self.grace_s, "a worker beats more often than others wait")

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

    def is_beside(self, worker: str) -> bool:
        """Whether another planner of the study, by the name it gave itself, runs on this one's host."""
        return worker != self.worker and worker.partition(":")[0] == self.worker.partition(":")[0]

    @property
    def shown(self) -> str:
        """Where it is, for people: without the password."""
        return hide_url_passwords(self.url) or str(self.path or "memory")


def study_place(run_dir: RunDir, *, url: str | None, machine: str = "", join: bool = False) -> StudyPlace:
    """Where the study of a plan folder goes: the given URL, else SQLite, else (on a network file system) a journal.

    Raises InputError for a URL that no storage answers to.
    """
    name = f"meshplan-{run_dir.job_hash[:16]}"
    if url:
        return StudyPlace(
            kind=StudyKind.URL,
            name=f"{name}-{machine}" if machine else name,
            url=storage_url(url),
            worker=f"{socket.gethostname()}:{run_dir.path}",
            must_exist=join,
        )
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


def storage_url(text: str) -> str:
    """The URL as a storage is opened with: a database without a driver gets the one of this product's extras.

    Raises InputError for what is no storage URL, and for SQLite on a network file system.
    """
    match = _SCHEME.fullmatch(text)
    if match is None:
        raise InputError(f"{hide_url_passwords(text)[:200]!r} is no storage URL", why="a study is at a URL", fix=_FORMS)
    scheme, driver, rest = match[1].lower(), match[2], match[3]
    scheme = "postgresql" if scheme == "postgres" else scheme
    if scheme not in (*DATABASES, *_OTHERS):
        raise InputError(
            f"no study can be kept at {scheme}://",
            why=f"the storages are {', '.join((*DATABASES, *_OTHERS))}",
            fix=f"{did_you_mean(scheme, (*DATABASES, *_OTHERS))}; {_FORMS}",
        )
    path = file_of_url(f"{scheme}:{rest}")
    if path is not None:
        _refuse_unusable_file(scheme, path)
    driver = driver or _DEFAULT_DRIVERS.get(scheme)
    return f"{scheme}+{driver}:{rest}" if driver else f"{scheme}:{rest}"


def file_of_url(url: str) -> Path | None:
    """The file that a `sqlite:///` or `journal:///` URL names, as SQLAlchemy reads it; None for a server's URL."""
    scheme, _, rest = url.partition("://")
    if scheme.partition("+")[0] not in ("sqlite", "journal"):
        return None
    return Path(rest.removeprefix("/").partition("?")[0])


def _refuse_unusable_file(scheme: str, path: Path) -> None:
    if not path.name:
        raise InputError(f"{scheme}:// names no file", why="a study that is shared has a place", fix=_FORMS)
    folder = path.absolute().parent
    if not is_folder(folder):
        raise InputError(
            f"there is no folder {folder} for the study", why="the file is made, its folder is not", fix="make it first"
        )
    network = network_filesystem(folder)
    if scheme == "sqlite" and network:
        raise InputError(
            f"SQLite cannot be shared in {folder}",
            why=f"it lies on a network file system ({network}), where SQLite's locks cannot be trusted",
            fix=f"use Optuna's journal file there: journal:///{path.with_suffix('.journal')}",
        )
