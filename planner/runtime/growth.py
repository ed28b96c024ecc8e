"""Memory that grows from step to step, told from memory that is merely large: a line through the last steps. Pure."""

from __future__ import annotations

from collections import deque

from planner.spec._record import record

WINDOW_STEPS = 40
SETTLING_STEPS = 5  # the first steps make optimizer states, caches and work spaces
MIN_POINTS = 12
MIN_FIT = 0.8  # share of the variance that the line explains; noise around a level has little
MIN_SHARE = 0.002  # of the limit over the window: less is not worth a word
MIN_BYTES = 4 << 20  # over the window; libraries settle by some MiB


@record
class Growth:
    """`slope_bytes`: per step. `steps_left`: until the limit at this slope; 0 where the limit is not known."""

    slope_bytes: float
    steps_left: int


class GrowthWatch:
    """Takes what is allocated after each step."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._seen = 0
        self._points: deque[float] = deque(maxlen=WINDOW_STEPS)

    def step(self, allocated_bytes: int) -> Growth | None:
        """The growth that the last steps show; None while there is none to speak of."""
        self._seen += 1
        if self._seen <= SETTLING_STEPS:
            return None
        self._points.append(float(allocated_bytes))
        if len(self._points) < MIN_POINTS:
            return None
        slope, fit = line_through(tuple(self._points))
        least = max(MIN_BYTES, MIN_SHARE * self._limit_bytes)
        if fit < MIN_FIT or slope * len(self._points) < least:
            return None
        left = max(0, int((self._limit_bytes - allocated_bytes) / slope)) if self._limit_bytes else 0
        return Growth(slope_bytes=slope, steps_left=left)


def line_through(values: tuple[float, ...]) -> tuple[float, float]:
    """Slope per place of the least-squares line, and the share of the variance it explains (0 for a level)."""
    count = len(values)
    middle, mean = (count - 1) / 2, sum(values) / count
    across = sum((place - middle) ** 2 for place in range(count))
    along = sum((place - middle) * (value - mean) for place, value in enumerate(values))
    spread = sum((value - mean) ** 2 for value in values)
    slope = along / across if across else 0.0
    return slope, (slope * along / spread if spread else 0.0)
