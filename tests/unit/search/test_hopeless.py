"""A trial that is far slower than the best is stopped, and what it showed is believed as a bound."""

from __future__ import annotations

import numpy as np
import pytest
from optuna.trial import TrialState

from planner.search import choose_winner, hopeless_step_s
from planner.search.axes import axes_of
from planner.search.belief import Guide
from planner.search.history import Ended, Observation, observe
from planner.search.hopeless import HOPELESS_FACTOR
from planner.search.storage import StudyKind, StudyPlace
from planner.search.study import open_study, read_history, told_of
from planner.spec import Measured, Objective, Pruned
from tests.unit.search.builders import candidate, measured, problem, trial
from tests.unit.search.landscapes import USABLE_BYTES

BEST = trial(0, candidate(micro=4, dp=8), measured(1000.0))
STEP_S = BEST.outcome.step_time_s if isinstance(BEST.outcome, Measured) else 0.0


def pruned(tokens_per_s: float) -> Pruned:
    """A trial stopped at this speed, at most."""
    ran = measured(tokens_per_s)
    return Pruned(step_time_s=ran.step_time_s, tokens_per_s=tokens_per_s, limit_s=1.0, ranks=ran.ranks)


@pytest.mark.parametrize(
    ("objective", "data_parallel_size", "share"),
    [
        (Objective.THROUGHPUT, 8, 1.0),
        (Objective.THROUGHPUT, 4, 1.0),
        (Objective.COST, 4, 2.0),
        (Objective.COST, 16, 0.5),
        (Objective.FEWEST_GPUS, 16, 1.0),
        (Objective.FEWEST_GPUS, 4, 0.0),
        (Objective.DEADLINE, 8, 0.0),
    ],
)
def test_limit_of_a_step_follows_from_the_best_trial_and_the_objective(
    objective: Objective, data_parallel_size: int, share: float
) -> None:
    limit_s = hopeless_step_s(candidate(dp=data_parallel_size), BEST, objective)
    assert limit_s == pytest.approx(share * STEP_S * HOPELESS_FACTOR)


def test_no_limit_before_anything_ran() -> None:
    assert hopeless_step_s(candidate(), None, Objective.THROUGHPUT) == 0.0


CANDIDATES = tuple(candidate(micro=2**power, zero=zero) for power in range(4) for zero in (0, 2))
SPACE = problem(CANDIDATES, tokens_per_s=(1000.0,) * len(CANDIDATES))


def _expected(row: int, observations: tuple[Observation, ...]) -> float:
    guide = Guide(SPACE)
    untried = np.ones(len(CANDIDATES), dtype=np.bool_)
    untried[[seen.row for seen in observations]] = False
    belief = guide.believe(untried, observations)
    return float(belief.mean[list(belief.rows).index(row)])


def test_pruned_trial_lowers_what_is_expected_of_its_neighbours_only_where_they_were_thought_faster() -> None:
    ran = tuple(observe(row, measured(1000.0), usable_bytes=USABLE_BYTES) for row in (0, 1, 2))
    slow = observe(6, pruned(400.0), usable_bytes=USABLE_BYTES)
    no_news = observe(6, pruned(3000.0), usable_bytes=USABLE_BYTES)
    assert slow.ended is Ended.PRUNED and slow.memory_bytes > 0
    without = _expected(7, ran)
    assert _expected(7, (*ran, slow)) < without - 0.05
    assert _expected(7, (*ran, no_news)) == pytest.approx(without)


def test_pruned_trial_is_pruned_in_optuna_and_comes_back_as_a_bound() -> None:
    axes = axes_of(SPACE.columns)
    records = (trial(0, CANDIDATES[0], measured(1000.0)), trial(1, CANDIDATES[3], pruned(500.0)))
    truth = tuple(
        told_of(one, observe(row, one.outcome, usable_bytes=USABLE_BYTES), axes=axes, problem=SPACE)
        for one, row in zip(records, (0, 3))
    )
    study = open_study(StudyPlace(kind=StudyKind.MEMORY, name="s"), axes=axes, truth=truth)
    assert [one.state for one in study.get_trials()] == [TrialState.COMPLETE, TrialState.PRUNED]
    (_, seen) = read_history(study, axes)
    assert (seen.row, seen.ended, seen.tokens_per_s) == (3, Ended.PRUNED, 500.0)


def test_pruned_trial_never_wins() -> None:
    choice = choose_winner(
        (trial(0, CANDIDATES[0], measured(1000.0)), trial(1, CANDIDATES[1], pruned(9000.0))),
        objective=Objective.THROUGHPUT,
        memory_headroom_fraction=0.05,
        usable_bytes=USABLE_BYTES,
    )
    assert choice is not None and choice.winner.number == 0
