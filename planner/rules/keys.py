"""How a key of DeepSpeed's configuration is described: its name and what it takes."""

from __future__ import annotations

from enum import StrEnum

from planner.spec._record import record


class Kind(StrEnum):
    """What a key takes."""

    BOOLEAN = "boolean"
    INTEGER = "integer"
    NUMBER = "number"
    TEXT = "text"
    LIST = "list"
    BLOCK = "block"
    UNWRITABLE = "a Python object"
    ANY = "anything"


@record
class Key:
    """`aliases`: other accepted spellings. `exclusive`: the bounds themselves are refused. `refuses_boolean`: of a
    number in a block where pydantic would otherwise read true as 1. `replaced_by`: set on deprecated keys.
    `removed_why`: what to know about a key that newer releases no longer take."""

    name: str
    kind: Kind = Kind.ANY
    aliases: tuple[str, ...] = ()
    lowest: float | None = None
    highest: float | None = None
    choices: tuple[str, ...] = ()
    nullable: bool = False
    exclusive: bool = False
    refuses_boolean: bool = False
    replaced_by: str = ""
    removed_why: str = ""


@record
class Block:
    """A mapping in the configuration. `strict`: unknown keys raise. `open`: any key is taken."""

    path: str
    keys: tuple[Key, ...]
    strict: bool = False
    open: bool = False


def booleans(*names: str) -> tuple[Key, ...]:
    """Switches without anything special about them."""
    return tuple(Key(name=name, kind=Kind.BOOLEAN) for name in names)


def anything(*names: str) -> tuple[Key, ...]:
    """Keys whose values are not looked at here."""
    return tuple(Key(name=name) for name in names)


def blocks(*names: str) -> tuple[Key, ...]:
    """Keys that hold a mapping."""
    return tuple(Key(name=name, kind=Kind.BLOCK) for name in names)


def integer(
    name: str, *, lowest: float | None = None, highest: float | None = None, aliases: tuple[str, ...] = ()
) -> Key:
    """A whole number; floats without a fraction (5e8) pass."""
    return Key(name=name, kind=Kind.INTEGER, lowest=lowest, highest=highest, aliases=aliases)


def number(name: str, *, lowest: float | None = None, highest: float | None = None) -> Key:
    """Any finite number within bounds."""
    return Key(name=name, kind=Kind.NUMBER, lowest=lowest, highest=highest)


def text(name: str, *, choices: tuple[str, ...] = (), nullable: bool = False) -> Key:
    """A string, one of `choices` where these are given."""
    return Key(name=name, kind=Kind.TEXT, choices=choices, nullable=nullable)
