"""From what the ranks left behind to the outcome of the trial."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from planner.spec import (
    Crashed,
    DeviceKind,
    Diverged,
    HostOutOfMemory,
    Measured,
    Outcome,
    OutOfMemory,
    Phase,
    Pruned,
    TimedOut,
)
from planner.spec.codec import from_plain, to_plain
from planner.spec.worker import RankEnd, RankFailure
from planner.trial import TrialFacts, classify_trial
from tests.unit.trial import messages
from tests.unit.trial.samples import (
    died,
    ended_by_worker,
    ended_well,
    make_facts,
    make_model,
    make_report,
    make_task,
    raised,
)

GIB = 1 << 30
CUDA_OOM = "torch.OutOfMemoryError"


def test_reports_of_all_ranks_make_a_measured_trial() -> None:
    slow = make_report(0, step_times_s=(1.0, 1.4, 1.1))
    fast = make_report(1, step_times_s=(0.9, 1.0, 1.3))
    outcome = classify_trial(make_facts(ended_well(0, slow), ended_well(1, fast)))
    assert isinstance(outcome, Measured)
    assert outcome.step_time_s == 1.3  # the slowest rank of each step: 1.0, 1.4, 1.3
    assert outcome.step_time_spread_s == pytest.approx(1.4826 * 0.1)
    assert outcome.tokens_per_s == pytest.approx(8 * 128 / 1.3)
    assert outcome.ranks == (slow, fast)


def test_tokens_of_a_factory_model_are_those_of_its_samples() -> None:
    task = make_task(model=make_model(tokens_per_sample=196))
    outcome = classify_trial(make_facts(ended_well(0), ended_well(1), task=task))
    assert isinstance(outcome, Measured)
    assert outcome.tokens_per_s == pytest.approx(8 * 196 / 1.1)


def test_time_limit_reached_in_the_teardown_still_counts_what_was_measured() -> None:
    after_all = RankEnd(
        rank=1,
        exit_code=-9,
        killed=True,
        ended_at_s=30.0,
        phase=Phase.FINISH,
        steps_done=4,
        report=make_report(1),
    )
    assert isinstance(classify_trial(make_facts(ended_well(0), after_all, timed_out=True)), Measured)


def test_other_number_of_sequences_is_a_broken_promise() -> None:
    outcome = classify_trial(make_facts(ended_well(0), ended_well(1, make_report(1, sequences_per_step=16))))
    assert isinstance(outcome, Crashed)
    assert "16 sequences" in outcome.message
    assert "global batch size is 8" in outcome.message


@pytest.mark.parametrize(("message", "allocated"), [(messages.TORCH_2_5, 9.08), (messages.TORCH_LIMITED, 9.0)])
def test_cuda_out_of_memory_carries_the_figures_of_its_message(message: str, allocated: float) -> None:
    failing = raised(1, CUDA_OOM, message, allocated_bytes=1, capacity_bytes=2)
    outcome = classify_trial(make_facts(ended_by_worker(0), failing))
    assert isinstance(outcome, OutOfMemory)
    assert (outcome.rank, outcome.phase) == (1, Phase.BACKWARD)
    assert outcome.allocated_bytes == pytest.approx(allocated * GIB, abs=1)
    assert outcome.excess_fraction > 0
    assert outcome.log_tail == "log of rank 1"


@pytest.mark.parametrize("message", [messages.CUDA_PLAIN, messages.CUBLAS, messages.NCCL_MEMORY])
def test_out_of_memory_outside_the_allocator_takes_the_devices_figures(message: str) -> None:
    failing = raised(0, "torch.AcceleratorError", message, allocated_bytes=5, capacity_bytes=7)
    outcome = classify_trial(make_facts(failing, ended_by_worker(1)))
    assert isinstance(outcome, OutOfMemory)
    assert (outcome.requested_bytes, outcome.allocated_bytes, outcome.capacity_bytes) == (0, 5, 7)


def test_out_of_memory_hidden_behind_another_exception_is_found() -> None:
    failing = raised(0, "RuntimeError", "hook failed", chain=(f"{CUDA_OOM}: {messages.TORCH_2_5}",))
    outcome = classify_trial(make_facts(failing, ended_by_worker(1)))
    assert isinstance(outcome, OutOfMemory)
    assert outcome.requested_bytes == pytest.approx(22.78 * GIB, abs=1)


@pytest.mark.parametrize(
    ("exception", "message"),
    [
        ("RuntimeError", messages.CPU_ALLOCATOR),
        ("MemoryError", ""),
        ("MemoryError", "std::bad_alloc"),
        ("OSError", "[Errno 12] Cannot allocate memory"),
        ("RuntimeError", "can't start new thread"),
        ("RuntimeError", "could not create a primitive"),
        ("RuntimeError", "std::bad_alloc"),
        ("BlockingIOError", "[Errno 11] Resource temporarily unavailable"),
    ],
)
def test_cpu_memory_under_a_limit_is_the_devices(exception: str, message: str) -> None:
    task = make_task(device=DeviceKind.CPU, memory_limit_bytes=GIB)
    failing = raised(0, exception, message, allocated_bytes=GIB // 2, capacity_bytes=GIB)
    outcome = classify_trial(make_facts(failing, died(1, exit_code=0), task=task))
    assert isinstance(outcome, OutOfMemory)
    assert outcome.capacity_bytes == GIB
    assert outcome.allocated_bytes == GIB // 2


def test_primitive_refused_without_a_limit_is_a_crash() -> None:
    failing = raised(0, "RuntimeError", "could not create a primitive")
    task = make_task(device=DeviceKind.CPU)
    assert isinstance(classify_trial(make_facts(failing, ended_by_worker(1), task=task)), Crashed)


def test_unsupported_primitive_under_a_limit_is_a_crash() -> None:
    failing = raised(0, "RuntimeError", "could not create a primitive descriptor for a matmul primitive")
    task = make_task(device=DeviceKind.CPU, memory_limit_bytes=GIB)
    assert isinstance(classify_trial(make_facts(failing, ended_by_worker(1), task=task)), Crashed)


@pytest.mark.parametrize("device", list(DeviceKind))
def test_cpu_memory_without_a_limit_is_the_hosts(device: DeviceKind) -> None:
    failing = raised(0, "RuntimeError", messages.CPU_ALLOCATOR)
    outcome = classify_trial(make_facts(failing, ended_by_worker(1), task=make_task(device=device)))
    assert isinstance(outcome, HostOutOfMemory)


def test_abort_on_bad_alloc_under_a_limit_is_out_of_memory() -> None:
    task = make_task(device=DeviceKind.CPU, memory_limit_bytes=GIB)
    tails = (messages.BAD_ALLOC_ABORT, "")
    outcome = classify_trial(make_facts(died(0, exit_code=-6), ended_by_worker(1), task=task, log_tails=tails))
    assert isinstance(outcome, OutOfMemory)
    assert outcome.capacity_bytes == GIB


def test_loader_refused_memory_under_a_limit_is_out_of_memory() -> None:
    words = "cannot allocate memory for thread-local data: ABORT\n"
    task = make_task(device=DeviceKind.CPU, memory_limit_bytes=GIB)
    ends = (died(0, exit_code=127), ended_by_worker(1))
    assert isinstance(classify_trial(make_facts(*ends, task=task, log_tails=(words, ""))), OutOfMemory)
    assert isinstance(classify_trial(make_facts(*ends, task=task, log_tails=("not found", ""))), Crashed)


def test_abort_without_a_word_of_memory_is_a_crash() -> None:
    outcome = classify_trial(make_facts(died(0, exit_code=-6), ended_by_worker(1)))
    assert isinstance(outcome, Crashed)
    assert outcome.exit_code == -6


def test_signal_9_that_the_kernel_counted_is_the_hosts_memory() -> None:
    lost = raised(0, "RuntimeError", messages.GLOO_CLOSED, at_s=9.99)
    outcome = classify_trial(make_facts(lost, died(1, exit_code=-9), kernel_oom_kills=1))
    assert isinstance(outcome, HostOutOfMemory)
    assert (outcome.rank, outcome.phase) == (1, Phase.FORWARD)
    assert "out-of-memory killer ended 1" in outcome.log_tail


def test_signal_9_after_words_of_short_host_memory_is_the_hosts_memory() -> None:
    tails = ("", messages.CPU_ALLOCATOR)
    outcome = classify_trial(make_facts(ended_by_worker(0), died(1, exit_code=-9), log_tails=tails))
    assert isinstance(outcome, HostOutOfMemory)


def test_signal_9_without_a_sign_of_short_memory_is_a_crash_that_names_the_chance() -> None:
    lost = raised(0, "RuntimeError", messages.GLOO_CLOSED, at_s=9.99)
    outcome = classify_trial(make_facts(lost, died(1, exit_code=-9)))
    assert isinstance(outcome, Crashed)
    assert (outcome.rank, outcome.phase, outcome.exit_code) == (1, Phase.FORWARD, -9)
    assert "killed by signal 9, which is what the kernel does when host memory is short" in outcome.message


def test_segmentation_fault_is_a_crash_with_its_signal() -> None:
    outcome = classify_trial(make_facts(died(0, exit_code=-11), ended_by_worker(1)))
    assert isinstance(outcome, Crashed)
    assert outcome.exit_code == -11
    assert "SIGSEGV" in outcome.message


def test_first_cause_decides_although_a_peer_noticed_earlier() -> None:
    # The peer saw the connection close before the worker saw the death.
    collateral = raised(0, "RuntimeError", messages.GLOO_RESET, at_s=9.98)
    outcome = classify_trial(make_facts(collateral, died(1, exit_code=-11, at_s=10.03)))
    assert isinstance(outcome, Crashed)
    assert outcome.rank == 1


def test_earliest_of_two_own_failures_decides() -> None:
    first = raised(1, "ValueError", "bad shape", at_s=9.0)
    second = raised(0, CUDA_OOM, messages.TORCH_2_5, at_s=9.5)
    outcome = classify_trial(make_facts(second, first))
    assert isinstance(outcome, Crashed)
    assert outcome.message == "ValueError: bad shape"


@pytest.mark.parametrize("message", [messages.NCCL_REMOTE, messages.NCCL_SYSTEM, messages.GLOO_CLOSED])
def test_communication_error_with_no_other_cause_is_a_crash(message: str) -> None:
    outcome = classify_trial(make_facts(raised(0, "torch.distributed.DistBackendError", message), ended_by_worker(1)))
    assert isinstance(outcome, Crashed)
    assert message in outcome.message


def test_system_exit_keeps_its_words_and_code() -> None:
    outcome = classify_trial(make_facts(raised(0, "SystemExit", "3"), ended_by_worker(1)))
    assert isinstance(outcome, Crashed)
    assert (outcome.message, outcome.exit_code) == ("SystemExit: 3", 1)


def test_process_that_ends_quietly_without_a_report_is_a_crash() -> None:
    outcome = classify_trial(make_facts(died(0, exit_code=0), ended_well(1)))
    assert isinstance(outcome, Crashed)
    assert "left no report" in outcome.message


def test_time_limit_names_the_rank_that_was_furthest_behind() -> None:
    ahead = ended_by_worker(0, phase=Phase.FORWARD, steps=3)
    behind = ended_by_worker(1, phase=Phase.OPTIMIZER_STEP, steps=2)
    outcome = classify_trial(make_facts(ahead, behind, timed_out=True))
    assert outcome == TimedOut(limit_s=30.0, phase=Phase.OPTIMIZER_STEP, log_tail="log of rank 1")


def test_failure_just_before_the_time_limit_is_still_the_failure() -> None:
    outcome = classify_trial(make_facts(raised(0, "ValueError", "no"), ended_by_worker(1), timed_out=True))
    assert isinstance(outcome, Crashed)


def test_peers_that_give_up_waiting_at_the_time_limit_do_not_hide_the_hang() -> None:
    gave_up = raised(0, "RuntimeError", messages.GLOO_CLOSED)
    outcome = classify_trial(make_facts(gave_up, ended_by_worker(1), timed_out=True))
    assert isinstance(outcome, TimedOut)
    assert outcome.log_tail == "log of rank 0" or outcome.log_tail == "log of rank 1"


def test_loss_that_is_not_finite_is_divergence_at_its_step() -> None:
    failure = RankFailure(
        exception="planner.runtime.worker_steps.TrialDiverged",
        message="the loss is nan",
        failed_at_s=10.0,
        diverged_at_step=1,
        losses=(4.0, math.nan),
    )
    ranks = tuple(
        RankEnd(
            rank=rank, exit_code=1, killed=False, ended_at_s=10.1, phase=Phase.FORWARD, steps_done=2, failure=failure
        )
        for rank in (0, 1)
    )
    outcome = classify_trial(make_facts(*ranks))
    assert isinstance(outcome, Diverged)
    assert outcome.step == 1
    assert math.isnan(outcome.losses[1])


def test_reports_with_every_step_skipped_are_divergence() -> None:
    report = make_report(0, skipped_steps=4)
    outcome = classify_trial(make_facts(ended_well(0, report), ended_well(1, make_report(1, skipped_steps=4))))
    assert isinstance(outcome, Diverged)


def test_steps_skipped_while_the_scale_settles_are_measured() -> None:
    outcome = classify_trial(
        make_facts(ended_well(0, make_report(0, skipped_steps=1)), ended_well(1, make_report(1, skipped_steps=1)))
    )
    assert isinstance(outcome, Measured)


def _worker_gone(exit_code: int | None, *, kernel_oom_kills: int = 0) -> TrialFacts:
    return TrialFacts(
        task=make_task(),
        timeout_s=30.0,
        end=None,
        log_tails=("first", ""),
        last_phase=Phase.BUILD_ENGINE,
        worker_exit_code=exit_code,
        kernel_oom_kills=kernel_oom_kills,
    )


def test_death_of_the_worker_is_a_crash_of_no_rank() -> None:
    outcome = classify_trial(_worker_gone(-9))
    assert isinstance(outcome, Crashed)
    assert (outcome.rank, outcome.phase, outcome.exit_code) == (-1, Phase.BUILD_ENGINE, -9)
    assert outcome.log_tail == "first"


def test_death_of_the_worker_by_the_kernels_killer_is_the_hosts_memory() -> None:
    assert isinstance(classify_trial(_worker_gone(-9, kernel_oom_kills=2)), HostOutOfMemory)


def test_worker_that_answers_no_more_is_a_time_out() -> None:
    assert isinstance(classify_trial(_worker_gone(None)), TimedOut)


def test_trial_stopped_early_is_pruned_with_its_quickest_step_as_the_bound() -> None:
    slow = replace(make_report(0, step_times_s=(3.0, 2.5)), stopped_early=True)
    other = replace(make_report(1, step_times_s=(2.0, 2.6)), stopped_early=True)
    task = replace(make_task(), hopeless_step_s=1.5)
    outcome = classify_trial(make_facts(ended_well(0, slow), ended_well(1, other), task=task))
    assert isinstance(outcome, Pruned)
    assert (outcome.step_time_s, outcome.limit_s) == (2.6, 1.5)  # the slowest rank of each step: 3.0, 2.6
    assert outcome.tokens_per_s == pytest.approx(8 * 128 / 2.6)
    assert from_plain(Outcome, to_plain(outcome)) == outcome
