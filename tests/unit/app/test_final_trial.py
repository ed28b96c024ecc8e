"""The winner shows that a checkpoint fits, or the next one wins; both its runs count together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.app.draft import Draft
from planner.app.final_trial import Finals, checks_checkpoint, with_final_trial
from planner.app.progress import SilentProgress
from planner.app.selection import choices_by_trials
from planner.rundir import RunDir
from planner.search import SearchResult
from planner.spec import Candidate, Measured, Outcome, OutOfMemory, ParameterCounts, Phase
from tests.unit.app.builders import GIB, candidates_of, draft_of, ran, result_of, trial

OUT = OutOfMemory(
    rank=0, phase=Phase.CHECKPOINT_SAVE, requested_bytes=GIB, allocated_bytes=GIB, capacity_bytes=GIB, log_tail=""
)


class Last:
    """Answers a candidate's last trial, and keeps what was asked."""

    def __init__(self, answers: dict[str, Outcome]) -> None:
        self._answers = answers
        self.asked: list[tuple[str, bool, Path | None]] = []

    def evaluate_last(
        self, number: int, candidate: Candidate, *, check_checkpoint: bool, profile_dir: Path | None
    ) -> Outcome:
        self.asked.append((candidate.key, check_checkpoint, profile_dir))
        return self._answers[candidate.key]


def draft_that_saves(folder: Path) -> Draft:
    return draft_of(folder, "training.checkpoint.folder=/tmp/nowhere", "training.checkpoint.interval=10")


def finals(folder: Path, draft: Draft, last: Last, **changes: Any) -> Finals:
    run_dir = RunDir.create(folder / "plan", "hash")
    for one in changes.pop("trials", ()):
        run_dir.append_trial(one)
    return Finals(
        evaluator=last,  # type: ignore[arg-type]
        run_dir=run_dir,
        draft=draft,
        machine="m",
        console=SilentProgress(),
        **changes,
    )


def three(draft: Draft) -> tuple[SearchResult, tuple[Candidate, ...]]:
    fast, middle, slow, *_rest = candidates_of(draft)
    trials = (trial(0, fast, ran(1.0)), trial(1, middle, ran(1.5)), trial(2, slow, ran(2.0)))
    return result_of(*trials), (fast, middle, slow)


def chosen(draft: Draft, result: SearchResult) -> Candidate:
    return next(iter(choices_by_trials(draft, result))).candidate


def test_winner_whose_checkpoint_fits_is_promised_with_both_its_runs(tmp_path: Path) -> None:
    draft = draft_that_saves(tmp_path)
    result, (fast, *_rest) = three(draft)
    last = Last({fast.key: ran(1.2, used_bytes=GIB // 2)})  # slower by chance, and more memory
    after = with_final_trial(result, finals(tmp_path, draft, last, trials=result.trials))
    assert last.asked == [(fast.key, True, None)]
    choice = next(iter(choices_by_trials(draft, after)))
    assert choice.candidate == fast
    assert choice.promise.step_time_s == pytest.approx(1.1) and choice.promise.device_used_bytes == GIB // 2
    assert RunDir.open(tmp_path / "plan").read_trials() == after.trials  # a report made from the folder sees the same


def test_winner_by_a_lucky_run_gives_way_to_the_next_which_shows_its_checkpoint_too(tmp_path: Path) -> None:
    draft = draft_that_saves(tmp_path)
    result, (fast, middle, _slow) = three(draft)
    last = Last({fast.key: ran(5.0), middle.key: ran(1.6)})
    after = with_final_trial(result, finals(tmp_path, draft, last, trials=result.trials))
    assert [key for key, *_rest in last.asked] == [fast.key, middle.key]
    assert chosen(draft, after) == middle


def test_next_one_wins_where_saving_runs_out_of_memory(tmp_path: Path) -> None:
    draft = draft_that_saves(tmp_path)
    result, (fast, middle, _slow) = three(draft)
    last = Last({fast.key: OUT, middle.key: ran(1.5)})
    after = with_final_trial(result, finals(tmp_path, draft, last, trials=result.trials))
    assert [key for key, *_rest in last.asked] == [fast.key, middle.key]
    assert chosen(draft, after) == middle


def test_nothing_is_run_for_a_job_that_saves_nothing_unless_a_profile_is_asked_for(tmp_path: Path) -> None:
    draft = draft_of(tmp_path)
    result, (fast, *_rest) = three(draft)
    last = Last({fast.key: ran(1.0)})
    assert with_final_trial(result, finals(tmp_path, draft, last, trials=result.trials)) is result
    asked = finals(tmp_path / "second", draft, last, trials=result.trials, profile_dir=tmp_path / "profile")
    with_final_trial(result, asked)
    assert last.asked == [(fast.key, False, tmp_path / "profile")]


def test_checkpoint_is_not_tried_where_the_disk_has_no_room(tmp_path: Path) -> None:
    draft = draft_that_saves(tmp_path)
    large = replace(draft.job, model=replace(draft.job.model, counts=ParameterCounts(embedding=10**15)))
    said: list[str] = []

    class Told(SilentProgress):
        def note(self, text: str) -> None:
            said.append(text)

    assert checks_checkpoint(draft.job, folder=tmp_path, console=Told()) and not said
    assert not checks_checkpoint(large, folder=tmp_path, console=Told())
    assert "was not tried" in said[0]


def limited(draft: Draft, **limits: Any) -> Draft:
    return replace(draft, job=replace(draft.job, trials=replace(draft.job.trials, **limits)))


def saved(step_time_s: float) -> Measured:
    """A trial in which a checkpoint was saved and loaded."""
    measured = ran(step_time_s)
    return replace(measured, ranks=tuple(replace(rank, checkpoint_peak_bytes=1) for rank in measured.ranks))


@pytest.mark.parametrize("limits", [{"max_trials": 3}, {"time_budget_s": 1.0}])
def test_only_one_last_trial_goes_beyond_the_limits(tmp_path: Path, limits: dict[str, Any]) -> None:
    draft = limited(draft_that_saves(tmp_path), **limits)
    result, (fast, middle, _slow) = three(draft)
    last = Last({fast.key: OUT, middle.key: saved(1.5)})
    after = with_final_trial(result, finals(tmp_path, draft, last, trials=result.trials))
    assert [key for key, *_rest in last.asked] == [fast.key]
    again = Last({})  # what is planned once more in the same folder runs none
    with_final_trial(after, finals(tmp_path / "again", draft, again, trials=after.trials))
    assert again.asked == []


def test_last_trial_that_is_in_the_log_is_not_run_again(tmp_path: Path) -> None:
    draft = draft_that_saves(tmp_path)
    result, (fast, *_rest) = three(draft)
    first = Last({fast.key: saved(1.0)})
    after = with_final_trial(result, finals(tmp_path, draft, first, trials=result.trials))
    assert len(first.asked) == 1
    again = Last({})
    assert with_final_trial(after, finals(tmp_path / "again", draft, again, trials=after.trials)) is after


@pytest.mark.parametrize("trials", [(), (0,)])
def test_without_a_winner_there_is_no_last_trial(tmp_path: Path, trials: tuple[int, ...]) -> None:
    draft = draft_that_saves(tmp_path)
    first = candidates_of(draft)[0]
    result = result_of(*(trial(number, first, OUT) for number in trials))
    assert with_final_trial(result, finals(tmp_path, draft, Last({}), trials=result.trials)) is result
