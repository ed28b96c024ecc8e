"""Reads fields of a Hugging Face config, and says what a missing or odd one was for.

Owns the errors about fields. Leaves what is counted from them to `decoders` and `encoders`.
"""

from __future__ import annotations

from typing import Any

from planner.catalog.documents import describe
from planner.errors import InputError, near_matches

MAX_COUNT = 1_000_000_000  # no width, depth or vocabulary is larger; keeps products far from overflow


class ConfigReader:
    """One config under one name. Every getter raises InputError naming the field, its use and near matches."""

    def __init__(self, config: dict[str, Any], *, name: str) -> None:
        self.config = config
        self.name = name

    def positive(self, field: str, *, use: str, default: int | None = None) -> int:
        """A whole number from 1 up; `default` when it is absent or null (no default: required)."""
        value = self.config.get(field)
        if value is None:
            if default is None:
                raise self._missing(field, use)
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_COUNT:
            raise self._wrong(field, use, f"must be a whole number from 1 to {MAX_COUNT:,}")
        return value

    def count(self, field: str, *, use: str, default: int = 0) -> int:
        """A whole number from 0 up; `default` when it is absent or null."""
        value = self.config.get(field)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
            raise self._wrong(field, use, f"must be a whole number from 0 to {MAX_COUNT:,}")
        return value

    def flag(self, field: str, *, use: str, default: bool) -> bool:
        """True or false; `default` when it is absent or null."""
        value = self.config.get(field)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(field, use, "must be true or false")
        return value

    def fraction(self, field: str, *, use: str, default: float = 0.0) -> float:
        """A number from 0 to below 1; `default` when it is absent or null."""
        value = self.config.get(field)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
            raise self._wrong(field, use, "must be a number from 0 to below 1")
        return float(value)

    def word(self, field: str, *, use: str, default: str) -> str:
        """A text; `default` when it is absent or null."""
        value = self.config.get(field)
        if value is None:
            return default
        if not isinstance(value, str) or len(value) > 200:
            raise self._wrong(field, use, "must be a short text")
        return value

    def architecture(self, *, default: str) -> str:
        """The class that Hugging Face would build: the first of `architectures`."""
        value = self.config.get("architectures")
        if value is None:
            return default
        if not isinstance(value, list) or not value or not isinstance(value[0], str):
            raise self._wrong("architectures", "it names the class that is built", "must be a list of class names")
        return value[0]

    def require_architecture(self, endings: tuple[str, ...]) -> None:
        """Refuse a class whose top is not the language-model head that is counted and trained."""
        name = self.architecture(default="")
        if name and not name.endswith(endings):
            raise self.refuse(
                f"architectures names the class {name!r}, which is no causal language model",
                why="its head would be counted and trained as that of a language model",
                fix="remove `architectures` to train it as one, or plan the class through `factory:`",
            )

    def divides(self, whole: int, parts: int, *, fields: tuple[str, str]) -> int:
        """whole / parts; InputError naming both fields when it has a remainder."""
        if whole % parts:
            raise InputError(
                f"{self.name}: {fields[0]} {whole} is not divisible by {fields[1]} {parts}",
                why="each head, or group of heads, takes an equal share",
                fix=f"correct {fields[0]} or {fields[1]} in the model's config",
            )
        return whole // parts

    def refuse(self, error: str, *, why: str, fix: str) -> InputError:
        """An error about this config as a whole."""
        return InputError(f"{self.name}: {error}", why=why, fix=fix)

    def _missing(self, field: str, use: str) -> InputError:
        near = near_matches(field, [key for key in self.config if isinstance(key, str)][:500])
        hint = f"; it has {' and '.join(near)}, is one of them meant?" if near else ""
        return InputError(
            f"{self.name}: the model config has no {field!r}{hint}",
            why=f"{field}: {use}",
            fix=f"add {field!r} to the config, as the model's own config.json has it",
        )

    def _wrong(self, field: str, use: str, expected: str) -> InputError:
        return InputError(
            f"{self.name}: {field!r} {expected}, found {describe(self.config[field])}",
            why=f"{field}: {use}",
            fix=f"correct {field!r} in the model's config",
        )
