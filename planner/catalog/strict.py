"""Plain values to strict pydantic models, and pydantic's complaints to sentences a user understands.

Owns the translation of validation errors: full path, line, near matches, what the field is for. The schemas themselves
are written beside what they describe (`planner.catalog.hardware`, `planner.jobfile.schema`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from planner.catalog.documents import Document, KeyPath, describe, shorten
from planner.errors import InputError, near_matches

M = TypeVar("M", bound=BaseModel)
E = TypeVar("E", bound=Enum)

MAX_SHOWN_ERRORS = 4
DESCRIBED = "described"  # the field of a choice (a name, or a description in place) that users never see


class StrictModel(BaseModel):
    """The base of every schema: unknown keys refused, no conversion between types."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        defer_build=True,  # most verbs validate few of the schemas, and building one takes milliseconds
    )


def complain(message: str, *, fix: str) -> PydanticCustomError:
    """What a validator raises: a predicate about the value (`is not …`) and the mend."""
    # Braces would be read as slots of pydantic's own template.
    return PydanticCustomError("planner", "{message}", {"message": message, "fix": fix})


def word_parser(kind: type[E]) -> Callable[[Any], E]:
    """A validator that takes one of an enum's words."""
    words = [str(member.value) for member in kind]

    def parse(value: Any) -> E:
        if isinstance(value, kind):
            return value
        if isinstance(value, str) and value in words:
            return kind(value)
        near = near_matches(value, words) if isinstance(value, str) else ()
        fix = f"did you mean {near[0]}?" if near else "use one of: " + ", ".join(words)
        raise complain(f"must be one of {', '.join(words)}, found {describe(value)}", fix=fix)

    return parse


def validate(schema: type[M], document: Document, *, what: str) -> M:
    """The values of a document as a strict model; InputError names every path, line and mend (the first few)."""
    try:
        return schema.model_validate(document.value)
    except ValidationError as problem:
        errors = problem.errors(include_url=False)
    # A misspelt key is the cause of the missing one: it is told first.
    errors.sort(key=lambda error: error["type"] != "extra_forbidden")
    told = [_sentence(schema, document, error, what=what) for error in errors[:MAX_SHOWN_ERRORS]]
    first = told[0]
    more = "".join(f"; {error}" for error, _, _ in told[1:])
    if len(errors) > MAX_SHOWN_ERRORS:
        more += f"; and {len(errors) - MAX_SHOWN_ERRORS} more"
    raise InputError(first[0] + more, why=first[1], fix=first[2])


def _sentence(schema: type[BaseModel], document: Document, error: ErrorDetails, *, what: str) -> tuple[str, str, str]:
    """The error, why and fix of one complaint."""
    path = _visible_path(document, error["loc"])
    place, dotted = document.place(path), dotted_path(path)
    if error["type"] == "extra_forbidden":
        return _unknown_key(schema, path, place=place, what=what)
    field = _field_at(schema, path)
    purpose = field.description if field is not None and field.description else f"it is part of the {what}"
    why = f"{dotted or what}: {purpose}"
    if error["type"] == "missing":
        return (
            f"{place}: {dotted} is missing",
            why,
            f"add `{path[-1]}:`" + (f" under `{dotted_path(path[:-1])}`" if path[1:] else ""),
        )
    message, fix = _predicate(error)
    return f"{place}: {dotted or f'the {what}'} {message}", why, fix


def _unknown_key(schema: type[BaseModel], path: KeyPath, *, place: str, what: str) -> tuple[str, str, str]:
    key, parent = str(path[-1]), path[:-1]
    known = _keys_at(schema, parent)
    inside = f"a key of `{dotted_path(parent)}`" if parent else f"a key of the {what}"
    error = f"{place}: {shorten(dotted_path(path))} is not {inside}"
    why = "a key without effect would be a silent mistake, so unknown keys are refused"
    near = near_matches(key, known)
    elsewhere = [dotted_path(other) for other in all_paths(schema) if other[-1] == key]
    if near:
        fix = "did you mean " + " or ".join(repr(name) for name in near) + "?"
    elif elsewhere:
        fix = f"its place is `{elsewhere[0]}`"
    else:
        fix = "remove it, or use one of: " + ", ".join(known)
    return error, why, fix


