"""Job files to one document: the file, what it extends, what `--set` changes; each value with where it was written.

Owns merging and overriding of plain values. Leaves their form to `schema`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.catalog.documents import Document, KeyPath, shorten
from planner.catalog.yaml_text import parse_yaml, read_yaml
from planner.errors import InputError
from planner.spec._record import record

MAX_EXTENDS = 5


@record
class Override:
    """One `--set key.path=value`, parsed."""

    path: tuple[str, ...]
    value: Any
    label: str


def read_source(path: Path, overrides: tuple[str, ...]) -> Document:
    """The document of a job file with its bases below it and the overrides on top."""
    document = _with_bases(path, seen=())
    for text in overrides:
        document = _overridden(document, parse_override(text))
    return document


def _with_bases(path: Path, *, seen: tuple[Path, ...]) -> Document:
    document = read_yaml(path, what="job file")
    base = document.value.get("extends")
    if base is None:
        return document
    place = document.place(("extends",))
    if not isinstance(base, str) or not base:
        raise InputError(
            f"{place}: extends is not a path",
            why="it names the job file below this one",
            fix="write extends: base.yaml",
        )
    resolved = path.resolve()
    if resolved in seen or len(seen) >= MAX_EXTENDS:
        raise InputError(
            f"{place}: job files extend one another in a circle, or more than {MAX_EXTENDS} deep",
            why="each file is laid over the one it extends",
            fix="remove `extends:` from one of them",
        )
    below = _with_bases(path.parent / base, seen=(*seen, resolved))
    rest = {key: value for key, value in document.value.items() if key != "extends"}
    return Document(
        value=_merged(below.value, rest), label=document.label, origins={**below.origins, **document.origins}
    )


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Mappings are merged key by key; everything else is replaced."""
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both else value
    return merged


def parse_override(text: str) -> Override:
    """`training.seq_len=4096`: a dotted key and a value written as in YAML."""
    dotted, separator, value = text.partition("=")
    path = tuple(dotted.strip().split("."))
    if not separator or not all(path) or len(path) > 10:
        raise InputError(
            f"--set {shorten(text)!r} is not key=value",
            why="it changes one key of the job file, written with dots",
            fix="write it like --set training.seq_len=4096 or --set search.zero_stage=[1,2]",
        )
    label = f"--set {shorten(dotted.strip())}"
    return Override(path=path, value=parse_yaml(value, label=label).value, label=label)


def _overridden(document: Document, override: Override) -> Document:
    kept = {path: place for path, place in document.origins.items() if path[: len(override.path)] != override.path}
    made: dict[KeyPath, str] = {override.path[:length]: override.label for length in range(1, len(override.path) + 1)}
    origins: Mapping[KeyPath, str] = {**made, **kept, override.path: override.label}
    return Document(value=_with_value(document.value, override, depth=0), label=document.label, origins=origins)


def _with_value(value: Any, override: Override, *, depth: int) -> Any:
    """A copy of the nested mappings with one value changed."""
    if depth == len(override.path):
        return override.value
    if value is not None and not isinstance(value, dict):
        above = ".".join(override.path[:depth])
        raise InputError(
            f"{override.label}: {above} is a single value, so nothing is below it",
            why="only keys of mappings can be set",
            fix=f"set {above} itself",
        )
    key = override.path[depth]
    inner = (value or {}).get(key)
    return {**(value or {}), key: _with_value(inner, override, depth=depth + 1)}
