"""A close race is run once more, within the limits, and both runs of each count together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.app.remeasure import close_race, measure_again
from planner.app.selection import choices_by_trials
from planner.rundir import RunDir
from planner.search import Choice, SearchResult
from planner.spec import Candidate, Crashed, Measured, Outcome, Phase, TrialPolicy, TrialRecord
from tests.unit.app.builders import candidates_of, draft_of, ran, result_of, trial

POLICY = TrialPolicy(max_trials=10, time_budget_s=100.0)


class _Runs:
    """An evaluator that answers with these outcomes in order."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.outcomes = list(outcomes)
        self.asked: list[tuple[int, str]] = []

    def evaluate(self, number: int, candidate: Candidate) -> Outcome:
        self.asked.append((number, candidate.key))
        return self.outcomes.pop(0)


def _spread(step_time_s: float, spread_s: float) -> Measured:
    return replace(ran(step_time_s), step_time_spread_s=spread_s)


def _result(tmp_path: Path, first: Measured, second: Measured) -> SearchResult:
    one, other = candidates_of(draft_of(tmp_path))[:2]
    trials = (trial(0, one, first), trial(1, other, second))
    choice = Choice(winner=trials[0], runner_up=trials[1], num_tied=1)
    return replace(result_of(*trials), choice=choice)


def test_race_closer_than_its_spread_is_run_again(tmp_path: Path) -> None:
    result = _result(tmp_path, _spread(1.0, 0.02), _spread(1.01, 0.02))
    assert [one.number for one in close_race(result, POLICY, spent_s=2.0)] == [0, 1]


def test_clear_race_is_not(tmp_path: Path) -> None:
    assert close_race(_result(tmp_path, _spread(1.0, 0.02), _spread(1.2, 0.02)), POLICY, spent_s=2.0) == ()


@pytest.mark.parametrize(
    ("policy", "spent_s"), [(replace(POLICY, max_trials=3), 2.0), (POLICY, 99.0)], ids=["trials", "time"]
)
def test_limits_forbid_another_run(tmp_path: Path, policy: TrialPolicy, spent_s: float) -> None:
    result = _result(tmp_path, _spread(1.0, 0.02), _spread(1.01, 0.02))
    assert close_race(result, policy, spent_s=spent_s) == ()


def _kept(tmp_path: Path, result: SearchResult) -> RunDir:
    run_dir = RunDir.create(tmp_path / "plan", "0" * 64)
    with run_dir.locked():
        for one in result.trials:
            run_dir.append_trial(one)
    return run_dir


def _again(run_dir: RunDir, result: SearchResult, runs: _Runs) -> tuple[SearchResult, tuple[TrialRecord, ...]]:
    with run_dir.locked():
        pair = close_race(result, POLICY, spent_s=2.0)
        return measure_again(pair, result, evaluator=runs, run_dir=run_dir)


def test_second_measurement_decides_is_kept_and_is_not_repeated(tmp_path: Path) -> None:
    result = _result(tmp_path, _spread(1.0, 0.02), _spread(1.01, 0.02))
    runs = _Runs(_spread(1.2, 0.02), _spread(1.0, 0.02))
    run_dir = _kept(tmp_path, result)
    decided, again = _again(run_dir, result, runs)
    assert [number for number, _ in runs.asked] == [2, 3]
    assert [one.number for one in run_dir.read_trials()] == [0, 1, 2, 3]
    winner = next(choices_by_trials(draft_of(tmp_path), decided)).trial
    assert winner is not None and winner.number == 3 and len(again) == 2
    assert close_race(decided, POLICY, spent_s=4.0) == ()


def test_second_run_that_fails_leaves_the_first_figures(tmp_path: Path) -> None:
    result = _result(tmp_path, _spread(1.0, 0.02), _spread(1.01, 0.02))
    crashed = Crashed(rank=0, phase=Phase.FORWARD, exit_code=1, message="", log_tail="")
    run_dir = _kept(tmp_path, result)
    decided, _ = _again(run_dir, result, _Runs(crashed, _spread(1.1, 0.02)))
    assert decided.trials == run_dir.read_trials()  # a report made from the folder sees the same
    chosen = next(choices_by_trials(draft_of(tmp_path), decided))
    assert chosen.promise.step_time_s == 1.0 and chosen.trial is not None and chosen.trial.number == 0
