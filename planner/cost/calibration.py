"""What real trials teach the model: few factors, fitted purely, shrunk towards no correction.

Owns the fit and its residual. Leaves applying the factors to `peak` (memory) and `steptime` (time).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median

from planner.spec._record import record
from planner.spec.estimate import Estimate
from planner.spec.trial import Measured


@record
class Calibration:
    """Corrections for one machine and model. The defaults change nothing.

    allocated' = memory_scale x allocated + memory_offset_bytes; time' = time_scale x time. `num_points` 0: not fitted.
    Residuals: robust standard deviations of the relative error that the correction leaves.
    """

    memory_scale: float = 1.0
    memory_offset_bytes: float = 0.0
    time_scale: float = 1.0
    num_points: int = 0
    memory_residual_fraction: float = 0.0
    time_residual_fraction: float = 0.0


# A time fit of k points moves k / (k + this) of the way to what the points say: one trial counts half, nine 90 %.
_TIME_PRIOR_POINTS = 1.0
# Ridge on memory, as a multiple of one point's squared relative error of 3 %: the scale is believed to 10 % beforehand,
# the offset to 15 % of the mean.
_SCALE_PENALTY, _OFFSET_PENALTY = (0.03 / 0.10) ** 2, (0.03 / 0.15) ** 2
_ROUNDS, _ODD_FRACTION = 5, 0.03  # of reweighting; relative errors above the larger of this and the spread count less


def fit_calibration(pairs: Sequence[tuple[Estimate, Measured]]) -> Calibration:
    """Fit the factors to (uncorrected estimate, measured trial) pairs.

    Time: the median of log(measured / estimated), shrunk by k / (k + 1). Memory: scale and offset by least squares on
    relative errors with a ridge towards (1, 0) and Huber weights, so that one odd trial moves little. Trials without a
    memory figure teach time only.
    """
    if not pairs:
        return Calibration()
    logs = [math.log(measured.step_time_s / estimate.step_time_s) for estimate, measured in pairs]
    time_log = median(logs) * len(logs) / (len(logs) + _TIME_PRIOR_POINTS)
    peaks = [
        (float(estimate.memory.allocated_bytes), float(max(rank.peak_allocated_bytes for rank in measured.ranks)))
        for estimate, measured in pairs
        if any(rank.peak_allocated_bytes > 0 for rank in measured.ranks)
    ]
    scale, offset = _fit_line(peaks) if peaks else (1.0, 0.0)
    return Calibration(
        memory_scale=scale,
        memory_offset_bytes=offset,
        time_scale=math.exp(time_log),
        num_points=len(pairs),
        memory_residual_fraction=_spread([(scale * x + offset) / y - 1.0 for x, y in peaks]),
        time_residual_fraction=_spread([value - time_log for value in logs]),
    )


def _fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Scale s and offset o that minimise sum w ((s x + o - y) / y)^2 + ridge, with weights for odd points."""
    unit = fmean(y for _, y in points)
    weights = [1.0] * len(points)
    scale, offset = 1.0, 0.0
    for _ in range(_ROUNDS):
        scale, offset = _solve(points, weights=weights, unit=unit)
        errors = [abs((scale * x + offset) / y - 1.0) for x, y in points]
        limit = max(_ODD_FRACTION, 1.5 * median(errors))
        weights = [min(1.0, limit / error) if error else 1.0 for error in errors]
    return scale, offset


def _solve(points: Sequence[tuple[float, float]], *, weights: Sequence[float], unit: float) -> tuple[float, float]:
    """Normal equations of the ridge problem in s and o / unit."""
    xx, xo, oo, xy, oy = _SCALE_PENALTY, 0.0, _OFFSET_PENALTY, _SCALE_PENALTY, 0.0
    for (x, y), weight in zip(points, weights, strict=True):
        slope, constant = x / y, unit / y
        xx += weight * slope * slope
        xo += weight * slope * constant
        oo += weight * constant * constant
        xy += weight * slope
        oy += weight * constant
    determinant = xx * oo - xo * xo
    return (xy * oo - xo * oy) / determinant, (xx * oy - xo * xy) / determinant * unit


def _spread(errors: Sequence[float]) -> float:
    """1.4826 x median absolute error: a standard deviation that outliers do not move."""
    return 1.4826 * median(abs(error) for error in errors) if errors else 0.0
