"""What real trials teach the model: few factors, fitted purely, shrunk towards no correction.

Owns the fit and its residual. Leaves applying the factors to `peak` (memory) and `steptime` (time).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median

import numpy as np

from planner.cost.interval import largest_fitting_bytes
from planner.spec._record import record
from planner.spec.columns import FloatColumn
from planner.spec.estimate import Estimate
from planner.spec.trial import Measured


@record
class Calibration:
    """Corrections for one machine and model. The defaults change nothing.

    allocated' = memory_scale x allocated + memory_offset_bytes; each part of the time' = time_scale x the part's own
    factor x the part. `num_points` 0: not fitted. Residuals: robust standard deviations of the relative error that the
    correction leaves.
    """

    memory_scale: float = 1.0
    memory_offset_bytes: float = 0.0
    time_scale: float = 1.0
    compute_factor: float = 1.0  # and the bubble, which waits for compute
    recompute_factor: float = 1.0
    communication_factor: float = 1.0
    optimizer_factor: float = 1.0  # and offload
    host_factor: float = 1.0
    num_points: int = 0
    memory_residual_fraction: float = 0.0
    time_residual_fraction: float = 0.0

    @property
    def corrects_memory(self) -> bool:
        """Whether memory is another than the uncorrected model says."""
        return self.memory_scale != 1.0 or self.memory_offset_bytes != 0.0

    @property
    def corrects_time(self) -> bool:
        """Whether step times are others than the uncorrected model says."""
        return any(self.time_factor(part) != 1.0 for part in _GROUP_OF_PART)

    def time_factor(self, part: str) -> float:
        """The whole factor of one part of the step time, named as in `TimeBreakdown` without `_s`."""
        return self.time_scale * float(getattr(self, f"{_GROUP_OF_PART[part]}_factor"))


_GROUP_OF_PART = {
    "compute": "compute",
    "bubble": "compute",
    "recompute": "recompute",
    "tensor_parallel": "communication",
    "data_parallel": "communication",
    "pipeline": "communication",
    "optimizer": "optimizer",
    "offload": "optimizer",
    "host": "host",
}
_GROUPS = tuple(dict.fromkeys(_GROUP_OF_PART.values()))

# The common factor is believed to 15 % beforehand and a trial to 5 %; a trial off by more than 1.5 times that pulls no
# harder than one that is (Huber): a run that somebody disturbed, or that met a broken network, moves little.
_COMMON_FRACTION, _COMMON_TRIAL_FRACTION, _HUBER = 0.15, 0.05, 1.5
# Beside that common factor the parts may differ. A trial is believed to 8 %; beforehand, a part's own factor by what
# changes from machine to machine: compute least, the host and the network most.
_TRIAL_FRACTION, _ODDEST_FRACTION = 0.08, 0.10
_PART_FRACTIONS = {"compute": 0.15, "recompute": 0.15, "communication": 0.4, "optimizer": 0.3, "host": 0.6}
_POINTS_FOR_PARTS = 3
_NO_TIME_FIT = (1.0, [1.0] * len(_GROUPS))
# Ridge on memory, as a multiple of one point's squared relative error of 3 %: the scale is believed to 10 % beforehand,
# the offset to 15 % of the mean.
_SCALE_PENALTY, _OFFSET_PENALTY = (0.03 / 0.10) ** 2, (0.03 / 0.15) ** 2
_LARGEST_BOUND = 1.25  # of the scale, by which a trial that ran out may raise it
_ROUNDS, _ODD_FRACTION = 5, 0.03  # of reweighting; relative errors above the larger of this and the spread count less


def fit_calibration(pairs: Sequence[tuple[Estimate, Measured]], *, ran_out: Sequence[Estimate] = ()) -> Calibration:
    """Fit the factors to (uncorrected estimate, measured trial) pairs.

    Time: a common factor (robust, shrunk towards 1), and from three trials on each part's own by ridge regression.
    Memory: scale and offset by least squares on relative errors with a ridge towards (1, 0) and Huber weights, so that
    one odd trial moves little; trials without a memory figure teach time only. `ran_out`: estimates of trials that ran
    out of memory; they bound memory from below, since each took more than what is called fitting.
    """
    if not pairs:
        return _bounded(Calibration(), ran_out=ran_out)
    common, factors = _time_fit(pairs) if _foretells(pairs) else _NO_TIME_FIT
    peaks = [
        (float(estimate.memory.allocated_bytes), float(max(rank.peak_allocated_bytes for rank in measured.ranks)))
        for estimate, measured in pairs
        if any(rank.peak_allocated_bytes > 0 for rank in measured.ranks)
    ]
    scale, offset = _fit_line(peaks) if peaks else (1.0, 0.0)
    fitted = Calibration(
        memory_scale=scale,
        memory_offset_bytes=offset,
        time_scale=common,
        num_points=len(pairs),
        **{f"{group}_factor": factors[index] for index, group in enumerate(_GROUPS)},
    )
    fitted = _bounded(fitted, ran_out=ran_out)
    left = [math.log(measured.step_time_s / corrected_time_s(estimate, fitted)) for estimate, measured in pairs]
    return replace(
        fitted,
        memory_residual_fraction=_spread(
            [(fitted.memory_scale * x + fitted.memory_offset_bytes) / y - 1.0 for x, y in peaks]
        ),
        time_residual_fraction=_spread(left),
    )


def _time_fit(pairs: Sequence[tuple[Estimate, Measured]]) -> tuple[float, list[float]]:
    """The common factor and each group's own."""
    logs = [math.log(measured.step_time_s / estimate.step_time_s) for estimate, measured in pairs]
    common = math.exp(_common_log(logs))
    return common, _part_factors(pairs, common=common)


