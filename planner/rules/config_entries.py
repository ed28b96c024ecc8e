"""The keys of a configuration as written, each beside what is known about it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from planner.rules.config_context import ConfigView
from planner.rules.keys import Key
from planner.rules.known_keys import KnownBlock, keys_of_release, parse_release
from planner.spec._record import record


@record
class Entry:
    """One key as written: `path` as in the file, `parts` the same unjoined, `known` its description (None: unknown to
    this version)."""

    path: str
    parts: tuple[str, ...]
    name: str
    value: Any
    block: KnownBlock
    known: Key | None

    @property
    def canonical_path(self) -> str:
        """The path by the block's own name, whatever alias the file uses."""
        return f"{self.block.path}.{self.name}" if self.block.path else self.name


def entries(view: ConfigView) -> Iterator[Entry]:
    """Every key in file order, blocks before what they hold; inside a block that nobody knows nothing is looked at."""
    blocks = keys_of_release(parse_release(view.context.deepspeed_version))

    def walk(mapping: Mapping[str, Any], *, written: tuple[str, ...], canonical: str) -> Iterator[Entry]:
        block = blocks[canonical]
        for name, value in mapping.items():
            parts = (*written, str(name))
            key = block.keys.get(name)
            yield Entry(path=".".join(parts), parts=parts, name=str(name), value=value, block=block, known=key)
            inner = f"{canonical}.{key.name}" if key and canonical else (key.name if key else "")
            if inner in blocks and inner and isinstance(value, Mapping):
                yield from walk(value, written=parts, canonical=inner)

    yield from walk(view.config, written=(), canonical="")


def shown(value: Any) -> str:
    """A value for a message, cut short; as JSON spells it, not Python."""
    text = json.dumps(value) if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
