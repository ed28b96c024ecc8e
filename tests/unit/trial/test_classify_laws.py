"""What holds of every trial, however its ranks ended."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from planner.diagnose.memory_text import says_peer_was_lost
from planner.spec import DeviceKind, Measured, Outcome, TimedOut, TrialTask
from planner.spec.codec import from_plain, to_plain
from planner.spec.worker import RankEnd
from planner.trial import classify_trial
from tests.unit.trial import messages
from tests.unit.trial.samples import died, ended_by_worker, ended_well, make_facts, make_task, raised

_TEXTS = [text for name, text in vars(messages).items() if name.isupper()] + ["", "bad shape"]
_TASKS = st.sampled_from([make_task(), make_task(device=DeviceKind.CPU, memory_limit_bytes=1 << 30)])


def _rank_ends(rank: int) -> st.SearchStrategy[RankEnd]:
    return st.one_of(
        st.just(ended_well(rank)),
        st.just(ended_by_worker(rank)),
        st.builds(
            lambda exit_code, at_s: died(rank, exit_code=exit_code, at_s=at_s),
            st.integers(-64, 255),
            st.floats(0.0, 30.0),
        ),
        st.builds(
            lambda kind, text, at_s: raised(rank, kind, text, at_s=at_s),
            st.sampled_from(["RuntimeError", "torch.OutOfMemoryError", "MemoryError", "SystemExit"]),
            st.sampled_from(_TEXTS),
            st.floats(0.0, 30.0),
        ),
    )


_TRIALS = st.tuples(_rank_ends(0), _rank_ends(1))


@given(_TRIALS, _TASKS, st.booleans(), st.integers(0, 2))
def test_every_end_has_an_outcome_that_a_trial_log_can_hold(
    ranks: tuple[RankEnd, RankEnd], task: TrialTask, timed_out: bool, kills: int
) -> None:
    outcome = classify_trial(make_facts(*ranks, task=task, timed_out=timed_out, kernel_oom_kills=kills))
    plain = json.loads(json.dumps(to_plain(outcome)))
    assert from_plain(Outcome, plain) == outcome  # type: ignore[arg-type]


@given(_TRIALS, _TASKS, st.booleans())
def test_measured_means_that_every_rank_left_a_report(
    ranks: tuple[RankEnd, RankEnd], task: TrialTask, timed_out: bool
) -> None:
    outcome = classify_trial(make_facts(*ranks, task=task, timed_out=timed_out))
    assert isinstance(outcome, Measured) == all(rank.report is not None for rank in ranks)


@given(_TRIALS, _TASKS)
def test_a_time_out_is_only_told_of_a_trial_that_reached_its_limit(
    ranks: tuple[RankEnd, RankEnd], task: TrialTask
) -> None:
    outcome = classify_trial(make_facts(*ranks, task=task, timed_out=False))
    only_ended_by_worker = all(rank.report is not None or rank.killed for rank in ranks)
    assert not isinstance(outcome, TimedOut) or only_ended_by_worker


def _failed_by_itself(rank: RankEnd) -> bool:
    lost_a_peer = rank.failure is not None and says_peer_was_lost(rank.failure.message)
    return rank.report is None and not rank.killed and not lost_a_peer


@given(_rank_ends(0).filter(_failed_by_itself), _TASKS)
def test_peer_that_noticed_first_never_becomes_the_cause(culprit: RankEnd, task: TrialTask) -> None:
    noticed_first = raised(1, "RuntimeError", messages.GLOO_CLOSED, at_s=0.0)
    alone = classify_trial(make_facts(culprit, ended_by_worker(1), task=task))
    assert classify_trial(make_facts(culprit, noticed_first, task=task)) == alone
