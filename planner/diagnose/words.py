"""Bytes in sentences of evidence: GiB with two figures behind the point, as PyTorch itself prints them. Pure."""

from __future__ import annotations


def size(bytes_: float) -> str:
    """`4.85 GiB`, `274 MiB`, `0 B`."""
    magnitude = abs(bytes_)
    for exponent, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if magnitude >= 1024**exponent:
            value = bytes_ / 1024**exponent
            return f"{value:.2f} {unit}" if exponent >= 3 else f"{value:.0f} {unit}"
    return f"{bytes_:.0f} B"


def share(fraction: float) -> str:
    """`2.3 %`."""
    return f"{100 * fraction:.1f} %" if abs(fraction) < 0.1 else f"{100 * fraction:.0f} %"


def shortened(text: str, *, limit: int = 160) -> str:
    """The text as one line of bounded length."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
