"""What is believed of the untried candidates: the analytic priors, corrected by every trial so far.

Speed: log(measured / predicted tokens/s) is a Gaussian process over the axes (`gaussian`, `similarity`). Memory:
log(shown / predicted bytes) is another, its size per candidate set by the prior's own interval; an out-of-memory trial
is a lower bound there. Failures of other kinds say nothing of either, but lower the chance that a candidate with the
same axis values runs at all. All of it is a pure function of the problem and the observations, so the same trials
always lead to the same belief.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from planner.search import gaussian
from planner.search.axes import Axes, axes_of
from planner.search.history import Ended, Observation
from planner.search.problem import SearchProblem
from planner.search.scoring import utilities, world_sizes
from planner.search.similarity import Features, features_of, similarities
from planner.spec._record import record
from planner.spec.columns import BoolColumn, FloatColumn, IntColumn
from planner.spec.tuning import TorchCompile
from planner.spec.tuning_columns import has_setting

Matrix: TypeAlias = NDArray[np.float64]

SHORTLIST_SIZE = 2048  # untried candidates looked at closely: the best by the prior among those that may fit
_HOPELESS = 1e-3  # a chance of fitting below this puts a candidate behind all others
_INTERVAL_DEVIATIONS = 2 * 1.645  # a 90 % interval of a normal variable, in standard deviations
_MIN_MEMORY_DEVIATION = 0.03  # log units: no memory model is surer than this before its first trial
_MEMORY_NOISE = 0.01  # log units: what the allocator does differently from run to run
_MEMORY_SHARES = (0.5, 0.3, 0.15, 0.05)  # of the variance: common, per axis, all axes together, its own

# Medians of the prior over the errors of the analytic model of speed, in log units. The bias is left wide: only the
# order matters, and on an unknown machine (a CPU above all) the level may be off by several times.
_BIAS = 2.0
_SLOPE = 0.3
_PER_AXIS = 0.15
_TOGETHER = 0.10
_ALONE = 0.015
# A trial slower than the best-predicted one by more than e^3 against its prior (swapping, a broken kernel, a stray
# process) is only known to be slow: taken at face value, one such trial would make every other effect look like noise.
_WORST_RESIDUAL = 3.0
_BOUND_ERROR = 0.05  # of a pruned trial's speed, taken at its bound: two steps, of which the quicker counts
_MAX_FITTED = 120  # trials from which the effects' sizes are fitted: the fastest ones, when there are more


@record
class Belief:
    """Of the candidates in `rows` (untried ones): `mean` and `deviation` of the log objective, and the chances that
    memory suffices with the headroom and that it runs at all. `covariance_of` needs `process` and `cross`."""

    rows: IntColumn
    mean: FloatColumn
    deviation: FloatColumn
    fits: FloatColumn
    runs: FloatColumn
    process: gaussian.Conditioned | None  # None before the first measurement
    observed_rows: IntColumn

    @property
    def eligible(self) -> FloatColumn:
        """The chance that a trial would end as one that may win."""
        return self.fits * self.runs


class Guide:
    """The problem, with what does not change from trial to trial computed once."""

    def __init__(self, problem: SearchProblem) -> None:
        self.problem = problem
        self._features: Features = features_of(problem.columns, num_layers=problem.num_layers)
        self._worlds = world_sizes(problem.columns)
        self.compiles: BoolColumn = ~has_setting(problem.columns.tuning, "torch_compile", TorchCompile.NONE)
        self._log_prior = np.log(problem.priors.tokens_per_s)
        self._tilt = self._log_prior - float(np.max(self._log_prior))
        interval = np.log(problem.priors.high_bytes / problem.priors.low_bytes) / _INTERVAL_DEVIATIONS
        self._memory_deviation = np.maximum(interval, _MIN_MEMORY_DEVIATION)
        self._room = np.log(problem.limit_bytes / problem.priors.memory_bytes)  # log units left below the limit
        self.prior_utility = utilities(self._log_prior, self._worlds, problem.objective, target=problem.target)
        self.prior_fits = gaussian.normal_cdf(self._room / self._memory_deviation)

    @cached_property
    def axes(self) -> Axes:
        """The candidates as tuples of parameters."""
        return axes_of(self.problem.columns, among=self.problem.legal)

    def order(self) -> IntColumn:
        """All rows in the order of the prior: those likely to fit, best first, then the others, least memory first."""
        likely = self.prior_fits >= 0.5
        second = np.where(likely, -self.prior_utility, self.problem.priors.memory_bytes)
        return np.lexsort((second, ~likely))

    def shortlist(self, untried: BoolColumn) -> IntColumn:
        """The untried rows worth a closer look."""
        rows = np.flatnonzero(untried)
        order = np.lexsort((-self.prior_utility[rows], self.prior_fits[rows] < _HOPELESS))
        return rows[order[:SHORTLIST_SIZE]]

    def believe(self, untried: BoolColumn, observations: tuple[Observation, ...]) -> Belief:
        """The belief about the shortlist of `untried` after `observations`."""
        rows = self.shortlist(untried)
        process, observed_rows = self._speed(observations)
        mean, deviation = self._predict_speed(rows, process, observed_rows)
        return Belief(
            rows=rows,
            mean=mean,
            deviation=deviation,
            fits=self._chance_of_fitting(rows, observations),
            runs=self._chance_of_running(rows, observations),
            process=process,
            observed_rows=observed_rows,
        )

    def _chance_of_running(self, rows: IntColumn, observations: tuple[Observation, ...]) -> FloatColumn:
        if not any(seen.ended is Ended.FAILED for seen in observations):
            return np.ones(len(rows))
        return chance_of_running(self.axes, rows, observations)

    def covariance_of(self, belief: Belief, members: IntColumn) -> Matrix:
        """Posterior covariance of the log objective among some members (indexes into the belief's rows). ValueError
        for a belief without a measurement."""
        if belief.process is None:
            raise ValueError("before the first measurement there is no posterior")
        rows = belief.rows[members]
        within, cross = self._pairs(rows, rows), self._pairs(rows, belief.observed_rows)
        return gaussian.joint_covariance(belief.process, within, cross)

    def _pairs(self, left: IntColumn, right: IntColumn) -> gaussian.Pairs:
        return gaussian.Pairs(
            similarities=similarities(self._features.take(left), self._features.take(right)),
            left_tilt=self._tilt[left],
            right_tilt=self._tilt[right],
        )

    def _speed(self, observations: tuple[Observation, ...]) -> tuple[gaussian.Conditioned | None, IntColumn]:
        """The process of log(measured / predicted), and the rows it was conditioned on.

        A pruned trial is a bound from above: it says nothing where the others predict less, and where they predict more
        it counts as a measurement at its bound, with a wide error.
        """
        measured = [seen for seen in observations if seen.ended is Ended.MEASURED]
        bounds = [seen for seen in observations if seen.ended is Ended.PRUNED]
        process, rows = self._conditioned(measured)
        if process is None or not bounds:
            return process, rows
        places = np.array([seen.row for seen in bounds], dtype=np.int64)
        expected = gaussian.predict(process, self._pairs(places, rows))[0] + self._log_prior[places]
        telling = [
            replace(seen, standard_error_fraction=_BOUND_ERROR)
            for seen, log_speed in zip(bounds, expected)
            if log_speed > math.log(seen.tokens_per_s)
        ]
        return self._conditioned([*measured, *telling]) if telling else (process, rows)

    def _conditioned(self, measured: list[Observation]) -> tuple[gaussian.Conditioned | None, IntColumn]:
        rows = np.array([seen.row for seen in measured], dtype=np.int64)
        if not measured:
            return None, rows
        residuals = np.array([math.log(seen.tokens_per_s) for seen in measured]) - self._log_prior[rows]
        targets = np.maximum(residuals, np.max(residuals) - _WORST_RESIDUAL)
        noise = np.array([seen.standard_error_fraction**2 for seen in measured])
        pairs = self._pairs(rows, rows)
        start = gaussian.Effects(
            bias=_BIAS,
            slope=_SLOPE,
            per_axis=np.full(self._features.num_axes, _PER_AXIS),
            together=_TOGETHER,
            alone=_ALONE,
        )
        best = np.argsort(-targets - self._log_prior[rows], kind="stable")[:_MAX_FITTED]
        effects = gaussian.fit_effects(pairs.take(best), targets[best], noise[best], start=start)
        return gaussian.condition(pairs, targets, noise, effects=effects), rows

    def _predict_speed(
        self, rows: IntColumn, process: gaussian.Conditioned | None, observed_rows: IntColumn
    ) -> tuple[FloatColumn, FloatColumn]:
        if process is None:
            # Before the first measurement the bias is unknown but common to all: it does not enter the comparison.
            per_axis = self._features.num_axes * _PER_AXIS**2
            variance = per_axis + _TOGETHER**2 + _ALONE**2 + (_SLOPE * self._tilt[rows]) ** 2
            return self.prior_utility[rows], np.sqrt(variance)
        correction, deviation = gaussian.predict(process, self._pairs(rows, observed_rows))
        return self.prior_utility[rows] + correction, deviation

    def _chance_of_fitting(self, rows: IntColumn, observations: tuple[Observation, ...]) -> FloatColumn:
        seen = [one for one in observations if one.ended in (Ended.MEASURED, Ended.PRUNED, Ended.OUT_OF_MEMORY)]
        if not seen:
            return self.prior_fits[rows]
        observed = np.array([one.row for one in seen], dtype=np.int64)
        is_bound = np.array([one.ended is Ended.OUT_OF_MEMORY for one in seen])
        shown = np.array([one.memory_bytes for one in seen])
        targets = np.log(shown / self.problem.priors.memory_bytes[observed])
        prior = self._memory_covariance(observed, observed) + np.diag(self._own_memory_variance(observed))
        noise = np.full(len(seen), _MEMORY_NOISE**2)
        values, variances = gaussian.censored_sites(prior, targets, noise, is_bound=is_bound)
        inverse = np.linalg.inv(prior + np.diag(variances))
        cross = self._memory_covariance(rows, observed)
        mean = cross @ (inverse @ values)
        explained = np.einsum("ij,jk,ik->i", cross, inverse, cross, optimize=True)
        variance = np.maximum(self._memory_deviation[rows] ** 2 - explained, _MEMORY_NOISE**2)
        return gaussian.normal_cdf((self._room[rows] - mean) / np.sqrt(variance))

    def _memory_covariance(self, left: IntColumn, right: IntColumn) -> Matrix:
        """Shared part of the covariance of memory residuals; each candidate's size is its prior's own deviation."""
        alike = similarities(self._features.take(left), self._features.take(right))
        common, per_axis, together, _ = _MEMORY_SHARES
        mean = np.mean(alike, axis=0) if len(alike) else np.ones(alike.shape[1:])
        size = np.outer(self._memory_deviation[left], self._memory_deviation[right])
        matrix: Matrix = size * (common + per_axis * mean + together * np.prod(alike, axis=0))
        return matrix

    def _own_memory_variance(self, rows: IntColumn) -> FloatColumn:
        own: FloatColumn = _MEMORY_SHARES[3] * self._memory_deviation[rows] ** 2
        return own


_RAN = (Ended.MEASURED, Ended.PRUNED, Ended.OUT_OF_MEMORY)


def chance_of_running(axes: Axes, rows: IntColumn, observations: tuple[Observation, ...]) -> FloatColumn:
    """The chance that each candidate neither crashes nor hangs: of its axis values, the one with the worst record.

    Laplace's rule with one success assumed: (ran + 1) / (ran + failed + 1). An out-of-memory counts as a run: the
    program worked, the memory did not.
    """
    chance: FloatColumn = np.ones(len(rows))
    failed = np.array([seen.row for seen in observations if seen.ended is Ended.FAILED], dtype=np.int64)
    ran = np.array([seen.row for seen in observations if seen.ended in _RAN], dtype=np.int64)
    for axis in axes.axes:
        num_failed = np.bincount(axis.codes[failed], minlength=len(axis.values))
        num_ran = np.bincount(axis.codes[ran], minlength=len(axis.values))
        chance = np.minimum(chance, ((num_ran + 1) / (num_ran + num_failed + 1))[axis.codes[rows]])
    return chance
