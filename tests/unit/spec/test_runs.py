"""Several runs of one candidate stand together: no figure of the luckiest, none lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.spec import (
    Crashed,
    Measured,
    Outcome,
    OutOfMemory,
    Phase,
    Provenance,
    TimeBreakdown,
    TrialRecord,
)
from planner.spec.runs import one_per_candidate, together
from tests.unit.report.samples import GIB, make_candidate, make_measured, make_trial

ONE, OTHER = make_candidate(micro=8), make_candidate(micro=4)
OUT = OutOfMemory(rank=0, phase=Phase.FORWARD, requested_bytes=1, allocated_bytes=1, capacity_bytes=1, log_tail="")
CRASHED = Crashed(rank=0, phase=Phase.FORWARD, exit_code=1, message="", log_tail="")
UNSAVED = replace(CRASHED, phase=Phase.CHECKPOINT_SAVE)


def _ran(step_time_s: float, used_bytes: int = GIB) -> Measured:
    return make_measured(step_time_s=step_time_s, device_used_bytes=used_bytes)


def _of_one(*outcomes: Outcome) -> tuple[TrialRecord, ...]:
    return tuple(make_trial(number, ONE, outcome) for number, outcome in enumerate(outcomes))


def test_runs_together_are_the_median_of_all_steps_and_the_most_memory() -> None:
    first, second = _ran(0.365, 2 * GIB), _ran(0.478, 3 * GIB)
    (record,) = one_per_candidate(_of_one(first, second))
    outcome = record.outcome
    assert isinstance(outcome, Measured) and record.number == 1
    assert outcome.step_time_s == pytest.approx((0.365 + 0.478) / 2)
    assert outcome.step_time_spread_s == pytest.approx(1.4826 * (0.478 - 0.365) / 2)
    assert outcome.tokens_per_s * outcome.step_time_s == pytest.approx(first.tokens_per_s * first.step_time_s)
    assert outcome.device_used_bytes == 3 * GIB
    rank = outcome.ranks[0]
    assert len(rank.step_times_s) == 10
    assert rank.forward_s == pytest.approx((first.ranks[0].forward_s + second.ranks[0].forward_s) / 2)


def test_memory_of_an_earlier_run_is_not_forgotten() -> None:
    (record,) = one_per_candidate(_of_one(_ran(1.0, 3 * GIB), _ran(1.0, 2 * GIB)))
    assert isinstance(record.outcome, Measured) and record.outcome.device_used_bytes == 3 * GIB


@pytest.mark.parametrize(
    ("outcomes", "standing"),
    [
        ((_ran(1.0),), 0),
        ((CRASHED, _ran(1.0)), 1),
        ((_ran(1.0), CRASHED), 0),
        ((_ran(1.0), OUT), 1),
        ((_ran(1.0), UNSAVED), 1),
        ((OUT, _ran(1.0)), 1),
        ((OUT, CRASHED), 1),
    ],
)
def test_what_a_later_trial_says_of_memory_counts_and_an_accident_does_not(
    outcomes: tuple[Outcome, ...], standing: int
) -> None:
    trials = _of_one(*outcomes)
    assert one_per_candidate(trials) == (trials[standing],)


def test_candidates_stand_apart_in_the_order_of_their_first_trials() -> None:
    trials = (make_trial(0, ONE, _ran(1.0)), make_trial(1, OTHER, OUT), make_trial(2, ONE, _ran(2.0)))
    assert [record.number for record in one_per_candidate(trials)] == [2, 1]
    assert together(trials, OTHER.key) is None


def test_emulated_runs_are_averaged_with_their_parts_and_not_mixed_with_real_ones() -> None:
    def emulated(step_time_s: float) -> Measured:
        parts = dict.fromkeys(TimeBreakdown.__dataclass_fields__, 0.0) | {"compute_s": step_time_s}
        return replace(_ran(step_time_s), kind=Provenance.EMULATED, breakdown=TimeBreakdown(**parts))

    found = together(_of_one(emulated(1.0), emulated(2.0)), ONE.key)
    assert found is not None and found[1].breakdown is not None
    assert found[1].step_time_s == found[1].breakdown.compute_s == 1.5
    mixed = together(_of_one(emulated(1.0), _ran(2.0)), ONE.key)
    assert mixed is not None and mixed[1] == _ran(2.0)
