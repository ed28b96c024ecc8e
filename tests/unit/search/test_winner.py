"""Who wins, and why not the others."""

from __future__ import annotations

import pytest

from planner.search import choose_winner
from planner.search.winner import Choice
from planner.spec import Objective, TrialRecord
from tests.unit.search.builders import candidate, crashed, measured, out_of_memory, trial
from tests.unit.search.landscapes import USABLE_BYTES


def _choose(*trials: TrialRecord, objective: Objective = Objective.THROUGHPUT) -> Choice | None:
    return choose_winner(trials, objective=objective, memory_headroom_fraction=0.05, usable_bytes=USABLE_BYTES)


def _winner(*trials: TrialRecord, objective: Objective = Objective.THROUGHPUT) -> int:
    choice = _choose(*trials, objective=objective)
    assert choice is not None
    return choice.winner.number


A, B, C = candidate(micro=1, gas=4), candidate(micro=2, gas=2), candidate(micro=4)


def test_fastest_wins_and_the_next_is_runner_up() -> None:
    choice = _choose(trial(0, A, measured(100)), trial(1, B, measured(300)), trial(2, C, measured(200)))
    assert choice is not None and choice.runner_up is not None
    assert (choice.winner.number, choice.runner_up.number, choice.num_tied) == (1, 2, 1)


def test_trial_without_headroom_never_wins() -> None:
    assert _winner(trial(0, A, measured(900, memory_share=0.951)), trial(1, B, measured(100, memory_share=0.949))) == 1


def test_allocator_peak_above_the_memory_seen_at_the_end_counts() -> None:
    given_back = measured(900, memory_share=0.5)
    rank = given_back.ranks[0]
    peaked = type(given_back)(
        step_time_s=1.0,
        step_time_spread_s=0.0,
        tokens_per_s=900,
        ranks=(
            type(rank)(
                **{**{n: getattr(rank, n) for n in rank.__dataclass_fields__}, "peak_reserved_bytes": USABLE_BYTES}
            ),
        ),
    )
    assert _choose(trial(0, A, peaked)) is None


@pytest.mark.parametrize("spread", [0.02, 0.3])
def test_tie_within_noise_goes_to_less_memory_but_never_costs_more_than_one_percent(spread: float) -> None:
    fast = trial(0, A, measured(1000, memory_share=0.9, spread=spread))
    lean = trial(1, B, measured(992, memory_share=0.4, spread=spread))
    slow = trial(2, C, measured(985, memory_share=0.2, spread=spread))
    assert _winner(fast, lean, slow) == 1


def test_difference_beyond_noise_is_no_tie() -> None:
    fast = trial(0, A, measured(1000, memory_share=0.9, spread=0.0))
    lean = trial(1, B, measured(991, memory_share=0.4, spread=0.0))
    assert _winner(fast, lean) == 0


def test_tie_with_equal_memory_goes_to_the_simpler_layout() -> None:
    layouts = [
        candidate(dp=2, zero=2),
        candidate(tp=2),
        candidate(pp=2),
        candidate(dp=2),
        candidate(dp=2, checkpointing="full"),
    ]
    trials = [trial(number, layout, measured(1000)) for number, layout in enumerate(layouts)]
    assert _winner(*trials) == 3
    assert _winner(*reversed(trials)) == 3


def test_nothing_measured_is_no_winner() -> None:
    assert _choose() is None
    assert _choose(trial(0, A, out_of_memory()), trial(1, B, crashed()), trial(2, C, measured(0.0))) is None


def test_objectives_weigh_gpus() -> None:
    big, small = trial(0, candidate(dp=8), measured(7000)), trial(1, candidate(dp=2), measured(2000))
    assert _winner(big, small) == 0
    assert _winner(big, small, objective=Objective.COST) == 1
    assert _winner(big, small, objective=Objective.FEWEST_GPUS) == 1


def test_fewest_gpus_takes_the_faster_of_equal_size() -> None:
    slow, fast = trial(0, candidate(dp=2), measured(2000)), trial(1, candidate(tp=2), measured(3000))
    assert _winner(slow, fast, objective=Objective.FEWEST_GPUS) == 1
