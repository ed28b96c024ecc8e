"""A configuration as read: its values, the line of every key, and what its text shows beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from planner.rules import SyntaxFact
from planner.spec._record import record

Path: TypeAlias = tuple[str, ...]
Place: TypeAlias = tuple[int, int]  # line and column


@record
class Document:
    """`places`: the line and column (from 1) of each key by its dotted path; items of lists have none.

    `unreadable`: the text could not be read as a configuration, `syntax` says where; `value` is then empty.
    """

    value: Mapping[str, Any]
    lines: tuple[str, ...]
    places: Mapping[str, Place]
    syntax: tuple[SyntaxFact, ...] = ()
    unreadable: bool = False

    def line_of(self, dotted: str) -> int:
        """The line of the key at a dotted path, of the nearest key around it that is there, 1 for the whole file."""
        while dotted:
            if dotted in self.places:
                return self.places[dotted][0]
            dotted = dotted.rpartition(".")[0]
        return 1

    def line_text(self, line: int) -> str:
        """The text of a line (from 1), "" beyond the end."""
        return self.lines[line - 1] if 0 < line <= len(self.lines) else ""
