"""Text of unknown origin to plain values, with the place of each value, and nothing worse than an InputError.

Owns the safety of reading: size, encoding, depth, aliases, tags, duplicate keys, huge numbers. Leaves the meaning of
the values to the schemas (`planner.catalog.strict`).

YAML here is the core of YAML 1.2: `null true false`, decimal integers and floats (`1e-4` is a number, which YAML 1.1
gets wrong), everything else a string (`no`, `on`, `012`, `1:30` stay words). Anchors and aliases are taken in
moderation.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from planner.errors import InputError
from planner.spec._record import record

KeyPath: TypeAlias = tuple[str | int, ...]

MAX_FILE_BYTES = 1 << 20
MAX_MODEL_CONFIG_BYTES = 4 << 20
MAX_DEPTH = 32
MAX_VALUES = 100_000
MAX_ALIASES = 100
MAX_DIGITS = 30

_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL_FLOAT = {".inf": math.inf, "+.inf": math.inf, "-.inf": -math.inf, ".nan": math.nan}
_CONSTANTS = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


@record
class Document:
    """Plain values and where each was written, for messages: `label` is the file, `origins` maps a path to a place."""

    value: Any
    label: str
    origins: Mapping[KeyPath, str]

    def place(self, path: KeyPath) -> str:
        """Where the value at `path`, or the nearest value around it, was written."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.origins:
                return self.origins[path[:length]]
        return self.label


def read_text(path: Path, *, what: str, max_bytes: int = MAX_FILE_BYTES) -> str:
    """The UTF-8 text of a small file. InputError for a file that is missing, unreadable, binary, empty or too large."""
    fix = f"give the path of a {what}"
    try:
        if path.is_dir():
            raise InputError(f"{str(path)!r} is a folder", why=f"a {what} is read from a file", fix=fix)
        if path.exists() and not path.is_file():  # a pipe or a device could block or never end
            raise InputError(f"{str(path)!r} is not a regular file", why=f"a {what} is read whole", fix=fix)
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except FileNotFoundError:
        raise InputError(f"there is no file {str(path)!r}", why=f"the {what} is read from it", fix=fix) from None
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise InputError(
            f"{str(path)!r} cannot be read: {reason}",
            why=f"the {what} is read from it",
            fix="check the path and rights",
        ) from None
    return _decode(data, path=path, what=what, max_bytes=max_bytes)


def _decode(data: bytes, *, path: Path, what: str, max_bytes: int) -> str:
    if len(data) > max_bytes:
        raise InputError(
            f"{str(path)!r} is larger than {max_bytes >> 20} MiB",
            why=f"a {what} is a few hundred lines; this is some other file",
            fix=f"give the path of the {what} itself",
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        text, problem_byte = "\0", problem.start
    else:
        problem_byte = data.find(b"\0")
    if "\0" in text:
        raise InputError(
            f"{str(path)!r} is not UTF-8 text (byte {problem_byte})",
            why=f"a {what} is plain text; this is a binary file or another encoding",
            fix="save the file as UTF-8 text",
        )
    if not text.strip():
        raise InputError(f"{str(path)!r} is empty", why=f"a {what} was expected in it", fix=f"write the {what} first")
    return text


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


def parse_json_object(text: str, *, label: str) -> dict[str, Any]:
    """Parse a JSON object; InputError for anything else, with the line of a syntax error."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_refuse_duplicates)
    except json.JSONDecodeError as problem:
        raise InputError(
            f"{label} line {problem.lineno}: not valid JSON: {problem.msg}",
            why="a model config is a JSON object",
            fix="give a Hugging Face config.json, as `save_pretrained` writes it",
        ) from None
    except (ValueError, RecursionError) as problem:
        reason = "nested too deep" if isinstance(problem, RecursionError) else str(problem)
        raise InputError(
            f"{label}: {reason}",
            why="a model config is a JSON object of finite numbers and short lists",
            fix="give a Hugging Face config.json, as `save_pretrained` writes it",
        ) from None
    if not isinstance(value, dict):
        raise InputError(
            f"{label}: the top is {describe(value)}, not an object",
            why="a model config is a JSON object",
            fix="give a Hugging Face config.json, as `save_pretrained` writes it",
        )
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number a model config can hold")


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ValueError(f"the key {key!r} is there twice")
        values[key] = value
    return values


def describe(value: Any) -> str:
    """A value in a user's words, short: `the text '8'`, `the number 0.5`, `a list`, `nothing`."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return f"the truth value {str(value).lower()}"
    if isinstance(value, str):
        return f"the text {shorten(value)!r}"
    if isinstance(value, (int, float)):
        return f"the number {value}"
    return "a list" if isinstance(value, (list, tuple)) else "a mapping"


def shorten(text: str, *, limit: int = 80) -> str:
    """At most `limit` characters of a text that goes into a message."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
