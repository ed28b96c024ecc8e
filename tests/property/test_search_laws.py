"""Laws of the search on spaces nobody chose."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost import Failures, Target
from planner.search import SearchProblem, choose_winner, run_search
from planner.search.acquisition import next_row
from planner.search.belief import Guide
from planner.search.history import observe
from planner.search.samplers import open_rows
from planner.spec import Candidate, Objective, Outcome, TrialPolicy, TrialRecord
from planner.spec._record import record
from tests.unit.search.builders import candidate, crashed, measured, out_of_memory, problem, trial
from tests.unit.search.landscapes import USABLE_BYTES, memory_ports

_ALL = tuple(
    candidate(micro=micro, gas=8 // micro, zero=zero, checkpointing=checkpointing)
    for zero, micro, checkpointing in product((0, 1, 3), (1, 2, 4, 8), ("none", "selective", "full"))
)


@record
class _World:
    """A space and how each of its candidates would end."""

    problem: SearchProblem
    outcomes: dict[str, Outcome]

    def evaluate(self, number: int, which: Candidate) -> Outcome:
        return self.outcomes[which.key]

    def run(self, done: tuple[TrialRecord, ...] = ()) -> tuple[TrialRecord, ...]:
        return run_search(self.problem, ports=memory_ports(self), done=done).trials


_shares = st.floats(0.05, 3.0)


@st.composite
def _worlds(draw: st.DrawFn, *, max_trials: st.SearchStrategy[int]) -> _World:
    """Memory grows with the micro-batch within a layout (as it does); everything else is free."""
    some = tuple(draw(st.lists(st.sampled_from(_ALL), min_size=1, max_size=12, unique=True)))
    slopes = {(one.zero_stage, str(one.activation_checkpointing)): draw(_shares) for one in some}
    outcomes: dict[str, Outcome] = {}
    for one in some:
        base = slopes[one.zero_stage, str(one.activation_checkpointing)]
        accumulates = one.batch.gradient_accumulation_steps > 1
        share = base * (0.3 + 0.1 * one.batch.micro_batch_size) + (0.2 if accumulates else 0.0)
        runs = measured(draw(st.floats(1.0, 1e6)), memory_share=min(share, 1.0))
        failed = draw(st.integers(0, 9)) == 0
        outcomes[one.key] = crashed() if failed else (out_of_memory(excess=share - 1) if share > 1 else runs)
    space = problem(
        some,
        tokens_per_s=tuple(draw(st.floats(1.0, 1e6)) for _ in some),
        memory_share=tuple(draw(_shares) for _ in some),
        policy=TrialPolicy(max_trials=draw(max_trials), sampler=draw(st.sampled_from(["guided", "tpe", "random"]))),
        seed=draw(st.integers(0, 2**64)),
        objective=draw(st.sampled_from(list(Objective))),
    )
    space = replace(space, target=_target(draw(st.floats(1.0, 1e6))))
    return _World(problem=space, outcomes=outcomes)


def _target(tokens_per_s: float) -> Target:
    """About so many tokens/s are needed (a little more, for failures)."""
    failures = Failures(checkpoint_bytes=1e9)
    return Target(tokens=tokens_per_s * 1e5, within_s=1e5, failures=failures, gpus_per_node=8)


def _best_key(world: _World, trials: tuple[TrialRecord, ...]) -> str:
    choice = choose_winner(
        trials,
        objective=world.problem.objective,
        memory_headroom_fraction=0.05,
        usable_bytes=USABLE_BYTES,
        target=world.problem.target,
    )
    return choice.winner.key if choice else ""


@given(_worlds(max_trials=st.integers(12, 20)))
@settings(max_examples=300, deadline=None)
def test_with_enough_trials_the_search_equals_brute_force(world: _World) -> None:
    everything = tuple(
        trial(number, one, world.outcomes[one.key]) for number, one in enumerate(_ALL) if one.key in world.outcomes
    )
    assert _best_key(world, world.run()) == _best_key(world, everything)


@given(_worlds(max_trials=st.integers(0, 8)), st.integers(0, 8))
@settings(max_examples=300, deadline=None)
def test_trials_are_legal_distinct_within_the_limit_and_the_same_after_any_interruption(
    world: _World, cut: int
) -> None:
    trials = world.run()
    assert len(trials) <= world.problem.policy.max_trials
    assert len({one.key for one in trials}) == len(trials) and {one.key for one in trials} <= world.outcomes.keys()
    assert world.run(trials[:cut]) == trials


_outcomes = st.one_of(
    st.builds(lambda speed, share: measured(speed, memory_share=share), st.floats(1e-9, 1e12), st.floats(1e-6, 1.0)),
    st.builds(lambda excess: out_of_memory(excess=excess), st.floats(0.0, 1e4)),
    st.builds(crashed),
)


@given(st.lists(_outcomes, min_size=0, max_size=10), st.floats(1e-3, 1e9), st.data())
@settings(max_examples=300, deadline=None)
def test_belief_is_finite_whatever_the_trials_say(outcomes: list[Outcome], level: float, data: st.DataObject) -> None:
    speeds = tuple(level * data.draw(st.floats(1e-3, 1e3)) for _ in range(12))
    space = problem(_ALL[:12], tokens_per_s=speeds, memory_share=tuple(data.draw(_shares) for _ in range(12)))
    space = replace(space, machine_is_shared=True)
    seen = tuple(observe(row, one, usable_bytes=USABLE_BYTES) for row, one in enumerate(outcomes))
    guide = Guide(space)
    belief = guide.believe(open_rows(space, seen), seen)
    for column in (belief.mean, belief.deviation, belief.fits, belief.runs):
        assert np.all(np.isfinite(column))
    assert np.all((belief.eligible >= 0) & (belief.eligible <= 1) & (belief.deviation > 0))
    assert next_row(guide, belief, None, rng=np.random.default_rng(0)) >= len(outcomes)
