"""Mends as merge patches (RFC 7396): a mapping laid over the file, in which null removes a key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def put(path: str | tuple[str, ...], value: Any) -> dict[str, Any]:
    """The patch that writes `value` at a path."""
    parts = tuple(path.split(".")) if isinstance(path, str) else path
    patch: Any = value
    for part in reversed(parts):
        patch = {part: patch}
    return dict(patch)


def drop(path: str | tuple[str, ...]) -> dict[str, Any]:
    """The patch that removes the key at a path."""
    return put(path, None)


def merged(*patches: Mapping[str, Any]) -> dict[str, Any]:
    """Several patches as one; of two that write the same key the later wins."""
    result: dict[str, Any] = {}
    for patch in patches:
        for key, value in patch.items():
            old = result.get(key)
            if isinstance(value, Mapping) and isinstance(old, Mapping):
                result[key] = merged(old, value)
            else:
                result[key] = value
    return result


def applied(patch: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """A new configuration: `config` with the patch laid over it; nothing that was given is changed."""
    result = dict(config)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            old = result.get(key)
            result[key] = applied(value, old if isinstance(old, Mapping) else {})
        else:
            result[key] = value
    return result
