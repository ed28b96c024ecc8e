"""The decision's arithmetic under change: verdicts follow the numbers, not the cases."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planner.diagnose.arithmetic import shares_of
from planner.diagnose.causes import CAUSES, Cause
from planner.diagnose.records import ModelView
from planner.diagnose.remedies import _BY_CAUSE
from tests.unit.diagnose.reading import GIB, facts_of, oom_text, verdict_of

devices = st.sampled_from([7.93, 11.78, 15.78, 23.69, 39.39, 47.5, 79.15, 139.8])
small_requests = st.floats(min_value=0.002, max_value=0.08)


def test_every_cause_has_a_row_and_remedies() -> None:
    assert {entry.cause for entry in CAUSES} == set(Cause) == set(_BY_CAUSE)


@settings(deadline=None)
@given(total=devices, request=small_requests, share=st.floats(min_value=0.3, max_value=0.9))
def test_large_memory_of_nobody_in_this_process_is_another_process(total: float, request: float, share: float) -> None:
    live = (1 - share) * total * 0.9
    assume(live > 0.3)
    foreign = total - live - 0.6 - 0.01
    assume(foreign > 0.15 * total)
    verdict = verdict_of(oom_text(request=request, total=total, free=0.01, live=live, idle=0.02, in_use=live + 0.6))
    assert verdict.cause is Cause.OTHER_PROCESS


@settings(deadline=None)
@given(total=devices, request=small_requests, context=st.floats(min_value=0.25, max_value=0.9))
def test_context_alone_is_nobody_else(total: float, request: float, context: float) -> None:
    live = total - 0.01 - context - 0.02
    text = oom_text(request=request, total=total, free=0.01, live=live, idle=0.02)
    assert verdict_of(text).cause is Cause.CAPACITY


@settings(deadline=None)
@given(
    total=devices, idle_share=st.floats(min_value=0.06, max_value=0.4), of_idle=st.floats(min_value=0.1, max_value=0.9)
)
def test_idle_cache_that_covers_the_request_is_fragmentation(total: float, idle_share: float, of_idle: float) -> None:
    idle = idle_share * total
    live = total - idle - 0.8
    verdict = verdict_of(
        oom_text(request=of_idle * idle, total=total, free=0.01, live=live, idle=idle, in_use=live + idle + 0.7)
    )
    assert verdict.cause is Cause.FRAGMENTATION
    assert verdict.confidence >= 0.6


@settings(deadline=None)
@given(total=devices, idle_share=st.floats(min_value=0.0, max_value=0.015), request=small_requests)
def test_idle_cache_of_a_percent_is_noise(total: float, idle_share: float, request: float) -> None:
    idle = idle_share * total
    live = total - idle - 0.8
    verdict = verdict_of(
        oom_text(request=request, total=total, free=0.01, live=live, idle=idle, in_use=live + idle + 0.7)
    )
    assert verdict.cause is Cause.CAPACITY


@settings(deadline=None)
@given(total=devices, free_share=st.floats(min_value=0.2, max_value=0.9), request=small_requests)
def test_much_more_free_than_asked_is_not_capacity(total: float, free_share: float, request: float) -> None:
    free = free_share * total
    live = max(0.0, total - free - 0.7)
    verdict = verdict_of(oom_text(request=request, total=total, free=free, live=live, idle=0.0, in_use=live + 0.6))
    assert verdict.cause is Cause.UNKNOWN_NOT_CAPACITY
    assert not any("smaller" in line for line in verdict.evidence)


@settings(deadline=None)
@given(total=st.sampled_from([39.39, 79.15, 139.8]), limit_share=st.floats(min_value=0.1, max_value=0.6))
def test_limit_of_the_process_that_is_reached_with_room_on_the_device(total: float, limit_share: float) -> None:
    limit = limit_share * total
    text = oom_text(request=0.5, total=total, free=total - limit - 1, live=limit - 0.2, idle=0.05, in_use=limit + 0.5)
    text = text.replace("Of the allocated", f"{limit:.2f} GiB allowed; Of the allocated")
    assert verdict_of(text).cause is Cause.PER_PROCESS_LIMIT


@pytest.mark.parametrize("total", [39.39, 79.15])
def test_limit_without_effect_is_not_the_cause(total: float) -> None:
    text = oom_text(request=0.5, total=total, free=0.1, live=total - 1.2, idle=0.1, in_use=total - 0.1)
    text = text.replace("Of the allocated", f"{total:.2f} GiB allowed; Of the allocated")
    assert verdict_of(text).cause is Cause.CAPACITY


def test_other_process_too_small_to_matter_is_not_the_cause() -> None:
    text = oom_text(request=2.0, total=79.15, free=0.3, live=76.3, idle=0.4, in_use=77.9)
    verdict = verdict_of(text)
    assert verdict.cause is Cause.CAPACITY


def test_own_process_under_the_hosts_id_is_not_a_stranger() -> None:
    text = oom_text(request=0.5, total=39.39, free=0.1, live=37.2, idle=0.3, others=((4711, 38.7),))
    assert verdict_of(text).cause is Cause.CAPACITY
    (event,) = facts_of(text).events
    assert shares_of(event, many_ranks=False).foreign == pytest.approx(0.59 * GIB, rel=0.05)


@pytest.mark.parametrize("count", [3, 7, 15])
def test_alike_processes_on_one_device_are_ranks_of_one_job(count: int) -> None:
    others = tuple((1000 + place, 1.1 + 0.01 * place) for place in range(count))
    text = oom_text(request=0.5, total=79.15, free=0.1, live=50.0, idle=0.3, in_use=52.0, others=others)
    assert verdict_of(text).cause is Cause.RANK_PLACEMENT


def test_ranks_that_all_fail_on_device_0_share_it() -> None:
    lines = [
        oom_text(
            request=0.5,
            total=79.15,
            free=0.1,
            live=19.0,
            idle=0.3,
            in_use=20.0,
            prefix=f"[rank{rank}]: torch.OutOfMemoryError: ",
        )
        for rank in range(4)
    ]
    assert verdict_of("".join(lines)).cause is Cause.RANK_PLACEMENT


@pytest.mark.parametrize(
    ("frames", "cause"),
    [
        (("train", "save_checkpoint", "state_dict"), Cause.CHECKPOINT_SAVE_SPIKE),
        (("main", "load_checkpoint", "load"), Cause.RESUME_SPIKE),
        (("main", "evaluate", "evaluation_loop", "forward"), Cause.EVAL_ACCUMULATION),
        (("main", "from_pretrained", "convert"), Cause.CAPACITY),
        (("train", "backward"), Cause.BATCH_TOO_LARGE),
        (("train", "training_step", "forward"), Cause.BATCH_TOO_LARGE),
        (("train", "step", "_init_group"), Cause.CAPACITY),
    ],
)
def test_moment_of_the_run_is_taken_from_the_traceback(frames: tuple[str, ...], cause: Cause) -> None:
    lines = "".join(
        f'  File "/u/code.py", line {place}, in {name}\n    x()\n' for place, name in enumerate(frames, start=1)
    )
    message = oom_text(request=1.5, total=79.15, free=0.3, live=76.9, idle=0.4, in_use=78.7)
    assert verdict_of(f"Traceback (most recent call last):\n{lines}{message}").cause is cause


def test_forward_inside_an_optimizer_closure_is_forward() -> None:
    names = ("fit", "optimizer_step", "step", "closure", "training_step", "forward")
    lines = "".join(f'  File "/u/code.py", line 3, in {name}\n' for name in names)
    message = oom_text(request=1.5, total=79.15, free=0.3, live=76.9, idle=0.4, in_use=78.7)
    assert facts_of(f"Traceback (most recent call last):\n{lines}{message}").events[0].phase.value == "forward"


def _view(**changes: int) -> ModelView:
    values: dict[str, int] = {
        "usable_bytes": 79 * GIB,
        "nominal_bytes": 80 * GIB,
        "allocated_bytes": 90 * GIB,
        "high_bytes": 95 * GIB,
        "states_bytes": 30 * GIB,
        "activations_bytes": 60 * GIB,
        "one_sequence_high_bytes": 50 * GIB,
        "host_bytes": 0,
        "host_usable_bytes": 512 * GIB,
        "micro_batch_size": 4,
        "world_size": 8,
        "num_parameters": 7 * 10**9,
    }
    return ModelView(**(values | changes))


_FULL = oom_text(request=0.5, total=79.15, free=0.3, live=76.9, idle=0.4, in_use=78.7)


def test_priced_model_tells_the_batch_from_the_model() -> None:
    assert verdict_of(_FULL, model=_view()).cause is Cause.BATCH_TOO_LARGE
    assert verdict_of(_FULL, model=_view(one_sequence_high_bytes=90 * GIB)).cause is Cause.CAPACITY
    assert verdict_of(_FULL, model=_view(micro_batch_size=1)).cause is Cause.CAPACITY


def test_prediction_far_below_what_was_seen_is_said() -> None:
    view = _view(high_bytes=20 * GIB, one_sequence_high_bytes=15 * GIB, micro_batch_size=1)
    assert verdict_of(_FULL, model=view).cause is Cause.UNKNOWN_NOT_CAPACITY


def test_memory_message_is_the_cause_and_exit_codes_are_its_wake() -> None:
    log = (
        f"{_FULL}[INFO] Killing subprocess 12\n[ERROR] exits with return code = -9\nWatchdog "
        "caught collective operation timeout\n"
    )
    assert verdict_of(log).cause is Cause.CAPACITY


def test_kill_after_a_collective_timeout_is_not_the_hosts_memory() -> None:
    log = "Watchdog caught collective operation timeout: WorkNCCL\n[ERROR] exits with return code = -9\n"
    assert verdict_of(log).cause is Cause.NOT_OOM


def test_kill_before_the_peers_lost_it_is_the_hosts_memory() -> None:
    log = "[ERROR] exits with return code = -9\nRuntimeError: Connection closed by peer\n"
    assert verdict_of(log).cause is Cause.HOST_RAM


@pytest.mark.parametrize("log", ["", "\n\n", "\x00\xff\x80binary"])
def test_nothing_readable_is_no_claim_of_a_shortage(log: str) -> None:
    assert verdict_of(log).cause in (Cause.UNKNOWN_NOT_CAPACITY, Cause.NOT_OOM)
