"""A job for several candidate clusters: `cluster` as a list, or a cluster file that holds several.

Owns which clusters those are and what each is called. Leaves planning each of them to `planner.app`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from planner.catalog.documents import Document, describe
from planner.catalog.yaml_text import read_yaml
from planner.errors import InputError
from planner.spec._record import record

MAX_CHOICES = 32
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}", re.ASCII)


@record
class ClusterChoice:
    """One candidate cluster of a job. `label` names its plan folder; `section` is what a job file would say."""

    label: str
    section: dict[str, Any]


def cluster_choices(document: Document, *, folder: Path) -> tuple[ClusterChoice, ...]:
    """The candidate clusters of a job's document; () for a job with one cluster. Paths are relative to `folder`."""
    listed, source = _listed(document, folder=folder)
    if listed is None:
        return ()
    if not 1 <= len(listed) <= MAX_CHOICES:
        raise InputError(
            f"{source}: lists {len(listed)} clusters",
            why="each is planned, one after the other",
            fix=f"list from 1 to {MAX_CHOICES}",
        )
    choices: list[ClusterChoice] = []
    for place, section in enumerate(listed):
        if not isinstance(section, dict):
            raise InputError(
                f"{source}: candidate cluster {place + 1} is {describe(section)}",
                why="each is written as a cluster section of its own",
                fix="write it like {gpu: h100, nodes: 4}",
            )
        taken = {choice.label for choice in choices}
        rest = {key: value for key, value in section.items() if key != "label"}
        choices.append(ClusterChoice(label=_label(section, source=source, taken=taken), section=rest))
    return tuple(choices)


def choose_cluster(document: Document, *, folder: Path, label: str) -> Document:
    """The document with one of its candidate clusters as its only one. `label` "" takes the only one there is.

    Raises InputError when several are listed and none is chosen, or there is none of this label.
    """
    choices = cluster_choices(document, folder=folder)
    if not choices:
        return document
    if not label and len(choices) > 1:
        raise InputError(
            f"{document.place(('cluster',))}: cluster lists {len(choices)} candidate clusters",
            why="this asks for one cluster",
            fix="plan them side by side with `planner plan`, or keep one of them",
        )
    found = next((choice for choice in choices if choice.label == label or not label), None)
    if found is None:
        raise InputError(
            f"there is no candidate cluster {label!r} in this job",
            why="it lists: " + ", ".join(choice.label for choice in choices),
            fix="choose one of them",
        )
    return Document(value={**document.value, "cluster": found.section}, label=document.label, origins=document.origins)


def _listed(document: Document, *, folder: Path) -> tuple[list[Any] | None, str]:
    cluster = document.value.get("cluster") if isinstance(document.value, dict) else None
    if isinstance(cluster, list):
        return cluster, document.place(("cluster",))
    if isinstance(cluster, dict) and set(cluster) == {"file"} and isinstance(cluster["file"], str):
        path = folder / cluster["file"]
        try:
            found = read_yaml(path, what="cluster file")
        except InputError:
            return None, ""  # said, with its place, where the file is read for its one cluster
        clusters = found.value.get("clusters") if isinstance(found.value, dict) else None
        if clusters is not None and not isinstance(clusters, list):
            clusters = [clusters]
        return clusters, found.place(("clusters",))
    return None, ""


def _label(section: dict[str, Any], *, source: str, taken: set[str]) -> str:
    given = section.get("label")
    if given is not None and not (isinstance(given, str) and _LABEL.fullmatch(given)):
        raise InputError(
            f"{source}: label is {describe(given)}",
            why="it names a folder",
            fix="use letters, digits, dots, dashes and underscores",
        )
    wanted = given or _usual_label(section)
    label, number = wanted, 1
    while label in taken:
        number += 1
        label = f"{wanted}-{number}"
    return label


def _usual_label(section: dict[str, Any]) -> str:
    """`h100-4x8`, `dgx-a100-2`, `h100-4+a100-4`."""
    groups = section.get("groups")
    if isinstance(groups, list):
        return "+".join(_usual_label(group) if isinstance(group, dict) else "group" for group in groups)[:80]
    name = next((section[key] for key in ("gpu", "name", "file") if isinstance(section.get(key), str)), "cluster")
    words = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(name).stem if "file" in section else name).strip("-.") or "cluster"
    sizes = "x".join(str(section[key]) for key in ("nodes", "gpus_per_node") if isinstance(section.get(key), int))
    return f"{words}-{sizes}" if sizes else words
