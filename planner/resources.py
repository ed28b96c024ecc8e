"""Finds the files that ship beside the code, and the folders whose files come before them.

Owns where `configs/` and `launch/` lie (inside a wheel, or beside `planner/` in a checkout) and the order in which the
catalog's folders are asked: the user's, the site's, the shipped one. Leaves reading them to `planner.catalog`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from planner.errors import InputError
from planner.spec._record import record

USER_FOLDER_VARIABLE = "MESHPLAN_CONFIGS"
SITE_FOLDER_VARIABLE = "MESHPLAN_SITE_CONFIGS"


@record
class CatalogFolder:
    """One folder laid out as `configs/` is. `origin`: user, site or shipped."""

    origin: str
    path: Path


def find_data_dir(name: str) -> Path:
    """The shipped folder `configs` or `launch`; FileNotFoundError means a broken installation."""
    package = Path(__file__).resolve().parent
    for folder in (package / "_data" / name, package.parent / name):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"this installation has no {name!r} folder; install the package again")


def catalog_folders(environment: Mapping[str, str]) -> tuple[CatalogFolder, ...]:
    """The folders to look in, first match wins. A folder named by a variable has to exist; the usual one need not.

    Raises InputError when a variable names no folder.
    """
    folders = []
    if environment.get(USER_FOLDER_VARIABLE):
        folders.append(_named_folder(environment, USER_FOLDER_VARIABLE, "user"))
    else:
        usual = user_config_dir(environment, platform=sys.platform)
        if usual is not None and _is_folder(usual):
            folders.append(CatalogFolder(origin="user", path=usual))
    if environment.get(SITE_FOLDER_VARIABLE):
        folders.append(_named_folder(environment, SITE_FOLDER_VARIABLE, "site"))
    return (*folders, CatalogFolder(origin="shipped", path=find_data_dir("configs")))


def user_config_dir(environment: Mapping[str, str], *, platform: str) -> Path | None:
    """Where this platform keeps a user's settings for the product; None when no home is known."""
    if environment.get("XDG_CONFIG_HOME"):
        return Path(environment["XDG_CONFIG_HOME"]) / "meshplan"
    if platform == "win32":
        return Path(environment["APPDATA"]) / "meshplan" if environment.get("APPDATA") else None
    if not environment.get("HOME"):
        return None
    home = Path(environment["HOME"])
    return home / "Library/Application Support/meshplan" if platform == "darwin" else home / ".config/meshplan"


def _named_folder(environment: Mapping[str, str], variable: str, origin: str) -> CatalogFolder:
    path = Path(environment[variable]).expanduser()
    if not _is_folder(path):
        raise InputError(
            f"{variable} names {str(path)!r}, which is no folder",
            why=f"the {origin} catalog is looked up there before the shipped one",
            fix=f"create the folder (with gpus/, links/, clusters/ or models/ in it) or unset {variable}",
        )
    return CatalogFolder(origin=origin, path=path)


def _is_folder(path: Path) -> bool:
    """A path that is too long, or behind a folder that may not be looked into, is none."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False