def _foretells(pairs: Sequence[tuple[Estimate, Measured]]) -> bool:
    """Whether each trial, corrected by what all others teach, is usually nearer than uncorrected: where one of few
    trials was disturbed, the correction it suggests fits nothing else, and none is the better guess."""
    if len(pairs) < _POINTS_FOR_PARTS:
        return True
    before, after = [], []
    for place, (estimate, measured) in enumerate(pairs):
        common, factors = _time_fit([*pairs[:place], *pairs[place + 1 :]])
        own = {f"{group}_factor": factor for group, factor in zip(_GROUPS, factors, strict=True)}
        corrected = corrected_time_s(estimate, Calibration(time_scale=common, num_points=len(pairs), **own))
        before.append(abs(math.log(measured.step_time_s / estimate.step_time_s)))
        after.append(abs(math.log(measured.step_time_s / corrected)))
    return median(after) <= median(before)


def corrected_time_s(estimate: Estimate, calibration: Calibration) -> float:
    """The step time of an uncorrected estimate under this correction."""
    parts = [float(getattr(estimate.time, f"{part}_s")) * calibration.time_factor(part) for part in _GROUP_OF_PART]
    return sum(parts)


def _bounded(calibration: Calibration, *, ran_out: Sequence[Estimate]) -> Calibration:
    """Raise the memory scale so that no estimate that ran out is called fitting; one that ran out far below what the
    model says is no error of the model (another process, a leak) and teaches nothing."""
    scale, points = calibration.memory_scale, calibration.num_points
    most = scale * _LARGEST_BOUND
    for estimate in ran_out:
        at_least = largest_fitting_bytes(estimate.memory) * (1.0 + 1e-6)
        needed = (at_least - calibration.memory_offset_bytes) / estimate.memory.allocated_bytes
        if scale < needed <= most:
            scale, points = needed, max(points, 1)
    return replace(calibration, memory_scale=scale, num_points=points)


def _common_log(logs: Sequence[float]) -> float:
    """The s that minimises sum huber((log_i - s) / 5 %) + (s / 15 %)^2 / 2, found by reweighting."""
    limit, found = _HUBER * _COMMON_TRIAL_FRACTION, 0.0
    for _ in range(50):
        weights = [1.0 if abs(value - found) <= limit else limit / abs(value - found) for value in logs]
        precisions = [weight / _COMMON_TRIAL_FRACTION**2 for weight in weights]
        pulled = sum(precision * value for precision, value in zip(precisions, logs))
        found = pulled / (sum(precisions) + 1.0 / _COMMON_FRACTION**2)
    return found


def _part_factors(pairs: Sequence[tuple[Estimate, Measured]], *, common: float) -> list[float]:
    """Each group's factor beside the common one: min sum w ((X f - 1) / 8 %)^2 + sum ((f - 1) / its own)^2, where X
    holds the groups' shares of the measured time."""
    if len(pairs) < _POINTS_FOR_PARTS:
        return [1.0] * len(_GROUPS)
    shares = np.array([_shares(estimate, measured, common=common) for estimate, measured in pairs])
    weights: FloatColumn = np.ones(len(pairs))
    factors: FloatColumn = np.ones(len(_GROUPS))
    prior = np.diag([_PART_FRACTIONS[group] ** -2.0 for group in _GROUPS])
    for _ in range(_ROUNDS):
        weighted = shares * (weights / _TRIAL_FRACTION**2)[:, None]
        factors = np.linalg.solve(shares.T @ weighted + prior, weighted.sum(axis=0) + prior.sum(axis=0))
        errors = np.abs(shares @ factors - 1.0)
        limit = min(max(_ODD_FRACTION, 1.5 * float(np.median(errors))), _ODDEST_FRACTION)
        weights = np.minimum(1.0, (limit / np.maximum(errors, 1e-12)) ** 2)
    return [float(min(max(factor, 0.2), 5.0)) for factor in factors]


def _shares(estimate: Estimate, measured: Measured, *, common: float) -> list[float]:
    shares = dict.fromkeys(_GROUPS, 0.0)
    for part, group in _GROUP_OF_PART.items():
        shares[group] += getattr(estimate.time, f"{part}_s") * common / measured.step_time_s
    return list(shares.values())


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
