"""Numbers as people read them: the only place where bytes become GiB and seconds become milliseconds.

Inside the planner every value keeps its base unit (bytes, seconds, tokens/s, FLOP/s) and says so in its name's suffix;
`format_named` picks the human unit from that suffix.
"""

from __future__ import annotations

import math
import re

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL_PREFIXES = ("", "k", "M", "G", "T", "P")
_SCALE_WORDS = ("", " thousand", " million", " billion")
# C0, DEL and C1 but for line end and tab; line and paragraph separators; marks that reorder the line they stand in.
_CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def format_bytes(size_bytes: float) -> str:
    """`61.3 GiB`, `310 MiB`: three significant figures in the largest unit that leaves at least 1."""
    magnitude = abs(size_bytes)
    if not math.isfinite(magnitude):
        return str(size_bytes)
    exponent = 0
    while exponent < len(_BYTE_UNITS) - 1 and magnitude >= 0.9995 * 1024 ** (exponent + 1):
        exponent += 1
    value = size_bytes / 1024**exponent
    return f"{_short(value) if exponent else f'{value:.0f}'} {_BYTE_UNITS[exponent]}"


def format_seconds(duration_s: float) -> str:
    """`15.0 µs`, `412 ms`, `1.23 s`, `2 min 05 s`, `3 h 20 min`, `23.6 days`."""
    if not math.isfinite(duration_s):
        return str(duration_s)
    if 0 < abs(duration_s) < 0.9995e-4:
        return f"{_short(duration_s * 1e6)} µs"
    if abs(duration_s) < 0.9995:
        return f"{_short(duration_s * 1e3)} ms"
    if abs(duration_s) < 99.95:
        return f"{_short(duration_s)} s"
    minutes, seconds = divmod(round(duration_s), 60)
    if minutes < 100:
        return f"{minutes} min {seconds:02d} s"
    hours, minutes = divmod(round(duration_s / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours < 100 else f"{_short(duration_s / 86_400)} days"


def format_duration_limit(duration_s: float) -> str:
    """A limit or a remaining time, coarsely: `45 s`, `15 min`, `1 h 30 min`."""
    if not math.isfinite(duration_s):
        return "an unknown time"
    if duration_s < 99.5:
        return f"{max(math.ceil(duration_s), 0)} s"
    minutes = math.ceil(duration_s / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if minutes else f"{hours} h"


def format_tokens_per_s(rate: float) -> str:
    """`812 tokens/s`, `45.0 thousand tokens/s`, `1.23 million tokens/s`."""
    value, step = _thousands(rate, limit=len(_SCALE_WORDS) - 1)
    return f"{value}{_SCALE_WORDS[step]} tokens/s"


def format_tokens(tokens: float) -> str:
    """`812 tokens`, `100 billion tokens`, `15.0 trillion tokens`."""
    scales = (*_SCALE_WORDS, " trillion", " quadrillion")
    value, step = _thousands(tokens, limit=len(scales) - 1)
    return f"{value}{scales[step]} tokens"


def format_rate_short(rate: float) -> str:
    """A rate in a table whose heading has the unit: `812`, `45.0 k`, `1.23 M`."""
    value, step = _thousands(rate, limit=len(_DECIMAL_PREFIXES) - 1)
    return f"{value} {_DECIMAL_PREFIXES[step]}".rstrip()


def format_fraction(fraction: float) -> str:
    """`3.1%`, `5%`; whole percents from ten up."""
    percent = fraction * 100
    if not math.isfinite(percent):
        return str(percent)
    decimals = 0 if abs(percent) >= 9.95 else 1
    return f"{percent:.{decimals}f}".removesuffix(".0") + "%"


def format_count(count: int) -> str:
    """`204,800`."""
    return f"{count:,}"


def plural(count: int, noun: str, plural_noun: str = "") -> str:
    """`1 trial`, `12 trials`; an irregular plural is given."""
    return f"{format_count(count)} {noun if count == 1 else plural_noun or noun + 's'}"


def format_named(name: str, value: str | int | float | bool) -> str:
    """The value of a field in the human unit that its name's suffix calls for."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    for suffix, render in _BY_SUFFIX:
        if name.endswith(suffix):
            return render(value)
    return format_count(value) if isinstance(value, int) else _short(value)


def heading_of(name: str) -> str:
    """A field name as a column heading: its unit's suffix goes, since the cells carry the unit."""
    if name == "tokens_per_s":
        return "speed"  # a unit without a name
    for suffix, _ in _BY_SUFFIX:
        if name.endswith(suffix) and len(name) > len(suffix):
            name = name.removesuffix(suffix)
            break
    return name.replace("_", " ")


def printable(text: str) -> str:
    """The text without control characters (a terminal would obey them); line ends and tabs stay."""
    return _CONTROL_CHARACTERS.sub("\N{REPLACEMENT CHARACTER}", text)


def one_line(text: str) -> str:
    """The text as one printable line."""
    return " ".join(printable(text).split())


def _short(value: float) -> str:
    """Three significant figures without an exponent, whole numbers above a hundred."""
    if not math.isfinite(value):
        return str(value)
    magnitude = abs(value)
    if magnitude >= 99.95:
        return f"{value:,.0f}"
    if magnitude >= 9.995:
        return f"{value:.1f}"
    if magnitude >= 0.0995:
        return f"{value:.2f}"
    return f"{value:.2g}" if magnitude else "0"


def _thousands(rate: float, *, limit: int) -> tuple[str, int]:
    step = 0
    while step < limit and math.isfinite(rate) and abs(rate) >= 999.5:
        rate, step = rate / 1000, step + 1
    return _short(rate), step


def _format_prefixed(value: float, unit: str) -> str:
    short, step = _thousands(value, limit=len(_DECIMAL_PREFIXES) - 1)
    return f"{short} {_DECIMAL_PREFIXES[step]}{unit}"


def _format_flops_per_s(value: float) -> str:
    return _format_prefixed(value, "FLOP/s") if value else "none"


def _format_bytes_per_s(value: float) -> str:
    return _format_prefixed(value, "B/s")


_BY_SUFFIX = (
    ("_bytes_per_s", _format_bytes_per_s),
    ("_flops_per_s", _format_flops_per_s),
    ("_tokens_per_s", format_tokens_per_s),
    ("tokens_per_s", format_tokens_per_s),
    ("_bytes", format_bytes),
    ("_fraction", format_fraction),
    ("_s", format_seconds),
)
