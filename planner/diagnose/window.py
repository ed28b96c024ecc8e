"""A log as a sliding window of bytes: what was just read, with room to look back and ahead. No text is decoded here.

Memory is bounded whatever the log holds: one chunk, what is kept to look back, what is kept to look ahead.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.diagnose.lines import MAX_LINE_BYTES

LOOK_BACK_BYTES = 1 << 20  # 64 ranks printing a 60-line traceback at once are about 400 KiB
LOOK_AHEAD_BYTES = 1 << 17
MAX_BYTES_BEFORE = 1024  # of one line before a hit, so that the hit is not at the end of what is read of it


class Window:
    """Fed chunks in order; `start` to `end` is the part to be looked at now, and what lies around it can be read."""

    def __init__(self) -> None:
        self.data = b""
        self.start = 0
        self.end = 0
        self.offset = 0  # of `data` in the log
        self._lines_before = 0  # line ends in the log before `data`

    def feed(self, chunk: bytes, *, is_last: bool) -> None:
        """Move on by a chunk. The last bytes are held back until what follows them is known."""
        keep_from = max(0, self.end - LOOK_BACK_BYTES)
        self._lines_before += self.data.count(b"\n", 0, keep_from)
        self.offset += keep_from
        self.data = self.data[keep_from:] + chunk
        self.start = self.end - keep_from
        self.end = len(self.data) if is_last else max(self.start, len(self.data) - LOOK_AHEAD_BYTES)

    def looked_at(self) -> bytes:
        """The part to be looked at now, to the end of its last line, so that no needle is cut."""
        return self.data[self.start : self.line_end(self.end)]

    def find(self, needle: bytes, *, most: int) -> Iterator[int]:
        """Where the needle begins in the part to be looked at, at most so often."""
        position = self.start
        stop = min(len(self.data), self.end + len(needle) - 1)
        for _ in range(most):
            position = self.data.find(needle, position, stop)
            if position < 0:
                return
            yield position
            position = max(position + len(needle), self.line_end(position))

    def spread(self, needle: bytes, *, count: int) -> Iterator[int]:
        """Like `find`, but the hits are spread over the part to be looked at."""
        stride = max(1, (self.end - self.start) // count)
        position = self.start
        while position < self.end:
            position = self.data.find(needle, position, self.end)
            if position < 0:
                return
            yield position
            position += stride

    def num_hits(self, needle: bytes) -> int:
        """How often the needle stands in the part to be looked at."""
        return self.data.count(needle, self.start, self.end)

    def line_start(self, position: int) -> int:
        """Where the line of this position begins; of a very long line only the last part before it is taken."""
        lowest = max(0, position - MAX_BYTES_BEFORE)
        line_feed = self.data.rfind(b"\n", lowest, position)
        returned = self.data.rfind(b"\r", max(lowest, line_feed), position)
        last = max(line_feed, returned)
        return last + 1 if last >= 0 else lowest

    def line_end(self, position: int) -> int:
        """Where the line of this position ends, at most `MAX_LINE_BYTES` after it."""
        highest = min(len(self.data), position + MAX_LINE_BYTES)
        line_feed = self.data.find(b"\n", position, highest)
        highest = line_feed if line_feed >= 0 else highest
        returned = self.data.find(b"\r", position, highest)
        return returned if returned >= 0 else highest

    def line(self, start: int) -> bytes:
        """The line that begins here."""
        return self.data[start : self.line_end(start)]

    def before(self, start: int, *, most: int) -> Iterator[bytes]:
        """The lines before the one that begins here, last first, empty ones included."""
        position = start
        for _ in range(most):
            if position <= 0:
                return
            end = position - 1 if self.data[position - 1] in b"\r\n" else position
            begin = self.line_start(end)
            yield self.data[begin:end]
            position = begin if begin < position else 0

    def after(self, start: int, *, most: int) -> Iterator[bytes]:
        """The lines after the one that begins here, empty ones included."""
        position = start
        for _ in range(most):
            position = self.line_end(position)
            if position >= len(self.data):
                return
            position += 2 if self.data[position : position + 2] == b"\r\n" else 1
            yield self.line(position)

    def line_number(self, start: int) -> int:
        """The number in the log, from 1, of the line that begins here."""
        return self._lines_before + self.data.count(b"\n", 0, start) + 1

    def num_lines(self) -> int:
        """The lines of all that was fed; a last one without an end counts."""
        ends = self._lines_before + self.data.count(b"\n")
        return ends + (1 if self.data and not self.data.endswith(b"\n") else 0)
