"""Where the catalog's entries lie: one file each, in the user's, the site's and the shipped folder, first match wins.

Owns names and aliases of files; what is inside them is `hardware`'s and `models`' business. Names given by users are
compared with listings, never joined to a path.
"""

from __future__ import annotations

import os
from pathlib import Path

from planner.errors import InputError, did_you_mean
from planner.resources import CatalogFolder, catalog_folders
from planner.spec._record import record

SUFFIXES = {"gpus": ".yaml", "links": ".yaml", "clusters": ".yaml", "models": ".json"}
SINGULAR = {"gpus": "GPU", "links": "link", "clusters": "cluster", "models": "model"}


@record
class Entry:
    """One file of the catalog. `origin`: user, site or shipped."""

    name: str
    path: Path
    origin: str


def default_folders() -> tuple[CatalogFolder, ...]:
    """The folders this process's environment asks for."""
    return catalog_folders(os.environ)


def list_entries(kind: str, folders: tuple[CatalogFolder, ...]) -> tuple[Entry, ...]:
    """Every entry of `gpus`, `links`, `clusters` or `models`, by name; an earlier folder hides a later one."""
    found: dict[str, Entry] = {}
    for folder in folders:
        for path in _files(folder.path / kind, SUFFIXES[kind]):
            name = path.stem.lower()
            found.setdefault(name, Entry(name=name, path=path, origin=folder.origin))
    return tuple(found[name] for name in sorted(found))


def _files(folder: Path, suffix: str) -> list[Path]:
    if not folder.is_dir():
        return []
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == suffix)
    except OSError as problem:
        raise InputError(
            f"the catalog folder {str(folder)!r} cannot be read: {problem.strerror}",
            why="it is asked before the shipped catalog",
            fix="give it read rights or unset the variable that names it",
        ) from None


def fold(name: str) -> str:
    """The form names are compared in: lower case, dashes only."""
    return name.strip().lower().replace("_", "-").replace(" ", "-")


def find_entry(kind: str, name: str, folders: tuple[CatalogFolder, ...]) -> Entry | None:
    """The entry whose file bears this name, if any."""
    wanted = fold(name)
    return next((entry for entry in list_entries(kind, folders) if entry.name == wanted), None)


def unknown_name(kind: str, name: str, known: tuple[str, ...]) -> InputError:
    """The error for a name that no folder knows."""
    return InputError(
        f"there is no {SINGULAR[kind]} {name[:100]!r} in the catalog",
        why=f"its figures are read from the catalog; `planner list {kind}` shows what is known",
        fix=did_you_mean(name, known),
    )
