"""The loop: same seed, same plan; nothing lost, nothing repeated; it ends and says why."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import pytest

from planner.errors import InputError, Interrupted
from planner.search import Clock, SearchPorts, StudyKind, StudyPlace, expected_left_s, preview_search, run_search
from planner.search.history import row_of
from planner.spec import Candidate, Measured, Outcome, TrialPolicy, TrialRecord
from tests.unit.search.builders import candidate, crashed, measured, out_of_memory, problem, trial
from tests.unit.search.landscapes import (
    FOUR_PROCESSES,
    ONE_GPU,
    ONE_NODE,
    Landscape,
    TableEvaluator,
    find_row,
    make_landscape,
    memory_ports,
)

_Answers: TypeAlias = dict[str, Outcome | KeyboardInterrupt]
_SAMPLERS = ["guided", "tpe", "random"]


def _run(landscape: Landscape, *, done: tuple[TrialRecord, ...] = (), **settings: object) -> tuple[TrialRecord, ...]:
    space = landscape.problem(**settings)  # type: ignore[arg-type]
    return run_search(space, ports=memory_ports(TableEvaluator(landscape)), done=done).trials


@pytest.mark.parametrize("sampler", _SAMPLERS)
def test_same_seed_and_measurements_give_the_same_trials(sampler: str) -> None:
    landscape = make_landscape(ONE_NODE, seed=3)
    first, second = (_run(landscape, sampler=sampler, max_trials=9, seed=11) for _ in range(2))
    assert first == second


def test_another_seed_gives_other_random_trials() -> None:
    landscape = make_landscape(ONE_NODE, seed=3)
    first, second = (_run(landscape, sampler="random", max_trials=9, seed=seed) for seed in (1, 2))
    assert [one.key for one in first] != [one.key for one in second]


@pytest.mark.parametrize("sampler", _SAMPLERS)
def test_resumed_after_any_prefix_goes_on_as_if_never_stopped(sampler: str) -> None:
    landscape = make_landscape(ONE_NODE, seed=4)
    whole = _run(landscape, sampler=sampler, max_trials=8, seed=5, early_end=False)
    for length in range(len(whole) + 1):
        assert _run(landscape, sampler=sampler, max_trials=8, seed=5, early_end=False, done=whole[:length]) == whole


@pytest.mark.parametrize("sampler", _SAMPLERS)
def test_no_candidate_is_tried_twice_and_all_are_of_the_space(sampler: str) -> None:
    landscape = make_landscape(FOUR_PROCESSES, seed=1)
    trials = _run(landscape, sampler=sampler, max_trials=20, early_end=False)
    rows = [row_of(landscape.columns, one) for one in trials]
    assert None not in rows and len(set(rows)) == len(rows) == 20
    assert [one.number for one in trials] == list(range(20))


def test_small_space_is_swept_in_the_order_of_the_prior_whatever_the_sampler() -> None:
    some = tuple(candidate(micro=micro, gas=16 // micro) for micro in (1, 2, 4, 8))
    space = problem(some, tokens_per_s=(100.0, 400.0, 300.0, 500.0), memory_share=(0.2, 0.3, 0.4, 1.4))
    evaluator = _Scripted({one.key: measured(100.0) for one in some})
    result = run_search(replace(space, policy=TrialPolicy(max_trials=4, sampler="tpe")), ports=_ports(evaluator))
    assert [one.key for one in result.trials] == [some[row].key for row in (1, 2, 0, 3)]
    assert result.stopped_because == "all 4 candidates were tried"


def test_swept_space_skips_what_a_smaller_one_proved() -> None:
    some = tuple(candidate(micro=micro, gas=64 // micro) for micro in (1, 2, 4, 8))
    space = problem(some, memory_share=(0.5, 1.1, 1.3, 1.6), policy=TrialPolicy(max_trials=4))
    answers: _Answers = {some[0].key: measured(10.0), some[1].key: out_of_memory()}
    result = run_search(space, ports=_ports(_Scripted(answers)))
    assert [one.key for one in result.trials] == [some[0].key, some[1].key]
    assert (result.num_pruned, result.num_untried, result.num_out_of_memory) == (2, 0, 1)
    assert "proven to run out of memory" in result.stopped_because


def test_every_end_that_is_no_bug_lets_the_search_go_on() -> None:
    some = tuple(candidate(zero=zero) for zero in (0, 1, 2, 3))
    answers: _Answers = dict(zip((one.key for one in some), (out_of_memory(), crashed(), measured(5.0), measured(7.0))))
    result = run_search(problem(some, policy=TrialPolicy(max_trials=4)), ports=_ports(_Scripted(answers)))
    assert result.choice is not None and result.choice.winner.key == some[3].key and len(result.trials) == 4


def test_guided_finds_the_best_of_made_up_machines_with_few_trials() -> None:
    regrets = []
    for seed in range(8):
        landscape = make_landscape(ONE_GPU, seed=seed)
        space = landscape.problem(max_trials=int(0.15 * len(landscape.columns)), seed=seed)
        result = run_search(space, ports=memory_ports(TableEvaluator(landscape, noise_seed=seed)))
        assert result.choice is not None
        regrets.append(landscape.regret(find_row(landscape.columns, result.choice.winner.candidate)))
    assert float(np.median(regrets)) <= 0.01


def test_guided_gets_over_a_prior_that_has_the_order_reversed() -> None:
    regrets = []
    for seed in range(5):
        landscape = make_landscape(ONE_NODE, seed=seed)
        reversed_speed = 1e9 / landscape.priors.tokens_per_s
        priors = replace(landscape.priors, tokens_per_s=reversed_speed, step_time_s=1e5 / reversed_speed)
        space = landscape.problem(max_trials=24, seed=seed, priors=priors, early_end=False)
        result = run_search(space, ports=memory_ports(TableEvaluator(landscape)))
        assert result.choice is not None
        regrets.append(landscape.regret(find_row(landscape.columns, result.choice.winner.candidate)))
    assert float(np.median(regrets)) < 0.15, regrets


def test_search_ends_early_and_says_why_when_nothing_is_likely_to_be_better() -> None:
    landscape = make_landscape(ONE_NODE, seed=2)
    result = run_search(landscape.problem(max_trials=60), ports=memory_ports(TableEvaluator(landscape)))
    assert 4 <= len(result.trials) < 40 and "better is below 5%" in result.stopped_because
    assert result.num_untried > 300


def test_a_noisy_machine_is_no_reason_to_stop_for_gains_worth_having() -> None:
    landscape = make_landscape(ONE_NODE, seed=2)
    table = TableEvaluator(landscape)

    class NoisySteps:
        def evaluate(self, number: int, candidate: Candidate) -> Outcome:
            outcome = table.evaluate(number, candidate)  # two standard errors of a difference: 32 %
            return replace(outcome, step_time_spread_s=0.2) if isinstance(outcome, Measured) else outcome

    result = run_search(landscape.problem(max_trials=60), ports=memory_ports(NoisySteps()))
    quiet = run_search(landscape.problem(max_trials=60), ports=memory_ports(table))
    assert len(result.trials) >= len(quiet.trials)
    assert "limit of 60 trials" in result.stopped_because or "more than 3.0% better" in result.stopped_because


def test_trial_limit_is_named() -> None:
    landscape = make_landscape(ONE_NODE, seed=2)
    result = run_search(landscape.problem(max_trials=2), ports=memory_ports(TableEvaluator(landscape)))
    assert len(result.trials) == 2 and "limit of 2 trials" in result.stopped_because


def test_time_budget_counts_earlier_runs_and_leaves_room_for_a_whole_trial() -> None:
    landscape = make_landscape(ONE_NODE, seed=2)
    space = landscape.problem(max_trials=50, sampler="random")
    space = replace(space, policy=replace(space.policy, time_budget_s=35.0))
    ticks = iter(range(0, 10_000, 10))
    clock = Clock(unix_s=lambda: 0.0, monotonic_s=lambda: float(next(ticks)))
    ports = replace(memory_ports(TableEvaluator(landscape)), clock=clock)
    first = run_search(space, ports=ports)
    assert len(first.trials) == 3 and "time budget of 35 s" in first.stopped_because
    assert run_search(space, ports=ports, done=first.trials).trials == first.trials


def test_trials_of_another_machine_are_not_believed_and_keep_their_numbers() -> None:
    some = tuple(candidate(zero=zero) for zero in (0, 1, 2))
    foreign = trial(6, some[0], measured(1e6), machine="elsewhere")
    evaluator = _Scripted({one.key: measured(10.0) for one in some})
    result = run_search(problem(some), ports=_ports(evaluator), done=(foreign,))
    assert [one.number for one in result.trials] == [7, 8, 9]
    assert result.choice is not None and result.choice.winner.machine == "m"


def test_trial_is_durable_before_optuna_hears_of_it_and_best_is_told() -> None:
    some = tuple(candidate(zero=zero) for zero in (0, 1, 2))
    answers: _Answers = dict(zip((one.key for one in some), (crashed(), measured(9.0), measured(5.0))))
    heard: list[tuple[int, float | None]] = []

    def on_trial(one: TrialRecord, best: TrialRecord | None) -> None:
        heard.append((one.number, getattr(best.outcome, "tokens_per_s", None) if best else None))

    run_search(problem(some), ports=replace(_ports(_Scripted(answers)), on_trial=on_trial))
    assert heard == [(0, None), (1, 9.0), (2, 9.0)]


def test_trial_that_could_not_be_made_durable_ends_the_search_and_is_run_again() -> None:
    some = tuple(candidate(zero=zero) for zero in (0, 1, 2))
    evaluator = _Scripted({one.key: measured(9.0) for one in some})

    def full_disk(one: TrialRecord, best: TrialRecord | None) -> None:
        raise InputError("cannot write", why="the disk is full", fix="free space")

    with pytest.raises(InputError, match="cannot write"):
        run_search(problem(some), ports=replace(_ports(evaluator), on_trial=full_disk))
    assert run_search(problem(some), ports=_ports(evaluator)).trials[0].number == 0


def test_ctrl_c_keeps_what_ended_and_says_how_to_go_on() -> None:
    some = tuple(candidate(zero=zero) for zero in (0, 1, 2, 3))
    kept: list[TrialRecord] = []
    evaluator = _Scripted({some[0].key: measured(9.0), some[1].key: KeyboardInterrupt()})
    ports = replace(_ports(evaluator), on_trial=lambda one, best: kept.append(one))
    with pytest.raises(Interrupted) as stop:
        run_search(problem(some, policy=TrialPolicy(max_trials=4)), ports=ports)
    assert stop.value.exit_code == 130 and "--resume" in stop.value.fix
    assert [one.key for one in kept] == [some[0].key]


def test_unknown_sampler_is_refused_with_a_near_match() -> None:
    space = problem((candidate(),), policy=TrialPolicy(sampler="guidde"))
    with pytest.raises(InputError) as refusal:
        run_search(space, ports=_ports(_Scripted({})))
    assert "guided" in refusal.value.fix


def test_single_candidate_is_tried_once() -> None:
    only = candidate()
    result = run_search(problem((only,)), ports=_ports(_Scripted({only.key: measured(3.0)})))
    assert len(result.trials) == 1 and result.choice is not None and result.choice.runner_up is None


def test_preview_bounds_the_search_and_names_what_comes_first() -> None:
    landscape = make_landscape(ONE_NODE, seed=2)
    space = landscape.problem(max_trials=5, early_end=False)
    preview = preview_search(space, done=())
    trials = run_search(space, ports=memory_ports(TableEvaluator(landscape))).trials
    assert (preview.num_trials, preview.num_candidates, preview.is_sweep) == (5, 390, False)
    assert preview.longest_s == 5 * space.policy.timeout_s >= preview.expected_s > 0
    assert row_of(landscape.columns, trials[0]) == preview.first_rows[0]
    after = preview_search(space, done=trials[:3])
    assert (after.num_trials, after.num_done, after.first_rows) == (2, 3, ())


def test_preview_is_bounded_by_the_time_budget_too() -> None:
    landscape = make_landscape(ONE_NODE, seed=2)
    space = landscape.problem(max_trials=24)
    space = replace(space, policy=replace(space.policy, time_budget_s=100.0))
    assert preview_search(space, done=()).longest_s == 100.0 + space.policy.timeout_s
    spent = tuple(
        replace(trial(n, candidate(micro=n + 1), measured(1.0)), duration_s=60.0, machine="made-up") for n in (0, 1)
    )
    assert preview_search(space, done=spent).longest_s == 0.0


def test_expected_time_left_follows_the_measured_trials() -> None:
    landscape = make_landscape(ONE_NODE, seed=2)
    space = landscape.problem(max_trials=10)
    done = tuple(replace(trial(n, candidate(), measured(1.0)), duration_s=s) for n, s in enumerate((4.0, 5.0, 60.0)))
    assert expected_left_s(space, done=done) == pytest.approx(7 * 5.0)


def test_importing_the_search_does_not_import_optuna() -> None:
    code = (
        "import sys, planner.search as s, planner.rundir;"
        "s.preview_search, s.choose_winner; assert 'optuna' not in sys.modules and 'sqlalchemy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class _Scripted:
    """Answers by the candidate's key; an exception is raised."""

    def __init__(self, answers: _Answers) -> None:
        self._answers = answers

    def evaluate(self, number: int, candidate: Candidate) -> Outcome:
        answer = self._answers[candidate.key]
        if isinstance(answer, KeyboardInterrupt):
            raise answer
        return answer


def _ports(evaluator: _Scripted) -> SearchPorts:
    return SearchPorts(
        evaluator=evaluator,
        place=StudyPlace(kind=StudyKind.MEMORY, name="s"),
        on_trial=lambda one, best: None,
        clock=Clock(unix_s=lambda: 0.0, monotonic_s=lambda: 0.0),
    )
