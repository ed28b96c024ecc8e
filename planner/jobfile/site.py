"""Site defaults: `defaults.yaml` of the user's and of the site's folder, laid below every job.

Owns what such a file may say, and how it is laid below a job: the job's own keys win, then the user's, then the site's.
A job that the planner wrote (`cluster.resolved`) has every default in it already and gets none.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from planner.catalog.documents import Document, KeyPath, shorten
from planner.catalog.strict import dotted_path
from planner.catalog.yaml_text import read_yaml
from planner.errors import InputError, did_you_mean
from planner.resources import CatalogFolder
from planner.spec._record import record

DEFAULTS_FILE = "defaults.yaml"
# What belongs to a place and not to a training. Of a section in the table only those keys; () stands for all of it.
MAY_SAY: dict[str, tuple[str, ...]] = {
    "slurm": (),
    "kubernetes": (),
    "environment": (),
    "prices": (),
    "launch": ("launcher", "master_port", "environment", "slurm", "kubernetes"),
    "cluster": ("inter_node_link", "mtbf_hours", "checkpoint_write_gb_per_s"),
    "trials": (),
    "memory_headroom": (),
}
_EITHER_PLACE = ("environment", "slurm", "kubernetes")  # under launch, or at the top of a job file


@record
class SiteDefault:
    """One value of a defaults file. `used`: the job does not say it itself."""

    key: str
    value: Any
    path: Path
    origin: str  # user | site
    used: bool = True


def defaults_files(folders: tuple[CatalogFolder, ...]) -> tuple[CatalogFolder, ...]:
    """The folders (user's, site's) that hold a defaults file, first the one that wins."""
    return tuple(folder for folder in folders if folder.origin != "shipped" and (folder.path / DEFAULTS_FILE).is_file())


def list_defaults(folders: tuple[CatalogFolder, ...]) -> tuple[SiteDefault, ...]:
    """Every value of every defaults file; `used` is false for one that an earlier folder hides."""
    said: list[SiteDefault] = []
    for folder in defaults_files(folders):
        path = folder.path / DEFAULTS_FILE
        for key, value in _leaves(_read(path).value):
            hidden = any(other.key == key for other in said)
            said.append(SiteDefault(key=key, value=value, path=path, origin=folder.origin, used=not hidden))
    return tuple(said)


def with_defaults(job: Document, folders: tuple[CatalogFolder, ...]) -> tuple[Document, tuple[SiteDefault, ...]]:
    """The job over the defaults, and those that it took. Raises InputError for a defaults file that is wrong."""
    if not isinstance(job.value, dict) or _is_written_by_the_planner(job.value):
        return job, ()
    merged, taken = job, []
    for folder in defaults_files(folders):
        path = folder.path / DEFAULTS_FILE
        below = _read(path)
        for key_path, value in _paths(_placed_as(below.value, merged.value)):
            if _may_take(merged.value, key_path):
                label = below.place(key_path)
                merged = Document(
                    value=_added(merged.value, key_path, value),
                    label=merged.label,
                    origins={**_places(key_path, label), **merged.origins},
                )
                taken.append(SiteDefault(key=dotted_path(key_path), value=value, path=path, origin=folder.origin))
    return merged, tuple(taken)


def defaults_sentence(taken: tuple[SiteDefault, ...]) -> str:
    """`site defaults of /etc/meshplan/defaults.yaml: slurm.partition, environment.NCCL_IB_HCA`; "" for none."""
    by_path: dict[Path, list[str]] = {}
    for one in taken:
        by_path.setdefault(one.path, []).append(one.key)
    return "; ".join(f"site defaults of {path}: {', '.join(keys)}" for path, keys in by_path.items())


def _is_written_by_the_planner(job: dict[str, Any]) -> bool:
    cluster = job.get("cluster")
    return isinstance(cluster, dict) and "resolved" in cluster


def _read(path: Path) -> Document:
    document = read_yaml(path, what="file of site defaults")
    for section, inner in document.value.items():
        place = document.place((section,))
        if section not in MAY_SAY:
            raise _refused(f"{place}: {shorten(str(section))} is not for site defaults", str(section), tuple(MAY_SAY))
        known = MAY_SAY[section]
        for key in inner if isinstance(inner, dict) and known else ():
            if key not in known:
                where = document.place((section, key))
                raise _refused(f"{where}: {section}.{shorten(str(key))} is not for site defaults", str(key), known)
    return document


def _refused(error: str, word: str, known: tuple[str, ...]) -> InputError:
    return InputError(
        error,
        why="every job gets what this file says, so it may say what belongs to a place, not to a training",
        fix=f"write it into the jobs; {did_you_mean(word, known)}",
    )


def _placed_as(defaults: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    """The defaults with environment, slurm and kubernetes where the job has them: under launch or at the top."""
    top = {key: value for key, value in defaults.items() if key not in ("launch", *_EITHER_PLACE)}
    launch = {**(defaults.get("launch") or {})}
    theirs = job.get("launch") if isinstance(job.get("launch"), dict) else {}
    for key in _EITHER_PLACE:
        value = {**(defaults.get(key) or {}), **(launch.pop(key, None) or {})}
        if value and theirs and key in theirs:
            launch[key] = value
        elif value:
            top[key] = value
    return {**top, **({"launch": launch} if launch else {})}


def _paths(values: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    for key, value in values.items():
        is_price = path == ("prices",)
        if isinstance(value, dict) and value and not is_price:
            yield from _paths(value, (*path, key))
        else:
            yield (*path, key), value


def _leaves(values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    return ((dotted_path(path), value) for path, value in _paths(values))


def _may_take(job: dict[str, Any], path: KeyPath) -> bool:
    """Whether the job says neither this key (in either spelling) nor anything else in its place."""
    inside: Any = job
    for key in path[:-1]:
        inside = inside.get(key, {})
        if inside is None:
            inside = {}
        if not isinstance(inside, dict):
            return False
    spellings = {str(key).replace("_", "-") for key in inside} if path[0] in ("slurm", "launch") else set(inside)
    last = str(path[-1])
    if path[0] == "cluster" and path[-1] == "inter_node_link" and ("file" in inside or "name" in inside):
        return False  # that cluster says its network itself
    return last not in inside and last.replace("_", "-") not in spellings


def _added(values: Any, path: KeyPath, value: Any) -> Any:
    if not path:
        return value
    inner = values if isinstance(values, dict) else {}
    return {**inner, path[0]: _added(inner.get(path[0]), path[1:], value)}


def _places(path: KeyPath, label: str) -> dict[KeyPath, str]:
    return {path[:length]: label for length in range(1, len(path) + 1)}
