"""YAML of unknown origin to plain values, with the place of each, and nothing worse than an InputError.

Owns depth, aliases, tags, duplicate keys, huge numbers. The dialect is the core of YAML 1.2: `null true false`, decimal
integers and floats (`1e-4` is a number, which YAML 1.1 gets wrong), everything else a string (`no`, `on`, `012`, `1:30`
stay words). Anchors and aliases are taken in moderation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from planner.catalog.documents import MAX_DIGITS, Document, KeyPath, describe, read_text
from planner.errors import InputError

MAX_DEPTH = 32
MAX_VALUES = 100_000
MAX_ALIASES = 100

_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL_FLOAT = {".inf": math.inf, "+.inf": math.inf, "-.inf": -math.inf, ".nan": math.nan}
_CONSTANTS = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


def read_yaml(path: Path, *, what: str) -> Document:
    """Read a YAML file of at most 1 MiB whose top is a mapping."""
    document = parse_yaml(read_text(path, what=what), label=str(path))
    if not isinstance(document.value, dict):
        raise InputError(
            f"{path}: the top of a {what} is a mapping of keys, found {describe(document.value)}",
            why="every setting has a name",
            fix="start lines with `key: value`",
        )
    return document


def parse_yaml(text: str, *, label: str) -> Document:
    """Parse one YAML document; InputError with the line for whatever is wrong, dangerous or excessive."""
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{label}: not valid text", why="it is not UTF-8", fix="write it in UTF-8") from None
    try:
        builder = _Builder(yaml.parse(text, Loader=loader), label=label)
        value = builder.document()
    except yaml.YAMLError as problem:
        raise _syntax_error(problem, text=text, label=label) from None
    return Document(value=value, label=label, origins=builder.origins)


def _syntax_error(problem: Any, *, text: str, label: str) -> InputError:
    mark = getattr(problem, "problem_mark", None) or getattr(problem, "context_mark", None)
    where = f"{label} line {mark.line + 1}" if mark is not None else label
    reason = getattr(problem, "problem", None) or getattr(problem, "reason", None) or "cannot be read"
    hint = "check the quotes, brackets and indentation there"
    lines = text.splitlines()
    if mark is not None and mark.line < len(lines) and "\t" in lines[mark.line]:
        hint = "indent with spaces, never with tabs"
    return InputError(f"{where}: not valid YAML: {reason}", why="the file could not be read as YAML", fix=hint)


class _Builder:
    """Builds plain values from YAML events, counting what aliases multiply."""

    def __init__(self, events: Iterator[Any], *, label: str) -> None:
        self.origins: dict[KeyPath, str] = {}
        self._events = events
        self._label = label
        self._anchors: dict[str, tuple[Any, int, int]] = {}  # value, its size in values, its height in levels
        self._deepest = 0
        self._num_values = 0
        self._num_aliases = 0

    def document(self) -> Any:
        """The one document of the stream; None for a stream that holds only comments."""
        value, found = None, False
        for event in self._events:
            kind = type(event).__name__
            if kind == "DocumentStartEvent" and found:
                self._refuse(event, "a second document starts here", fix="keep one document, without `---` in between")
            if kind in ("ScalarEvent", "MappingStartEvent", "SequenceStartEvent", "AliasEvent"):
                value, found = self._value(event, ()), True
        return value

    def _value(self, event: Any, path: KeyPath) -> Any:
        self._num_values += 1
        self.origins.setdefault(path, f"{self._label} line {event.start_mark.line + 1}")
        if self._num_values > MAX_VALUES:
            self._refuse(event, f"more than {MAX_VALUES} values", fix="give the file itself, without generated content")
        self._check_depth(event, len(path))
        if type(event).__name__ == "AliasEvent":
            return self._alias(event, len(path))
        if event.tag is not None:
            self._refuse(event, f"the tag {event.tag!r} is not taken", fix="write the plain value without a tag")
        num_before, deepest_before = self._num_values, self._deepest
        self._deepest = len(path)
        value = self._untagged(event, path)
        if event.anchor:
            self._anchors[event.anchor] = (value, self._num_values - num_before + 1, self._deepest - len(path))
        self._deepest = max(self._deepest, deepest_before)
        return value

    def _check_depth(self, event: Any, depth: int) -> None:
        self._deepest = max(self._deepest, depth)
        if depth > MAX_DEPTH:
            self._refuse(event, f"nested deeper than {MAX_DEPTH} levels", fix="check the brackets and the indentation")

    def _untagged(self, event: Any, path: KeyPath) -> Any:
        kind = type(event).__name__
        if kind == "ScalarEvent":
            return self._scalar(event)
        return self._mapping(path) if kind == "MappingStartEvent" else self._sequence(path)

    def _alias(self, event: Any, depth: int) -> Any:
        self._num_aliases += 1
        if event.anchor not in self._anchors:
            self._refuse(event, f"the alias *{event.anchor} has no anchor before it", fix="write the value out")
        value, size, height = self._anchors[event.anchor]
        self._num_values += size
        self._check_depth(event, depth + height)
        if self._num_aliases > MAX_ALIASES or self._num_values > MAX_VALUES:
            self._refuse(event, "the aliases blow the file up", fix="write the values out, without anchors and aliases")
        return value

    def _mapping(self, path: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for event in self._events:
            if type(event).__name__ == "MappingEndEvent":
                break
            if type(event).__name__ != "ScalarEvent":
                self._refuse(event, "a key is not a plain word", fix="write `key: value`")
            key = str(event.value)
            if key in values:
                first = self.origins[(*path, key)].rpartition(" line ")[2]
                self._refuse(
                    event, f"the key {key!r} is there twice (first on line {first})", fix="remove one of the two"
                )
            self.origins[(*path, key)] = f"{self._label} line {event.start_mark.line + 1}"
            values[key] = self._value(next(self._events), (*path, key))
        return values

    def _sequence(self, path: KeyPath) -> list[Any]:
        values: list[Any] = []
        for event in self._events:
            if type(event).__name__ == "SequenceEndEvent":
                break
            values.append(self._value(event, (*path, len(values))))
        return values

    def _scalar(self, event: Any) -> Any:
        text = event.value
        if event.style:  # quoted or a block: a string, whatever it looks like
            return text
        if text in _CONSTANTS:
            return None
        if text in _BOOLEANS:
            return _BOOLEANS[text]
        if text.lower() in _SPECIAL_FLOAT:
            return _SPECIAL_FLOAT[text.lower()]
        if _INTEGER.fullmatch(text):
            if len(text) > MAX_DIGITS:
                self._refuse(event, f"a number of {len(text)} digits", fix="write a number of a sensible size")
            return int(text)
        return float(text) if len(text) <= 10 * MAX_DIGITS and _FLOAT.fullmatch(text) else text

    def _refuse(self, event: Any, error: str, *, fix: str) -> NoReturn:
        raise InputError(
            f"{self._label} line {event.start_mark.line + 1}: {error}",
            why="the file is read strictly and safely",
            fix=fix,
        )
