"""What to try next, and whether trying more is worth it: two questions to one belief."""

from __future__ import annotations

import math

import numpy as np

from planner.search import gaussian
from planner.search.belief import Belief, Guide
from planner.search.history import Ended, Observation
from planner.search.problem import SearchProblem
from planner.search.scoring import utilities, world_sizes
from planner.spec._record import record
from planner.spec.columns import FloatColumn

# What a trial costs beyond its steps: forking ranks, building model and engine (5 to 10 s from a warm parent on an
# H200). A constant and not the measured duration, so that the order of trials does not depend on the mood of a clock.
TRIAL_OVERHEAD_S = 7.0

COMPILE_S = 30.0  # of a trial that compiles, with what earlier ones left in the cache

GAIN_CHANCE = 0.05  # stop when a real gain is less likely than this
MIN_TRIALS_BEFORE_END = 4  # measured ones: fewer say too little about how wrong the analytic model is
_MIN_GAIN_FRACTION = 0.005  # a smaller gain is none, however exact the measurement
_MAX_GAIN_FRACTION = 0.03  # a larger one is worth a trial, however noisy the machine: noise is no reason to stop
_CONTENDERS = 256  # of the shortlist, those with the highest plausible speed
_SAMPLES = 512


@record
class Incumbent:
    """The best trial so far that may win: its log objective and the standard error of that."""

    utility: float
    standard_error: float


@record
class GainChance:
    """The chance that some untried candidate beats the incumbent by more than `tolerance_fraction`."""

    probability: float
    tolerance_fraction: float


def incumbent_of(problem: SearchProblem, observations: tuple[Observation, ...]) -> Incumbent | None:
    """The best of the trials that ran and keep the headroom; None while there is none."""
    eligible = [
        seen for seen in observations if seen.ended is Ended.MEASURED and seen.memory_bytes <= problem.limit_bytes
    ]
    if not eligible:
        return None
    rows = np.array([seen.row for seen in eligible])
    speeds = np.log([seen.tokens_per_s for seen in eligible])
    worlds = world_sizes(problem.columns.take(rows))
    values = utilities(speeds, worlds, problem.objective, target=problem.target)
    best = int(np.argmax(values))
    return Incumbent(utility=float(values[best]), standard_error=eligible[best].standard_error_fraction)


def acquisition(guide: Guide, belief: Belief, incumbent: Incumbent | None) -> FloatColumn:
    """Expected improvement per second of trial, of each row of the belief.

    Improvement of the log objective over the incumbent (before there is one: over the median candidate, which favours
    what is both fast and likely to fit), times the chance to end as a trial that may win, over the time it takes.
    """
    best = incumbent.utility if incumbent is not None else float(np.median(belief.mean))
    gain = gaussian.expected_excess(belief.mean, belief.deviation, best)
    steps = guide.problem.policy.steps + 1  # the warm-up step takes time too
    seconds = TRIAL_OVERHEAD_S + steps * guide.problem.priors.step_time_s[belief.rows]
    seconds = seconds + COMPILE_S * guide.compiles[belief.rows]
    return gain * belief.eligible / seconds


def next_row(guide: Guide, belief: Belief, incumbent: Incumbent | None, *, rng: np.random.Generator) -> int:
    """The row to try: the highest acquisition, equal ones by lot. Where no trial promises anything (nothing seems to
    fit), the one that needs the least memory."""
    values = acquisition(guide, belief, incumbent)
    highest = float(np.max(values))
    if not highest > 0.0:
        return int(belief.rows[np.argmin(guide.problem.priors.memory_bytes[belief.rows])])
    equal = np.flatnonzero(values >= highest * (1.0 - 1e-9))
    return int(belief.rows[rng.choice(equal)])


def chance_of_gain(guide: Guide, belief: Belief, incumbent: Incumbent, *, rng: np.random.Generator) -> GainChance:
    """Monte Carlo over the joint posterior of the untried contenders: speed correlated, eligibility by its chance.

    The tolerance is two standard errors of the difference of two measurements, within 0.5 and 3 %.
    """
    noise = 2.0 * math.sqrt(2.0) * incumbent.standard_error
    tolerance = min(max(noise, _MIN_GAIN_FRACTION), _MAX_GAIN_FRACTION)
    if belief.process is None:
        return GainChance(probability=1.0, tolerance_fraction=tolerance)
    plausible = belief.mean + 2.0 * belief.deviation + np.log(np.maximum(belief.eligible, 1e-9))
    members = np.argsort(-plausible, kind="stable")[:_CONTENDERS]
    spread = guide.covariance_of(belief, members)
    factor = np.linalg.cholesky(spread + 1e-9 * np.eye(len(members)))
    normal = rng.standard_normal((_SAMPLES, len(members))) @ factor.T
    # The sizes of the effects were themselves fitted from few trials: a t-process with as many degrees of freedom.
    num_seen = len(belief.observed_rows)
    stretch = np.sqrt(num_seen / rng.chisquare(num_seen, _SAMPLES))
    draws = belief.mean[members] + normal * stretch[:, None]
    may_win = rng.random((_SAMPLES, len(members))) < belief.eligible[members]
    beaten = np.any((draws > incumbent.utility + tolerance) & may_win, axis=1)
    return GainChance(probability=float(np.mean(beaten)), tolerance_fraction=tolerance)
