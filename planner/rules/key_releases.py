"""Which release of DeepSpeed takes which key: `key_history.json`, read once when it is first asked for.

The data is generated from DeepSpeed's own source distributions (tests/tools/read_deepspeed_keys.py) and never edited. A
span is (first release with it, first release without it); "" for before the first and after the last release read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from planner.spec._record import record

Span: TypeAlias = tuple[str, str]
ALWAYS: tuple[Span, ...] = (("", ""),)
_DATA = Path(__file__).with_name("key_history.json")


@record
class KeyReleases:
    """`versions`: the releases that were read, oldest first. `keys`: by block, then by name. `strict`: when a block
    refuses keys that it does not know. `defaults`: (release, value from it on) of those that changed."""

    versions: tuple[str, ...]
    keys: Mapping[str, Mapping[str, tuple[Span, ...]]]
    strict: Mapping[str, tuple[Span, ...]]
    defaults: Mapping[str, tuple[Span, ...]]


@cache
def key_releases() -> KeyReleases:
    """The table of all releases."""
    data: dict[str, Any] = json.loads(_DATA.read_text(encoding="utf-8"))
    return KeyReleases(
        versions=tuple(data["versions"]),
        keys=MappingProxyType({path: _spans_by_name(names) for path, names in data["keys"].items()}),
        strict=_spans_by_name(data["strict"]),
        defaults=_spans_by_name(data["defaults"]),
    )


def _spans_by_name(entries: Mapping[str, list[list[str]]]) -> Mapping[str, tuple[Span, ...]]:
    return MappingProxyType({name: tuple((first, gone) for first, gone in spans) for name, spans in entries.items()})
