"""Sizes as programs print them, to bytes. Pure text.

PyTorch, DeepSpeed and MPS print powers of 1024 whether they write GiB or GB, and so do the tools whose tables are read
here; a thousand-based GB does not occur in these messages.
"""

from __future__ import annotations

import re
from functools import cache

_EXPONENTS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6}
_NUMBER = r"\d[\d,]{0,24}(?:\.\d{1,12})?"

# One size as a regular-expression group pair: number, unit.
SIZE = rf"({_NUMBER})\s*([kKMGTPE]i?[bB]?|[bB]ytes?|B)\b"

MAX_PLAUSIBLE_BYTES = 1 << 50  # a pebibyte: more than any device or node has; larger readings are counters gone wrong


def size_bytes(number: str, unit: str) -> int | None:
    """Bytes of `20.00`, `MiB`; None for a number too large to be memory (2^34 GiB stands for "no limit" or
    "unknown")."""
    value = float(number.replace(",", ""))
    letter = unit[:1].lower()
    exponent = 0 if letter == "b" else _EXPONENTS.get(letter, 0)
    bytes_ = value * 1024.0**exponent
    return round(bytes_) if bytes_ < MAX_PLAUSIBLE_BYTES else None


def find_size(pattern: str, text: str) -> int | None:
    """Bytes of the first match of `pattern`, in which `SIZE` gives the two groups; None without a match."""
    found = compiled(pattern).search(text)
    return size_bytes(found[1], found[2]) if found else None


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """The pattern with `{SIZE}` filled in, compiled once."""
    return re.compile(pattern.replace("{SIZE}", SIZE))
