"""Optuna samplers over enumerated candidates.

Optuna samples its axes one by one, so most tuples it proposes would be illegal. Here every sampler proposes the tuple
of ONE legal, untried candidate, all axes at once (relative sampling). The study thus holds legal tuples of independent
axes only and can be read, plotted and continued by any other sampler: `tpe` is Optuna's own, whose proposals are moved
to the nearest candidate that may be tried; `random` draws among those; `guided` asks the belief; `sweep` goes in the
order of the prior.

A proposal is a pure function of the problem, the seed and the trials that ended: no generator lives from one trial to
the next, so a resumed search goes on exactly as an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.trial import FrozenTrial

from planner.search.acquisition import incumbent_of, next_row
from planner.search.belief import Guide
from planner.search.history import Ended, Observation
from planner.search.problem import SearchProblem
from planner.search.pruning import proven_out_of_memory
from planner.search.study import distributions_of, read_history
from planner.spec.columns import BoolColumn

Choose: TypeAlias = Callable[[optuna.Study, FrozenTrial, tuple[Observation, ...]], int]


def open_rows(problem: SearchProblem, observations: tuple[Observation, ...]) -> BoolColumn:
    """The candidates still worth a trial: not tried, not running elsewhere, not proven to run out of memory."""
    untried = np.ones(len(problem.columns), dtype=np.bool_)
    untried[[seen.row for seen in observations]] = False
    if problem.machine_is_shared:
        return untried
    return untried & ~proven_out_of_memory(problem.columns, observations)


def num_ended(observations: tuple[Observation, ...]) -> int:
    """How many trials ended: what a proposal's random numbers are seeded with, beside the seed."""
    return sum(seen.ended is not Ended.RUNNING for seen in observations)


class CandidateSampler(BaseSampler):  # type: ignore[misc]  # optuna's classes are untyped to mypy here
    """Proposes one candidate as a tuple of all axes; which one is `choose`'s decision."""

    def __init__(self, guide: Guide, choose: Choose) -> None:
        self._guide = guide
        self._choose = choose

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """All axes, always: a candidate is proposed whole."""
        return dict(distributions_of(self._guide.axes))

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The axis values of the chosen candidate."""
        observations = read_history(study, self._guide.axes, besides=trial.number)
        if not np.any(open_rows(self._guide.problem, observations)):
            return dict(self._guide.axes.values_at(_taken_row(observations)))
        return dict(self._guide.axes.values_at(self._choose(study, trial, observations)))

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Never asked for a parameter of ours; a parameter that is no axis has no candidate."""
        raise ValueError(f"{param_name!r} is not an axis of this search")


def _taken_row(observations: tuple[Observation, ...]) -> int:
    """A candidate that somebody has: what is left to propose when another planner took the last open one between this
    planner's look and its proposal. Whoever asked sees it taken, and looks again."""
    ended = [seen.row for seen in observations if seen.ended is not Ended.RUNNING]
    return ended[0] if ended else observations[0].row


def sampler_for(guide: Guide) -> CandidateSampler:
    """The sampler that the policy names; small spaces are swept whatever it names."""
    if guide.problem.is_sweep:
        return CandidateSampler(guide, _sweep(guide))
    makers = {"guided": _guided, "tpe": _tpe, "random": _random}
    return CandidateSampler(guide, makers[guide.problem.policy.sampler](guide))


def generator(problem: SearchProblem, observations: tuple[Observation, ...]) -> np.random.Generator:
    """The random numbers of the next decision."""
    return np.random.default_rng([problem.seed % 2**63, num_ended(observations)])


def _guided(guide: Guide) -> Choose:
    def choose(study: optuna.Study, trial: FrozenTrial, observations: tuple[Observation, ...]) -> int:
        belief = guide.believe(open_rows(guide.problem, observations), observations)
        incumbent = incumbent_of(guide.problem, observations)
        return next_row(guide, belief, incumbent, rng=generator(guide.problem, observations))

    return choose


def _sweep(guide: Guide) -> Choose:
    order = guide.order()

    def choose(study: optuna.Study, trial: FrozenTrial, observations: tuple[Observation, ...]) -> int:
        return int(order[open_rows(guide.problem, observations)[order]][0])

    return choose


def _random(guide: Guide) -> Choose:
    def choose(study: optuna.Study, trial: FrozenTrial, observations: tuple[Observation, ...]) -> int:
        rows = np.flatnonzero(open_rows(guide.problem, observations))
        return int(generator(guide.problem, observations).choice(rows))

    return choose


def _tpe(guide: Guide) -> Choose:
    """Optuna's TPE on the independent axes, started after a quarter of the trials; a tuple that is illegal or was
    tried becomes the nearest candidate, equal distances by lot."""
    num_startup = min(10, max(guide.problem.policy.max_trials // 4, 3))

    def choose(study: optuna.Study, trial: FrozenTrial, observations: tuple[Observation, ...]) -> int:
        rng = generator(guide.problem, observations)
        inner = TPESampler(seed=int(rng.integers(2**32)), n_startup_trials=num_startup)
        inner.before_trial(study, trial)
        space = distributions_of(guide.axes)
        wanted = {name: inner.sample_independent(study, trial, name, space[name]) for name in space}
        distances = guide.axes.distances_to(wanted)
        rows = np.flatnonzero(open_rows(guide.problem, observations))
        nearest = rows[distances[rows] <= np.min(distances[rows]) + 1e-9]
        return int(rng.choice(nearest))

    return choose
