"""Records to plain JSON-ready values and back, strictly.

A union of records is written with a `"type"` key holding the record's class name. Reading refuses unknown and missing
keys and wrong types with the path to the value, so a record file is as strict as a job file.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import types
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


class DecodeError(ValueError):
    """A plain value that is not the record it should be; the message starts with the path."""


def to_plain(value: Any) -> Any:
    """Turn a record (or a tuple, enum, number, string, None) into what JSON can hold."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"type": type(value).__name__, **fields} if type(value).__name__ in _TAGGED else fields
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no NaN; read back by float()
    return value


# Members of unions of records; only these carry their class name.
_TAGGED = frozenset({"Measured", "Pruned", "OutOfMemory", "HostOutOfMemory", "TimedOut", "Diverged", "Crashed"})


def from_plain(kind: type[T], value: Any, *, path: str = "") -> T:
    """Read a record of type `kind` back; DecodeError says where and what does not fit."""
    return _decode(kind, value, path)  # type: ignore[no-any-return]


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _decode(kind: Any, value: Any, path: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _decode_record(kind, value, path)
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _decode_union(get_args(kind), value, path)
    if origin is tuple:
        return _decode_tuple(get_args(kind), value, path)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        try:
            return kind(value)
        except ValueError:
            raise DecodeError(f"{path}: {value!r} is not one of {', '.join(str(m.value) for m in kind)}") from None
    if kind is float:
        return _decode_float(value, path)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise DecodeError(f"{path}: expected {kind.__name__}, found {type(value).__name__}")
    return value


def _decode_float(value: Any, path: str) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if value in ("nan", "inf", "-inf"):
        return float(value)
    raise DecodeError(f"{path}: expected a number, found {type(value).__name__}")


def _decode_record(kind: Any, value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        raise DecodeError(f"{path or kind.__name__}: expected a mapping, found {type(value).__name__}")
    fields = {field.name: field for field in dataclasses.fields(kind)}
    unknown = [key for key in value if key not in fields and key != "type"]
    if unknown:
        raise DecodeError(f"{path or kind.__name__}: unknown key {unknown[0]!r}")
    arguments = {}
    for name, field in fields.items():
        if name in value:
            arguments[name] = _decode(_hints(kind)[name], value[name], f"{path}.{name}" if path else name)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise DecodeError(f"{path or kind.__name__}: missing key {name!r}")
    try:
        return kind(**arguments)
    except ValueError as problem:
        raise DecodeError(f"{path or kind.__name__}: {problem}") from None


def _decode_union(members: tuple[Any, ...], value: Any, path: str) -> Any:
    if value is None:
        if type(None) in members:
            return None
        raise DecodeError(f"{path}: a value is missing")
    rest = [member for member in members if member is not type(None)]
    if len(rest) == 1:
        return _decode(rest[0], value, path)
    tag = value.get("type") if isinstance(value, dict) else None
    for member in rest:
        if member.__name__ == tag:
            return _decode(member, value, path)
    raise DecodeError(f"{path}: type {tag!r} is not one of {', '.join(member.__name__ for member in rest)}")


def _decode_tuple(members: tuple[Any, ...], value: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise DecodeError(f"{path}: expected a list, found {type(value).__name__}")
    if len(members) == 2 and members[1] is Ellipsis:
        return tuple(_decode(members[0], item, f"{path}[{index}]") for index, item in enumerate(value))
    if len(members) != len(value):
        raise DecodeError(f"{path}: expected {len(members)} items, found {len(value)}")
    return tuple(_decode(member, item, f"{path}[{index}]") for index, (member, item) in enumerate(zip(members, value)))
