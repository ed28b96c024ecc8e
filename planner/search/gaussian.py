"""Gaussian-process regression over candidates, small and exact: what measured residuals say about the untried.

The residual of a candidate is a sum of independent effects: a bias common to all, a slope (the prior exaggerates, or
plays down, every difference), one smooth effect per axis, one that depends on all axes together, and a part of its own.
Sizes of the effects are fitted (maximum a posteriori), so an axis along which the analytic model errs is noticed, and
one along which it does not is left alone.

Formulas: Rasmussen & Williams, Gaussian Processes for Machine Learning (2006), equations 2.25 and 2.26 (posterior), 5.8
(marginal likelihood), 5.12 (leave-one-out); censored observations by expectation propagation, their section 3.6.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from planner.spec._record import record
from planner.spec.columns import FloatColumn, IntColumn

Matrix: TypeAlias = NDArray[np.float64]

_LOG_SCALE_SPREAD = 0.8  # prior standard deviation of the log of each fitted size
_STEPS = (-1.6, -0.8, -0.3, 0.3, 0.8, 1.6)  # multiplicative moves, in logs, of the search for the best sizes
_SWEEPS = 3


@record
class Effects:
    """Standard deviations of the parts of a residual, in log units (of `slope`: per log unit of the prior)."""

    bias: float
    slope: float
    per_axis: FloatColumn
    together: float
    alone: float


@record
class Pairs:
    """How the candidates of two groups relate: similarities (axis, left, right), and for the slope how far the prior of
    each lies from the middle, in log units."""

    similarities: Matrix
    left_tilt: FloatColumn
    right_tilt: FloatColumn

    def take(self, rows: IntColumn) -> Pairs:
        """The pairs among some members of one group paired with itself."""
        alike = self.similarities[:, rows][:, :, rows]
        return Pairs(similarities=alike, left_tilt=self.left_tilt[rows], right_tilt=self.right_tilt[rows])


@record
class Conditioned:
    """A process after its observations: `inverse` is that of the observations' covariance, `weights` it times them."""

    effects: Effects
    inverse: Matrix
    weights: FloatColumn


def covariance(pairs: Pairs, effects: Effects) -> Matrix:
    """Prior covariance of the shared parts of the residuals; the part that is each candidate's own is left out."""
    per_axis: Matrix = np.tensordot(effects.per_axis**2, pairs.similarities, axes=1)
    slope = effects.slope**2 * np.outer(pairs.left_tilt, pairs.right_tilt)
    together: Matrix = effects.together**2 * np.prod(pairs.similarities, axis=0)
    total: Matrix = effects.bias**2 + slope + per_axis + together
    return total


def prior_variance(effects: Effects, tilt: FloatColumn) -> FloatColumn:
    """Variance of the residuals of candidates before anything was seen."""
    constant = effects.bias**2 + float(np.sum(effects.per_axis**2)) + effects.together**2 + effects.alone**2
    variance: FloatColumn = constant + effects.slope**2 * tilt**2
    return variance


def fit_effects(pairs: Pairs, targets: FloatColumn, noise: FloatColumn, *, start: Effects) -> Effects:
    """The most probable sizes of the effects given residuals `targets` with noise variances `noise`.

    `start` is the prior's median; the bias is not fitted. Coordinate search: deterministic, and a few milliseconds.
    """
    num_axes = len(start.per_axis)

    def scaled(logs: FloatColumn) -> Effects:
        factors = np.exp(logs)
        return replace(
            start,
            per_axis=start.per_axis * factors[:num_axes],
            slope=start.slope * float(factors[-3]),
            together=start.together * float(factors[-2]),
            alone=start.alone * float(factors[-1]),
        )

    def loss(logs: FloatColumn) -> float:
        effects = scaled(logs)
        total = covariance(pairs, effects) + np.diag(noise + effects.alone**2)
        return _negative_log_likelihood(total, targets) + 0.5 * float(np.sum((logs / _LOG_SCALE_SPREAD) ** 2))

    return scaled(_coordinate_descent(loss, num_axes + 3))


def _coordinate_descent(loss: Callable[[FloatColumn], float], size: int) -> FloatColumn:
    best: FloatColumn = np.zeros(size)
    best_loss = loss(best)
    for _ in range(_SWEEPS):
        before = best_loss
        for index in range(size):
            for step in _STEPS:
                moved = best.copy()
                moved[index] += step
                moved_loss = loss(moved)
                if moved_loss < best_loss:
                    best, best_loss = moved, moved_loss
        if before - best_loss < 0.01:
            break
    return best


