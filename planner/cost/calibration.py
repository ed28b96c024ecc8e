"""What real trials teach the model: few factors, fitted purely, shrunk towards no correction.

Owns the fit and its residual. Leaves applying the factors to `memory` and `steptime`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from planner.spec._record import record
from planner.spec.estimate import Estimate
from planner.spec.trial import Measured


@record
class Calibration:
    """Corrections for one machine and model. The defaults change nothing.

    allocated' = memory_scale x allocated + memory_offset_bytes; time' = time_scale x time. `num_points` 0: not fitted.
    Residuals: robust relative errors left after the correction.
    """

    memory_scale: float = 1.0
    memory_offset_bytes: float = 0.0
    time_scale: float = 1.0
    num_points: int = 0
    memory_residual_fraction: float = 0.0
    time_residual_fraction: float = 0.0


# A fit of k points moves k / (k + this) of the way to what the points say: one trial counts half, nine 90 %.
_PRIOR_POINTS = 1.0


def fit_calibration(pairs: Sequence[tuple[Estimate, Measured]]) -> Calibration:
    """Fit the factors to (uncorrected estimate, measured trial) pairs.

    The scales are medians of measured / estimated, taken in logarithms and shrunk by k / (k + 1), so that one odd trial
    moves little. The offset stays 0 below three points, since one or two cannot tell a factor from an offset.
    """
    if not pairs:
        return Calibration()
    shrink = len(pairs) / (len(pairs) + _PRIOR_POINTS)
    memory = [
        math.log(max(rank.peak_allocated_bytes for rank in measured.ranks) / estimate.memory.allocated_bytes)
        for estimate, measured in pairs
        if measured.ranks and max(rank.peak_allocated_bytes for rank in measured.ranks) > 0
    ]
    time = [math.log(measured.step_time_s / estimate.step_time_s) for estimate, measured in pairs]
    memory_log = shrink * median(memory) if memory else 0.0
    time_log = shrink * median(time)
    return Calibration(
        memory_scale=math.exp(memory_log),
        time_scale=math.exp(time_log),
        num_points=len(pairs),
        memory_residual_fraction=_spread(memory, centre=memory_log),
        time_residual_fraction=_spread(time, centre=time_log),
    )


def _spread(logs: Sequence[float], *, centre: float) -> float:
    """1.4826 x median absolute deviation: a standard deviation that outliers do not move."""
    if not logs:
        return 0.0
    return 1.4826 * median(abs(value - centre) for value in logs)
