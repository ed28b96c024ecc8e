"""Which candidate becomes the plan, what it promises, and what is said when there is none."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from planner.app.selection import calibrate, choices_by_model, choices_by_trials
from planner.errors import NoFeasiblePlan, TrialsUnavailable
from planner.spec import Crashed, Outcome, OutOfMemory, Phase, Provenance, TimedOut
from tests.unit.app.builders import GIB, candidates_of, draft_of, ran, result_of, trial

OUT_OF_MEMORY = OutOfMemory(
    rank=0, phase=Phase.FORWARD, requested_bytes=GIB, allocated_bytes=GIB, capacity_bytes=GIB, log_tail=""
)
CRASHED = Crashed(rank=1, phase=Phase.BACKWARD, exit_code=1, message="boom", log_tail="")
TIMED_OUT = TimedOut(limit_s=60.0, phase=Phase.FORWARD, log_tail="")


def test_choices_by_model_are_best_first_and_each_promises_what_keeps_the_headroom(tmp_path: Path) -> None:
    draft = draft_of(tmp_path)
    choices = list(choices_by_model(draft))
    assert len(choices) == len(draft.columns) == 12
    speeds = [choice.promise.tokens_per_s for choice in choices]
    assert speeds == sorted(speeds, reverse=True)
    for choice, following in pairwise(choices):
        assert choice.runner_up is not None and choice.runner_up.key == following.candidate.key
    limit = draft.estimates.usable_bytes * (1 - draft.job.memory_headroom_fraction)
    assert all(choice.promise.device_used_bytes <= limit for choice in choices)
    assert {choice.promise.memory_kind for choice in choices} == {Provenance.COMPUTED}


def test_choices_by_model_pass_over_what_would_use_up_the_headroom(tmp_path: Path) -> None:
    roomy = draft_of(tmp_path, "cluster.memory_gib=0.15", "memory_headroom=0")
    tight = draft_of(tmp_path, "cluster.memory_gib=0.15", "memory_headroom=0.4")
    keys = {choice.candidate.key for choice in choices_by_model(tight)}
    assert keys < {choice.candidate.key for choice in choices_by_model(roomy)}


def test_choices_by_model_without_any_that_fits_safely_say_what_would(tmp_path: Path) -> None:
    draft = draft_of(tmp_path, "cluster.memory_gib=0.05", "memory_headroom=0.5")
    with pytest.raises(NoFeasiblePlan, match="sure to fit") as caught:
        next(choices_by_model(draft))
    assert "50% to be kept free" in caught.value.why
    assert "lower memory_headroom" in caught.value.fix


def test_choices_by_trials_promise_the_winning_trials_own_figures(tmp_path: Path) -> None:
    draft = draft_of(tmp_path)
    slow, fast, third = candidates_of(draft)[:3]
    trials = (trial(0, slow, ran(0.5)), trial(1, fast, ran(0.3, used_bytes=GIB // 2)), trial(2, third, CRASHED))
    first, second = choices_by_trials(draft, result_of(*trials))
    assert (first.candidate, first.trial) == (fast, trials[1])
    assert (first.promise.step_time_s, first.promise.device_used_bytes) == (0.3, GIB // 2)
    assert first.promise.step_time_kind is first.promise.memory_kind is Provenance.MEASURED
    assert first.promise.first_losses == trials[1].outcome.ranks[0].losses  # type: ignore[union-attr]
    assert first.runner_up is not None and first.runner_up.key == slow.key
    assert (second.candidate, second.runner_up) == (slow, None)


@pytest.mark.parametrize(("again_s", "wins"), [(0.4, True), (0.7, False)])
def test_choices_by_trials_go_by_all_runs_of_a_candidate_together(tmp_path: Path, again_s: float, wins: bool) -> None:
    draft = draft_of(tmp_path)
    one, other = candidates_of(draft)[:2]
    runs = (ran(0.1), ran(again_s, used_bytes=GIB // 2))
    trials = (trial(0, one, runs[0]), trial(1, other, ran(0.3)), trial(2, one, runs[1]))
    choices = list(choices_by_trials(draft, result_of(*trials)))
    assert [choice.candidate for choice in choices] == ([one, other] if wins else [other, one])
    mine = choices[0 if wins else 1]
    assert mine.promise.step_time_s == pytest.approx((0.1 + again_s) / 2)
    assert mine.promise.tokens_per_s == pytest.approx(runs[0].tokens_per_s * 0.1 / mine.promise.step_time_s)
    assert mine.promise.device_used_bytes == GIB // 2
    assert mine.trial is not None and mine.trial.number == 2


def test_choices_by_trials_leave_out_what_breaks_into_the_headroom(tmp_path: Path) -> None:
    draft = draft_of(tmp_path)
    large, small = candidates_of(draft)[:2]
    full = draft.estimates.usable_bytes * 99 // 100
    trials = (trial(0, large, ran(0.1, used_bytes=full)), trial(1, small, ran(0.4)))
    (only,) = choices_by_trials(draft, result_of(*trials))
    assert only.candidate == small


@pytest.mark.parametrize(
    ("ends", "error", "words"),
    [
        ((OUT_OF_MEMORY, OUT_OF_MEMORY), NoFeasiblePlan, "2 out of memory"),
        ((OUT_OF_MEMORY, CRASHED), NoFeasiblePlan, "1 crashed, 1 out of memory"),
        ((CRASHED, CRASHED), TrialsUnavailable, "boom"),
        ((CRASHED, TIMED_OUT), TrialsUnavailable, "still running after 60.0 s"),
        ((), TrialsUnavailable, "a test ended it"),
    ],
)
def test_no_choice_by_trials_tells_memory_from_a_broken_machine(
    tmp_path: Path, ends: tuple[Outcome, ...], error: type[NoFeasiblePlan | TrialsUnavailable], words: str
) -> None:
    draft = draft_of(tmp_path)
    trials = [trial(number, one, end) for number, (one, end) in enumerate(zip(candidates_of(draft), ends))]
    with pytest.raises(error) as caught:
        next(choices_by_trials(draft, result_of(*trials)))
    assert words in caught.value.why


def test_no_choice_by_trials_advises_only_what_can_help(tmp_path: Path) -> None:
    draft = draft_of(tmp_path)
    one = candidates_of(draft)[0]
    over = ran(0.1, used_bytes=draft.estimates.usable_bytes)
    cases = ((OUT_OF_MEMORY, 0, ()), (OUT_OF_MEMORY, 3, ("allow more trials",)), (over, 0, ("lower memory_headroom",)))
    for outcome, num_untried, advice in cases:
        with pytest.raises(NoFeasiblePlan) as caught:
            next(choices_by_trials(draft, result_of(trial(0, one, outcome), num_untried=num_untried)))
        for words in ("allow more trials", "lower memory_headroom"):
            assert (words in caught.value.fix) == (words in advice)


def test_calibrate_makes_the_models_figures_of_other_candidates_fitted(tmp_path: Path) -> None:
    draft = draft_of(tmp_path)
    tried = candidates_of(draft)[:4]
    trials = tuple(trial(number, one, ran(1.0)) for number, one in enumerate(tried))
    assert calibrate(draft, (trial(0, tried[0], CRASHED),)) == calibrate(draft, ())
    assert calibrate(draft, trials) != calibrate(draft, ())
