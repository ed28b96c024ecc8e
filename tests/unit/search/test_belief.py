"""What trials teach about the untried."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.search.acquisition import acquisition, chance_of_gain, incumbent_of, next_row
from planner.search.belief import Belief, Guide
from planner.search.history import Observation, observe
from planner.search.problem import SearchProblem
from planner.spec import Candidate, Objective, Outcome
from tests.unit.search.builders import candidate, crashed, measured, out_of_memory, problem
from tests.unit.search.landscapes import USABLE_BYTES

_GRID: tuple[Candidate, ...] = tuple(
    candidate(micro=micro, gas=64 // micro, zero=zero) for zero in (0, 1, 3) for micro in (1, 2, 4, 8, 16)
)


def _seen(row: int, outcome: Outcome) -> Observation:
    return observe(row, outcome, usable_bytes=USABLE_BYTES)


def _believe(space: SearchProblem, *observations: Observation) -> tuple[Guide, Belief]:
    guide = Guide(space)
    untried = np.ones(len(space.columns), dtype=np.bool_)
    untried[[one.row for one in observations]] = False
    return guide, guide.believe(untried, observations)


def _at(belief: Belief, row: int) -> int:
    return int(np.flatnonzero(belief.rows == row)[0])


def test_first_choice_is_the_fastest_that_probably_fits() -> None:
    space = problem(_GRID[:4], tokens_per_s=(100.0, 200.0, 300.0, 400.0), memory_share=(0.2, 0.4, 0.6, 1.3))
    guide, belief = _believe(space)
    assert next_row(guide, belief, None, rng=np.random.default_rng(0)) == 2


def test_level_of_the_prior_does_not_matter_once_one_trial_ran() -> None:
    _, belief = _believe(problem(_GRID), _seen(0, measured(10.0)))
    assert np.exp(belief.mean) == pytest.approx(10.0, rel=0.3)


def test_slow_zero_stage_is_learned_from_one_micro_batch_and_carried_to_the_others() -> None:
    seen = (
        _seen(0, measured(1000.0)),
        _seen(2, measured(1000.0)),
        _seen(10, measured(600.0)),
        _seen(12, measured(610.0)),
    )
    _, belief = _believe(problem(_GRID), *seen)
    zero3, zero0 = belief.mean[_at(belief, 13)], belief.mean[_at(belief, 3)]
    assert zero3 < zero0 - 0.25


def test_out_of_memory_lowers_the_chance_of_what_needs_about_as_much() -> None:
    space = problem(_GRID, memory_share=(0.3, 0.5, 0.7, 0.88, 1.2) * 3)
    _, before = _believe(space)
    _, after = _believe(space, _seen(2, out_of_memory()))
    assert before.fits[_at(before, 7)] > 0.99 > 0.5 > after.fits[_at(after, 7)]
    assert after.fits[_at(after, 5)] > 0.9


def test_out_of_memory_counts_by_how_much() -> None:
    space = problem(_GRID, memory_share=(0.5, 0.6, 0.7, 0.8, 0.9) * 3)
    chances = []
    for excess in (0.02, 0.2, 0.6):
        _, belief = _believe(space, _seen(4, out_of_memory(excess=excess)))
        chances.append(float(belief.fits[_at(belief, 7)]))
    assert chances == sorted(chances, reverse=True) and chances[0] - chances[-1] > 0.05


def test_measured_memory_below_the_prior_opens_candidates_the_prior_called_too_large() -> None:
    space = problem(_GRID, memory_share=(0.5, 0.7, 0.9, 1.08, 1.3) * 3)
    _, before = _believe(space)
    _, after = _believe(
        space, *(_seen(row, measured(1000.0, memory_share=share)) for row, share in ((0, 0.4), (2, 0.72)))
    )
    assert before.fits[_at(before, 3)] < 0.1 and after.fits[_at(after, 3)] > 0.8


def test_crashes_lower_the_chance_of_the_axis_value_they_share_and_leave_the_rest() -> None:
    seen = (_seen(10, crashed()), _seen(12, crashed()), _seen(0, measured(1e3)), _seen(2, measured(1e3)))
    _, belief = _believe(problem(_GRID), *seen)
    assert belief.runs[_at(belief, 13)] == pytest.approx(1 / 3)
    assert belief.runs[_at(belief, 3)] == 1.0


def test_one_absurdly_slow_trial_does_not_condemn_all_that_resemble_it() -> None:
    seen = [_seen(row, measured(s)) for row, s in ((0, 1000.0), (1, 1100.0), (2, 1200.0), (5, 900.0), (6, 990.0))]
    _, calm = _believe(problem(_GRID), *seen)
    _, shaken = _believe(problem(_GRID), *seen, _seen(14, measured(1e-3)))
    for row in (10, 12):
        assert abs(shaken.mean[_at(shaken, row)] - calm.mean[_at(calm, row)]) < 0.5


def test_incumbent_must_keep_the_headroom() -> None:
    space = problem(_GRID, memory_headroom_fraction=0.05)
    over, under = _seen(0, measured(2000.0, memory_share=0.97)), _seen(1, measured(1000.0, memory_share=0.94))
    best = incumbent_of(space, (over, under))
    assert best is not None and best.utility == pytest.approx(np.log(1000.0))
    assert incumbent_of(space, (over,)) is None


def test_nothing_seems_to_fit_then_the_least_memory_is_tried() -> None:
    space = problem(_GRID[:3], memory_share=(90.0, 50.0, 70.0))
    guide, belief = _believe(space)
    assert next_row(guide, belief, None, rng=np.random.default_rng(0)) == 1


def test_longer_trials_are_worth_less_per_second() -> None:
    space = problem(_GRID[:2])
    steps = np.array([1.0, 100.0])
    guide, belief = _believe(replace(space, priors=replace(space.priors, step_time_s=steps)))
    values = acquisition(guide, belief, None)
    assert values[_at(belief, 1)] < 0.1 * values[_at(belief, 0)]


def test_chance_of_gain_is_high_for_an_unexplored_axis_and_low_after_it_disappointed() -> None:
    space = problem(_GRID, tokens_per_s=(500.0, 700.0, 900.0, 1000.0, 950.0) * 3)
    rng = np.random.default_rng(5)
    few = (_seen(3, measured(1000.0)), _seen(2, measured(900.0)))
    guide, belief = _believe(space, *few)
    best = incumbent_of(space, few)
    assert best is not None
    early = chance_of_gain(guide, belief, best, rng=rng).probability
    many = (
        *few,
        *(_seen(row, measured(speed)) for row, speed in ((8, 600.0), (9, 550.0), (13, 500.0), (14, 480.0), (4, 960.0))),
    )
    guide, belief = _believe(space, *many)
    late = chance_of_gain(guide, belief, best, rng=rng).probability
    assert early > 0.4 and late < 0.05


def test_fewest_gpus_prefers_a_smaller_world_that_fits_to_any_speed() -> None:
    space = problem(
        (candidate(dp=8), candidate(dp=4), candidate(dp=2)),
        tokens_per_s=(8000.0, 4000.0, 2000.0),
        memory_share=(0.3, 0.5, 1.5),
        objective=Objective.FEWEST_GPUS,
    )
    guide, belief = _believe(space)
    assert next_row(guide, belief, None, rng=np.random.default_rng(0)) == 1


def test_cost_prefers_speed_per_gpu() -> None:
    space = problem((candidate(dp=8), candidate(dp=2)), tokens_per_s=(7000.0, 2000.0), objective=Objective.COST)
    guide, belief = _believe(space)
    assert next_row(guide, belief, None, rng=np.random.default_rng(0)) == 1
