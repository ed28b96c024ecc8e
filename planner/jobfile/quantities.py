"""Values of a form of their own that several sections share: durations, paths, sections left empty.

A duration is written as people write it: `15m`, `120s`, `1h30m`, `1.5h`, or (in a file) a plain number of seconds.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from planner.catalog.documents import describe
from planner.catalog.strict import complain

MIN_DURATION_S = 0.001
MAX_DURATION_S = 30 * 86_400.0

_NUMBER = r"\d{1,9}(?:\.\d{1,9})?"
_DURATION = re.compile("".join(rf"(?:({_NUMBER}){unit})?" for unit in "dhms"), re.ASCII)
_SECONDS = (86_400.0, 3_600.0, 60.0, 1.0)


def parse_duration(value: Any) -> float:
    """Seconds of a duration; a validator for pydantic. At least a millisecond, at most 30 days."""
    seconds = _seconds(value)
    if seconds is None:
        raise complain(f"must be a duration, found {describe(value)}", fix="write it like 90s, 15m or 1h30m")
    if not MIN_DURATION_S <= seconds <= MAX_DURATION_S:
        raise complain(
            f"must be from 1 millisecond to 30 days, found {describe(value)}", fix="write it like 90s or 15m"
        )
    return seconds


def _seconds(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return float(value)
    return duration_of_text(value) if isinstance(value, str) else None


def duration_of_text(text: str) -> float | None:
    """Seconds of `90s`, `15m`, `1h30m`, `2d`, units from the largest to the smallest; None for anything else."""
    found = _DURATION.fullmatch(text) if text else None
    if found is None:
        return None
    return sum(float(number) * unit for number, unit in zip(found.groups(), _SECONDS) if number)


def text_of_duration(seconds: float) -> str:
    """`1d43200s`: what `duration_of_text` reads back, to the microsecond."""
    days, rest = divmod(seconds, _SECONDS[0])
    shown = f"{rest:.6f}".rstrip("0").rstrip(".")
    return (f"{int(days)}d" if days else "") + (f"{shown}s" if rest or not days else "")


Duration = Annotated[float, BeforeValidator(parse_duration)]


def no_zero_byte(text: str) -> str:
    """Refuse what no file system takes."""
    if "\0" in text:
        raise complain("holds a zero byte", fix="write an ordinary path")
    return text


PathText = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(no_zero_byte)]


def nothing_is_empty(value: Any) -> Any:
    """A section with a name and nothing below it is a section with every default."""
    return {} if value is None else value
