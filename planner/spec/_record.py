"""The one way to declare a record: frozen, slotted, keyword-only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def record(cls: type[T]) -> type[T]:
    """Declare a frozen, slotted, keyword-only dataclass; all records of the project use it."""
    return dataclass(frozen=True, slots=True, kw_only=True)(cls)


def require(condition: bool, message: str) -> None:
    """Refuse a record whose own fields contradict each other."""
    if not condition:
        raise ValueError(message)