def _negative_log_likelihood(total: Matrix, targets: FloatColumn) -> float:
    factor = np.linalg.cholesky(total)
    half = np.linalg.solve(factor, targets)
    return 0.5 * float(half @ half) + float(np.sum(np.log(np.diag(factor))))


def condition(pairs: Pairs, targets: FloatColumn, noise: FloatColumn, *, effects: Effects) -> Conditioned:
    """Take in the observations."""
    total = covariance(pairs, effects) + np.diag(noise + effects.alone**2)
    inverse = np.asarray(np.linalg.inv(total), dtype=np.float64)
    return Conditioned(effects=effects, inverse=inverse, weights=inverse @ targets)


def predict(conditioned: Conditioned, cross: Pairs) -> tuple[FloatColumn, FloatColumn]:
    """Mean and standard deviation of the residuals of untried candidates; `cross` pairs them with the observed."""
    shared = covariance(cross, conditioned.effects)
    explained = np.einsum("ij,jk,ik->i", shared, conditioned.inverse, shared, optimize=True)
    variance = np.maximum(prior_variance(conditioned.effects, cross.left_tilt) - explained, 1e-12)
    return shared @ conditioned.weights, np.sqrt(variance)


def joint_covariance(conditioned: Conditioned, within: Pairs, cross: Pairs) -> Matrix:
    """Posterior covariance of untried candidates among themselves, each one's own part included."""
    shared = covariance(cross, conditioned.effects)
    own = conditioned.effects.alone**2 * np.eye(len(shared))
    total: Matrix = covariance(within, conditioned.effects) + own - shared @ conditioned.inverse @ shared.T
    return total


def censored_sites(
    prior: Matrix, targets: FloatColumn, noise: FloatColumn, *, is_bound: NDArray[np.bool_], sweeps: int = 6
) -> tuple[FloatColumn, FloatColumn]:
    """Replace lower bounds by the ordinary observations (value, noise variance) that say the same.

    `prior` is the covariance of the latent values (mean 0), `targets` their exact observations or, where `is_bound`,
    what they are known to exceed. Expectation propagation: each bound's site makes the posterior match the moments of
    its truncated normal, given all the others.
    """
    values, variances = targets.copy(), noise.copy()
    variances[is_bound] = 1e3
    for _ in range(sweeps):
        for index in np.flatnonzero(is_bound):
            inverse = np.linalg.inv(prior + np.diag(variances))
            cavity_variance = max(1.0 / inverse[index, index] - variances[index], 1e-9)
            cavity_mean = values[index] - (inverse @ values)[index] / inverse[index, index]
            mean, variance = truncated_moments(cavity_mean, cavity_variance, targets[index])
            precision = max(1.0 / variance - 1.0 / cavity_variance, 1e-6)
            variances[index] = max(1.0 / precision, 1e-9)
            values[index] = (mean / variance - cavity_mean / cavity_variance) * variances[index]
    return values, variances


def truncated_moments(mean: float, variance: float, bound: float) -> tuple[float, float]:
    """Mean and variance of a normal variable known to exceed `bound`."""
    deviation = math.sqrt(variance)
    z = (bound - mean) / deviation
    if z > 8.0:  # the exact expression loses all digits; asymptotic series of the tail
        return bound + deviation * (1.0 / z - 2.0 / z**3), variance / z**2
    hazard = math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi) / (0.5 * math.erfc(z / math.sqrt(2.0)))
    return mean + deviation * hazard, max(variance * (1.0 - hazard * (hazard - z)), variance * 1e-6)


def normal_cdf(z: FloatColumn) -> FloatColumn:
    """Probability that a standard normal variable is at most z, element by element."""
    return np.array([0.5 * math.erfc(-value / math.sqrt(2.0)) for value in z.tolist()], dtype=np.float64)


def expected_excess(mean: FloatColumn, deviation: FloatColumn, best: float) -> FloatColumn:
    """Expected improvement E[max(x - best, 0)] of normal variables (Jones, Schonlau & Welch 1998, equation 15)."""
    z = (mean - best) / deviation
    density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    return deviation * (z * normal_cdf(z) + density)
