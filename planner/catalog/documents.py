"""Files of unknown origin to text and JSON, and nothing worse than an InputError.

Owns reading small files safely (size, encoding, kind of file), JSON objects, and values in a user's words. YAML is
`yaml_text`'s; the meaning of values belongs to the schemas (`strict`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from planner.errors import InputError
from planner.spec._record import record

KeyPath: TypeAlias = tuple[str | int, ...]

MAX_FILE_BYTES = 1 << 20
MAX_MODEL_CONFIG_BYTES = 4 << 20
MAX_DIGITS = 30  # of a whole number


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
