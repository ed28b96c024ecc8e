"""Does a counter grow step by step, or did it only start up? The arithmetic behind `leak`. Pure.

A leak adds about the same in every step; a start-up rises and stays. So a leak needs three things: a straight line
explains most of the variation, the growth over the log is a real share of the level, and the last third still grows at
the pace of the whole.
"""

from __future__ import annotations

from planner.diagnose.records import Series
from planner.spec._record import record

MIN_POINTS = 4
MIN_PLACES = 30  # where lines name no step: a few lines of an initialisation grow too
MIN_FIT = 0.80  # R^2 of the line; sawtooths of evaluation and logging leave about so much
MIN_GROWTH_FRACTION = 0.10  # of the first level
MIN_GROWTH_BYTES = 64 * 2**20
MIN_LATE_PACE = 0.35  # slope of the last third, relative to the slope of all


@record
class Growth:
    """Least squares over one series. `bytes_per_step` in the series' own steps."""

    series: Series
    first_bytes: float
    last_bytes: float
    bytes_per_step: float
    fit: float
    late_pace: float

    @property
    def is_leak(self) -> bool:
        """Whether the growth is steady, long and large enough to be called a leak."""
        gained = self.last_bytes - self.first_bytes
        return (
            self.fit >= MIN_FIT
            and gained >= max(MIN_GROWTH_BYTES, MIN_GROWTH_FRACTION * self.first_bytes)
            and self.late_pace >= MIN_LATE_PACE
        )


def growth_of(series: Series) -> Growth | None:
    """The line through the series after its first tenth (start-up); None for too few points or one and the same
    step."""
    ordered = sorted((point.step, point.value_bytes) for point in series.points)
    settled = ordered[len(ordered) // 10 :]
    if len(settled) < (MIN_POINTS if series.has_steps else MIN_PLACES):
        return None
    slope, offset, fit = _line(settled)
    late = settled[-max(MIN_POINTS - 1, len(settled) // 3) :]
    late_slope, _, _ = _line(late)
    if slope <= 0:
        return None
    first, last = settled[0][0], settled[-1][0]
    return Growth(
        series=series,
        first_bytes=offset + slope * first,
        last_bytes=offset + slope * last,
        bytes_per_step=slope,
        fit=fit,
        late_pace=late_slope / slope,
    )


def _line(points: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Slope, offset and R^2 by least squares; a slope of 0 when all steps are one."""
    count = len(points)
    mean_x = sum(x for x, _ in points) / count
    mean_y = sum(y for _, y in points) / count
    xx = sum((x - mean_x) ** 2 for x, _ in points)
    yy = sum((y - mean_y) ** 2 for _, y in points)
    xy = sum((x - mean_x) * (y - mean_y) for x, y in points)
    if xx <= 0 or yy <= 0:
        return 0.0, mean_y, 0.0
    slope = xy / xx
    return slope, mean_y - slope * mean_x, xy * xy / (xx * yy)


def strongest_leak(series: tuple[Series, ...]) -> Growth | None:
    """The leak with the largest gain among these series; None when none leaks."""
    leaks = [growth for growth in map(growth_of, series) if growth is not None and growth.is_leak]
    return max(leaks, key=lambda growth: growth.last_bytes - growth.first_bytes, default=None)
