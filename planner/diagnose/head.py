"""A log's first and last lines, read whole: how the run was started, and what is said about it. Text only.

A short log (an excerpt, a note) is read whole here; of a long one the beginning holds the settings and the end the
circumstances of the failure.
"""

from __future__ import annotations

from dataclasses import replace

from planner.diagnose.hints import hints_in, peaks_in
from planner.diagnose.lines import clean
from planner.diagnose.records import HintSeen, RunSettings, Series
from planner.diagnose.series_text import read_series
from planner.diagnose.settings_text import nominal_in_words, read_settings
from planner.diagnose.traceback_text import is_header
from planner.spec._record import record

HEAD_BYTES = 1 << 18
TAIL_BYTES = 1 << 15
DOCUMENT_BYTES = 1 << 11  # as long as a note or a small YAML file


@record
class Head:
    """What the first bytes of a log tell of the run."""

    hints: tuple[HintSeen, ...]
    settings: RunSettings
    series: tuple[Series, ...]


class HeadReader:
    """Keeps the first bytes of a log."""

    def __init__(self) -> None:
        self._kept = b""

    def feed(self, chunk: bytes) -> None:
        """Keep what is still missing of the head."""
        if len(self._kept) < HEAD_BYTES:
            self._kept += chunk[: HEAD_BYTES - len(self._kept)]

    def read(self, *, whole_bytes: int, tail: bytes) -> Head:
        """The reading; hints come from the whole of a short log and from the last lines of a long one."""
        is_short = whole_bytes <= HEAD_BYTES
        lines = _lines(self._kept)
        near = lines if is_short else _lines(tail[-TAIL_BYTES:])
        is_document = whole_bytes <= DOCUMENT_BYTES and not any(map(is_header, lines))
        peaks = peaks_in("\n".join(lines)) if is_document else ()
        return Head(
            hints=(*peaks, *hints_in(near, from_user=False)),
            settings=read_settings(lines),
            series=read_series("\n".join(lines)) if is_short else (),
        )


def read_note(note: str) -> Head:
    """What a user's own words say."""
    lines = note.splitlines() or [note]
    settings = read_settings(lines)
    if not settings.nominal_bytes:
        settings = replace(settings, nominal_bytes=nominal_in_words(note))
    return Head(hints=hints_in(lines, from_user=True), settings=settings, series=read_series(note))


def _lines(data: bytes) -> list[str]:
    return [clean(raw) for raw in data.replace(b"\r", b"\n").split(b"\n")]
