"""What is done after an attempt: one step down for what is too large, one more try for what a start may mend."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from planner.spec.supervision import Attempt
from planner.supervise.policy import OUT_OF_MEMORY, RETRIED_CAUSES, Start, Stop, next_move


def attempt(number: int, level: int, cause: str) -> Attempt:
    return Attempt(number=number, level=level, end=OUT_OF_MEMORY, cause=cause)


def test_next_move_capacity_goes_one_step_down_at_once() -> None:
    move = next_move((attempt(1, 0, "capacity"),), num_fallbacks=2)
    assert isinstance(move, Start) and move.level == 1


def test_next_move_fragmentation_is_tried_again_with_expandable_segments_once() -> None:
    first = attempt(1, 0, "fragmentation")
    move = next_move((first,), num_fallbacks=1)
    assert isinstance(move, Start) and move.level == 0
    assert dict(move.environment)["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    again = next_move((first, attempt(2, 0, "fragmentation")), num_fallbacks=1)
    assert isinstance(again, Start) and again.level == 1 and not again.environment


def test_next_move_other_process_waits_before_it_tries_again() -> None:
    move = next_move((attempt(1, 1, "other-process"),), num_fallbacks=1)
    assert isinstance(move, Start) and move.level == 1 and move.pause_s > 0


def test_next_move_last_fallback_out_of_memory_stops_with_the_count() -> None:
    move = next_move((attempt(1, 0, "capacity"), attempt(2, 1, "capacity")), num_fallbacks=1)
    assert isinstance(move, Stop) and "all 1 fallbacks" in move.reason
    assert isinstance(next_move((attempt(1, 0, "capacity"),), num_fallbacks=0), Stop)


@given(st.integers(0, 6), st.data())
def test_next_move_any_causes_end_and_start_no_step_more_than_twice(num_fallbacks: int, data: st.DataObject) -> None:
    causes = st.sampled_from([*RETRIED_CAUSES, "capacity", "", "host-ram"])
    attempts: list[Attempt] = []
    level = 0
    while True:
        attempts.append(attempt(len(attempts) + 1, level, data.draw(causes)))
        move = next_move(tuple(attempts), num_fallbacks=num_fallbacks)
        if isinstance(move, Stop):
            break
        assert move.level in (level, level + 1)
        level = move.level
    starts = [sum(one.level == step for one in attempts) for step in range(num_fallbacks + 1)]
    assert min(starts) >= 1 and max(starts) <= 2