_TYPES = {
    "int_type": ("must be a whole number", "write a whole number without quotes, such as 8"),
    "float_type": ("must be a number", "write a number without quotes"),
    "string_type": ("must be a text", "put it in quotes"),
    "bool_type": ("must be true or false", "write true or false"),
    "list_type": ("must be a list", "write [a, b, c]"),
    "model_type": ("must be a mapping of keys", "indent its keys below it"),
    "dict_type": ("must be a mapping of keys", "indent its keys below it"),
    "finite_number": ("must be a finite number", "write an ordinary number"),
    "too_short": ("must not be empty", "list at least one value"),
    "string_too_short": ("must not be empty", "write a value"),
    "string_too_long": ("is too long", "write a shorter value"),
    "too_long": ("has too many values", "list fewer values"),
}
_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}


def _predicate(error: ErrorDetails) -> tuple[str, str]:
    """`must be …, found …` and the mend."""
    kind, found, context = error["type"], describe(error.get("input")), error.get("ctx", {})
    if kind == "planner":
        return str(context["message"]), str(context["fix"])
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        bound = f"{words} {_plain_number(context[name])}"
        return f"must be {bound}, found {found}", f"write a value {bound}"
    if kind in _TYPES:
        message, fix = _TYPES[kind]
        return f"{message}, found {found}", fix
    return f"is not valid ({error['msg']}), found {found}", "correct the value"


def _plain_number(bound: Any) -> str:
    """A bound as people write it: 0, not 0.0; 10000000, not 1e+07."""
    return str(int(bound)) if float(bound).is_integer() else str(bound)


def _visible_path(document: Document, location: tuple[int | str, ...]) -> KeyPath:
    """pydantic's location without the index of a list that the user wrote as a single value."""
    path: list[str | int] = []
    value = document.value
    for step in location:
        if isinstance(step, int) and not isinstance(value, list):
            break
        if step == DESCRIBED and isinstance(value, dict) and DESCRIBED not in value:
            continue
        path.append(step)
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            value = None
    return tuple(path)


def dotted_path(path: KeyPath) -> str:
    """`training.optimizer.betas[1]`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else (f".{step}" if text else str(step))
    return text


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The schema inside `Schema`, `Schema | None` or `tuple[Schema, ...]`, or inside a choice's description."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        described = annotation.model_fields.get(DESCRIBED)
        return annotation if described is None else _model_in(described.annotation)
    for member in get_args(annotation):
        found = _model_in(member)
        if found is not None:
            return found
    return None


def _schema_at(schema: type[BaseModel], path: KeyPath) -> type[BaseModel] | None:
    current: type[BaseModel] | None = schema
    for step in path:
        if isinstance(step, int):
            continue
        field = current.model_fields.get(str(step)) if current is not None else None
        current = _model_in(field.annotation) if field is not None else None
    return current


def _field_at(schema: type[BaseModel], path: KeyPath) -> Any:
    names = [step for step in path if isinstance(step, str)]
    parent = _schema_at(schema, tuple(names[:-1])) if names else None
    return parent.model_fields.get(names[-1]) if parent is not None else None


def _keys_at(schema: type[BaseModel], path: KeyPath) -> list[str]:
    found = _schema_at(schema, path)
    return list(found.model_fields) if found is not None else []


def all_paths(schema: type[BaseModel], prefix: KeyPath = ()) -> Iterator[KeyPath]:
    """The path of every key that a schema knows, sections before what is in them."""
    for name, field in schema.model_fields.items():
        yield (*prefix, name)
        inner = _model_in(field.annotation)
        if inner is not None and len(prefix) < 4:
            yield from all_paths(inner, (*prefix, name))
