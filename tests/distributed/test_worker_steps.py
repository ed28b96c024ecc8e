"""Which steps of a trial count, tried on a session that only pretends to train."""

from __future__ import annotations

import math
import time

import pytest

from planner.runtime.worker_marks import TrialMarks
from planner.runtime.worker_steps import (
    MAX_EXTRA_WARMUP_STEPS,
    PhaseClock,
    StepFigures,
    StepTimes,
    TrialDiverged,
    is_hopeless,
    run_steps,
)
from planner.spec import Phase, TrialTask
from planner.spec._record import record
from tests.unit.trial.samples import make_task


@record
class _Result:
    loss: float
    forward_s: float
    backward_s: float
    optimizer_s: float


class _Pretender:
    """Skips its first `skips` steps; the n-th step's loss is `losses[n]`, or 1."""

    def __init__(self, *, skips: int = 0, losses: dict[int, float] | None = None) -> None:
        self.steps = 0
        self._skips = skips
        self._losses = losses or {}

    @property
    def skipped_steps(self) -> int:
        return min(self.steps, self._skips)

    def train_step(self) -> StepTimes:
        time.sleep(0.005)
        self.steps += 1
        return _Result(
            loss=self._losses.get(self.steps - 1, 1.0), forward_s=self.steps, backward_s=2.0, optimizer_s=3.0
        )


def _run(session: _Pretender, *, warmup_steps: int = 1, steps: int = 3, hopeless_step_s: float = 0.0) -> StepFigures:
    marks = TrialMarks(1)
    base = make_task()
    task = TrialTask(
        model=base.model,
        training=base.training,
        candidate=base.candidate,
        device=base.device,
        ds_config_json="{}",
        steps=steps,
        warmup_steps=warmup_steps,
        hopeless_step_s=hopeless_step_s,
    )
    figures = run_steps(session, task, PhaseClock(marks.of_rank(0)), allocated=lambda: 10 * session.steps)
    assert marks.read(0) == (Phase.START, session.steps)
    return figures


def test_steps_after_the_warm_up_are_timed() -> None:
    figures = _run(_Pretender(), warmup_steps=2, steps=3)
    assert len(figures.times_s) == 3
    assert len(figures.losses) == 5
    assert all(0.005 <= seconds < 1.0 for seconds in figures.times_s)
    assert (figures.forward_s, figures.backward_s, figures.optimizer_s) == (4.0, 2.0, 3.0)


@pytest.mark.parametrize("warmup_steps", [0, 1, 3])
def test_no_warm_up_beyond_the_task_when_steps_are_applied(warmup_steps: int) -> None:
    assert len(_run(_Pretender(), warmup_steps=warmup_steps).losses) == warmup_steps + 3


def test_warm_up_goes_on_until_a_step_is_applied() -> None:
    figures = _run(_Pretender(skips=5), warmup_steps=1, steps=3)
    assert len(figures.losses) == 6 + 3


def test_model_that_never_applies_a_step_diverges() -> None:
    session = _Pretender(skips=10_000)
    with pytest.raises(TrialDiverged, match="every optimizer step was skipped"):
        _run(session, warmup_steps=1, steps=3)
    assert session.steps == 1 + MAX_EXTRA_WARMUP_STEPS + 3


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_loss_that_is_not_finite_ends_the_trial_at_once(loss: float) -> None:
    session = _Pretender(losses={2: loss})
    with pytest.raises(TrialDiverged) as caught:
        _run(session, warmup_steps=1, steps=5)
    assert caught.value.step == 2
    assert session.steps == 3
    assert caught.value.losses[:2] == (1.0, 1.0)


@pytest.mark.parametrize(
    ("times_s", "limit_s", "gives_up"),
    [
        ([], 1.0, False),
        ([1.9], 1.0, False),  # a first step may be slow
        ([2.1], 1.0, True),
        ([1.9, 1.1], 1.0, True),
        ([1.9, 0.9], 1.0, False),
        ([1.9, 1.1, 0.99], 1.0, False),
        ([9.0, 9.0], 0.0, False),
    ],
)
def test_hopeless_is_what_two_steps_or_one_very_slow_one_show(
    times_s: list[float], limit_s: float, gives_up: bool
) -> None:
    assert is_hopeless(times_s, limit_s) is gives_up


def test_hopeless_trial_ends_early_and_says_so() -> None:
    session = _Pretender()
    figures = _run(session, steps=50, hopeless_step_s=0.004)
    assert figures.stopped_early and len(figures.times_s) in (1, 2) and session.steps <= 3
    assert figures.allocated_bytes == tuple(10 * (2 + place) for place in range(len(figures.times_s)))


def test_trial_that_is_fast_enough_runs_to_its_end() -> None:
    figures = _run(_Pretender(), steps=4, hopeless_step_s=3600.0)
    assert not figures.stopped_early and len(figures.times_s) == 4
