"""The regression against independent arithmetic: quadrature, sampling, and what it must do in plain cases."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner.search import gaussian
from planner.search.gaussian import Effects, Pairs
from planner.spec.columns import FloatColumn


def _pairs(left: FloatColumn, right: FloatColumn) -> Pairs:
    """One smooth axis, no tilt."""
    alike = np.exp(-0.5 * (left[:, None] - right[None, :]) ** 2)[None]
    return Pairs(similarities=alike, left_tilt=0 * left, right_tilt=0 * right)


def _effects(**changed: float) -> Effects:
    sizes = {"bias": 1.0, "slope": 0.0, "together": 0.0, "alone": 0.001, "axis": 0.5} | changed
    return Effects(
        bias=sizes["bias"],
        slope=sizes["slope"],
        per_axis=np.array([sizes["axis"]]),
        together=sizes["together"],
        alone=sizes["alone"],
    )


def test_predict_at_an_observed_point_returns_the_observation_and_little_doubt() -> None:
    x, y = np.array([0.0, 1.0, 3.0]), np.array([0.3, 0.1, -0.4])
    process = gaussian.condition(_pairs(x, x), y, np.full(3, 1e-8), effects=_effects())
    mean, deviation = gaussian.predict(process, _pairs(x, x))
    assert mean == pytest.approx(y, abs=1e-4)
    assert np.all(deviation < 0.01)


def test_predict_far_away_keeps_the_common_bias_and_the_doubt_of_the_axis() -> None:
    x, y = np.array([0.0, 0.1]), np.array([1.0, 1.0])
    process = gaussian.condition(_pairs(x, x), y, np.full(2, 1e-8), effects=_effects(bias=5.0))
    mean, deviation = gaussian.predict(process, _pairs(np.array([50.0]), x))
    assert mean[0] == pytest.approx(1.0, abs=0.05)
    assert deviation[0] == pytest.approx(0.5 * math.sqrt(2), rel=0.05)


def test_joint_covariance_diagonal_equals_predicted_variance() -> None:
    x, z = np.array([0.0, 2.0]), np.array([0.5, 1.0, 4.0])
    process = gaussian.condition(_pairs(x, x), np.array([0.1, 0.2]), np.full(2, 1e-4), effects=_effects(alone=0.1))
    _, deviation = gaussian.predict(process, _pairs(z, x))
    joint = gaussian.joint_covariance(process, _pairs(z, z), _pairs(z, x))
    assert np.diag(joint) == pytest.approx(deviation**2, rel=1e-6)


def test_fit_effects_grows_the_axis_that_explains_and_not_the_one_that_does_not() -> None:
    rng = np.random.default_rng(3)
    first, second = rng.uniform(0, 4, 20), rng.uniform(0, 4, 20)
    alike = np.array([np.exp(-0.5 * (c[:, None] - c[None, :]) ** 2) for c in (first, second)])
    pairs = Pairs(similarities=alike, left_tilt=np.zeros(20), right_tilt=np.zeros(20))
    start = Effects(bias=1.0, slope=0.1, per_axis=np.array([0.1, 0.1]), together=0.05, alone=0.01)
    fitted = gaussian.fit_effects(pairs, 0.8 * np.sin(first), np.full(20, 1e-4), start=start)
    assert fitted.per_axis[0] > 3 * fitted.per_axis[1]


def test_fit_effects_learns_a_slope_when_the_prior_is_reversed() -> None:
    tilt = np.linspace(-3, 0, 8)
    pairs = Pairs(similarities=np.ones((1, 8, 8)), left_tilt=tilt, right_tilt=tilt)
    start = Effects(bias=1.0, slope=0.3, per_axis=np.array([0.1]), together=0.05, alone=0.01)
    fitted = gaussian.fit_effects(pairs, -2.0 * tilt, np.full(8, 1e-4), start=start)
    process = gaussian.condition(pairs, -2.0 * tilt, np.full(8, 1e-4), effects=fitted)
    far = Pairs(similarities=np.ones((1, 1, 8)), left_tilt=np.array([-5.0]), right_tilt=tilt)
    assert gaussian.predict(process, far)[0][0] == pytest.approx(10.0, rel=0.1)


@pytest.mark.parametrize(
    ("mean", "variance", "bound"), [(0.0, 1.0, 0.5), (1.0, 0.04, -3.0), (0.0, 0.01, 0.6), (2.0, 4.0, 9.0)]
)
def test_truncated_moments_equal_numeric_integration(mean: float, variance: float, bound: float) -> None:
    x = np.linspace(bound, max(bound, mean) + 12 * math.sqrt(variance), 2_000_001)
    weight = np.exp(-0.5 * ((x - mean) ** 2 - max(bound - mean, 0.0) ** 2) / variance)
    expected = float(np.sum(x * weight) / np.sum(weight))
    spread = float(np.sum((x - expected) ** 2 * weight) / np.sum(weight))
    got_mean, got_variance = gaussian.truncated_moments(mean, variance, bound)
    assert got_mean == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert got_variance == pytest.approx(spread, rel=2e-3)


def test_truncated_moments_far_in_the_tail_stay_finite_and_above_the_bound() -> None:
    for z in (7.9, 8.1, 40.0, 1e4):
        mean, variance = gaussian.truncated_moments(0.0, 1.0, z)
        assert z < mean < z + 1 and 0 < variance < 0.02


def test_censored_sites_match_the_posterior_of_one_bound_and_leave_exact_values_alone() -> None:
    prior = np.array([[1.0, 0.8], [0.8, 1.0]])
    targets, noise = np.array([0.0, 0.7]), np.array([0.01, 0.01])
    values, variances = gaussian.censored_sites(prior, targets, noise, is_bound=np.array([False, True]))
    assert values[0] == 0.0 and variances[0] == 0.01
    inverse = np.linalg.inv(prior + np.diag(variances))
    mean = (prior @ inverse @ values)[1]
    rng = np.random.default_rng(1)
    draws = rng.multivariate_normal([0, 0], prior, size=2_000_000)
    weight = np.exp(-0.5 * draws[:, 0] ** 2 / 0.01) * (draws[:, 1] > 0.7)
    assert mean == pytest.approx(float(np.sum(draws[:, 1] * weight) / np.sum(weight)), abs=0.02)


def test_expected_excess_equals_sampling() -> None:
    mean, deviation = np.array([0.0, 1.0, -2.0]), np.array([1.0, 0.1, 0.5])
    draws = np.random.default_rng(2).standard_normal(400_000)
    sampled = [float(np.mean(np.maximum(m + d * draws - 0.5, 0.0))) for m, d in zip(mean, deviation)]
    assert gaussian.expected_excess(mean, deviation, 0.5) == pytest.approx(sampled, abs=3e-3)
