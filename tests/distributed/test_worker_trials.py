"""Real trials on real forks: what is measured, every way a trial can end, and that the pool goes on after each."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from planner.errors import InputError
from planner.spec import (
    Crashed,
    DeviceKind,
    Diverged,
    Measured,
    OutOfMemory,
    Phase,
    Pruned,
    TimedOut,
)
from planner.trial import WarmPool
from tests.distributed.tasks import USER_MODULES, make_task, tiny_llama, user_module

MIB = 1 << 20
LIMIT_S = 120.0
PATIENCE_S = (6.0, 60.0)  # limits for what hangs: the second where a busy machine had not come that far in the first


@pytest.fixture(scope="module")
def pool() -> Iterator[WarmPool]:
    with WarmPool(DeviceKind.CPU, model_types=("llama",), extra_python_path=(USER_MODULES,)) as warm:
        warm.wait_ready()
        yield warm


def _run_good_trial(pool: WarmPool, folder: Path) -> Measured:
    outcome = pool.run(make_task(tiny_llama(), steps=1), timeout_s=LIMIT_S, log_path=folder / "good.log")
    assert isinstance(outcome, Measured), outcome
    return outcome


def _ranks_of(pool: WarmPool) -> list[psutil.Process]:
    return psutil.Process(pool.worker_pid).children() if pool.worker_pid else []


def _still_running(processes: list[psutil.Process], *, within_s: float = 60.0) -> list[psutil.Process]:
    """Those that have not ended in time. An orphan may stay a zombie for as long as nobody reaps it: it has ended."""
    deadline = time.monotonic() + within_s
    left = processes
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = [one for one in left if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    return left


def test_one_two_and_four_ranks_are_measured_and_train_alike(pool: WarmPool, tmp_path: Path) -> None:
    losses = []
    for data_parallel_size, zero_stage in ((1, 0), (2, 1), (4, 3)):
        task = make_task(tiny_llama(), data_parallel_size=data_parallel_size, zero_stage=zero_stage)
        outcome = pool.run(task, timeout_s=LIMIT_S, log_path=tmp_path / "trial.log")
        assert isinstance(outcome, Measured), outcome
        assert [report.rank for report in outcome.ranks] == list(range(data_parallel_size))
        for report in outcome.ranks:
            assert len(report.step_times_s) == 3
            assert len(report.losses) == 4
            assert report.sequences_per_step == 4
            assert report.losses == outcome.ranks[0].losses
            assert 0 < report.initialised_bytes <= report.device_used_bytes < 200 * MIB
            assert report.peak_reserved_bytes <= report.device_used_bytes
        assert outcome.tokens_per_s == pytest.approx(4 * 32 / outcome.step_time_s)
        losses.append(outcome.ranks[0].losses)
    assert losses[1] == pytest.approx(losses[0], abs=1e-4)
    assert losses[2] == pytest.approx(losses[0], abs=1e-4)


def test_progress_names_phases_and_counts_steps(pool: WarmPool, tmp_path: Path) -> None:
    heard: list[tuple[Phase, int]] = []
    task = make_task(tiny_llama(), steps=20)
    pool.run(
        task, timeout_s=LIMIT_S, log_path=tmp_path / "trial.log", on_progress=lambda phase, n: heard.append((phase, n))
    )
    counts = [steps for _, steps in heard]
    assert counts == sorted(counts)
    assert len(set(counts)) > 2
    assert len({phase for phase, _ in heard}) > 1


def test_log_holds_every_rank_and_scratch_is_gone(pool: WarmPool, tmp_path: Path) -> None:
    log_path = tmp_path / "logs with spaces" / "trial #7.log"
    left_by_a_killed_planner = log_path.parent / f".{log_path.name}.scratch" / "checkpoint"
    left_by_a_killed_planner.mkdir(parents=True)
    outcome = pool.run(
        make_task(user_module("wrong_shape_on_last_rank"), data_parallel_size=2), timeout_s=LIMIT_S, log_path=log_path
    )
    assert isinstance(outcome, Crashed)
    assert list(log_path.parent.iterdir()) == [log_path]
    assert "[rank 1] RuntimeError: mat1 and mat2 shapes cannot be multiplied" in log_path.read_text()


def test_checkpoint_is_saved_and_loaded_once_and_removed(pool: WarmPool, tmp_path: Path) -> None:
    task = make_task(tiny_llama(), data_parallel_size=2, zero_stage=1, check_checkpoint=True)
    outcome = pool.run(task, timeout_s=LIMIT_S, log_path=tmp_path / "trial.log")
    assert isinstance(outcome, Measured), outcome
    assert all(0 < report.checkpoint_peak_bytes <= report.device_used_bytes for report in outcome.ranks)
    assert list(tmp_path.iterdir()) == [tmp_path / "trial.log"]


def test_profile_of_a_trial_is_written_beside_what_was_measured(pool: WarmPool, tmp_path: Path) -> None:
    folder = tmp_path / "a profile"
    task = make_task(tiny_llama(), data_parallel_size=2, zero_stage=1, profile_dir=str(folder))
    outcome = pool.run(task, timeout_s=LIMIT_S, log_path=tmp_path / "trial.log")
    assert isinstance(outcome, Measured), outcome
    assert len(outcome.ranks[0].step_times_s) == len(outcome.ranks[0].allocated_by_step_bytes) == 3
    for rank in (0, 1):
        trace = json.loads((folder / f"trace-rank{rank}.json").read_text())
        assert any("optimizer" in str(event.get("name", "")).lower() for event in trace["traceEvents"])
        lines = (folder / f"memory-rank{rank}.jsonl").read_text().splitlines()
        assert lines and all(json.loads(line)["resident"] > 0 for line in lines)


def test_hopeless_trial_is_stopped_on_all_ranks_after_the_same_step(pool: WarmPool, tmp_path: Path) -> None:
    task = make_task(tiny_llama(), data_parallel_size=2, zero_stage=1, steps=40, hopeless_step_s=1e-6)
    outcome = pool.run(task, timeout_s=LIMIT_S, log_path=tmp_path / "trial.log")
    assert isinstance(outcome, Pruned), outcome
    assert [len(report.step_times_s) for report in outcome.ranks] == [1, 1]
    assert outcome.device_used_bytes > 0 and outcome.tokens_per_s > 0


def test_memory_limit_makes_out_of_memory_real_and_the_next_trial_runs(pool: WarmPool, tmp_path: Path) -> None:
    # 200,000 x 64 parameters of embedding and as many of the head: 98 MiB of weights, and four times that to train.
    task = make_task(tiny_llama(vocab_size=200_000), data_parallel_size=2, memory_limit_bytes=150 * MIB)
    outcome = pool.run(task, timeout_s=LIMIT_S, log_path=tmp_path / "oom.log")
    assert isinstance(outcome, OutOfMemory), outcome
    assert outcome.capacity_bytes == 150 * MIB
    assert outcome.requested_bytes > 10 * MIB
    assert 0 < outcome.excess_fraction < 10
    assert "DefaultCPUAllocator" in outcome.log_tail
    _run_good_trial(pool, tmp_path)


def test_one_rank_out_of_memory_ends_the_other_before_the_time_limit(pool: WarmPool, tmp_path: Path) -> None:
    task = make_task(user_module("hoards_on_last_rank"), data_parallel_size=2, memory_limit_bytes=500 * MIB)
    began_s = time.monotonic()
    outcome = pool.run(task, timeout_s=LIMIT_S, log_path=tmp_path / "oom.log")
    assert time.monotonic() - began_s < LIMIT_S  # the peer waits in a collective for ever: it was ended
    assert isinstance(outcome, OutOfMemory), outcome
    assert (outcome.rank, outcome.phase) == (1, Phase.FORWARD)
    assert outcome.requested_bytes == 4 << 30


def test_hang_ends_at_the_time_limit_with_the_stack_in_its_log(pool: WarmPool, tmp_path: Path) -> None:
    task = make_task(user_module("sleeps"), data_parallel_size=2)
    for limit_s in PATIENCE_S:
        began_s = time.monotonic()
        outcome = pool.run(task, timeout_s=limit_s, log_path=tmp_path / "hang.log")
        assert time.monotonic() - began_s >= limit_s
        assert isinstance(outcome, TimedOut), outcome
        if outcome.phase is Phase.FORWARD:
            break
    assert (outcome.limit_s, outcome.phase) == (limit_s, Phase.FORWARD)
    assert "misbehaving.py" in outcome.log_tail
    _run_good_trial(pool, tmp_path)


@pytest.mark.parametrize(
    ("function", "kind", "words"),
    [
        ("segfaults_on_last_rank", Crashed, "SIGSEGV"),
        ("exits", Crashed, "SystemExit: 7"),
        ("leaves_silently", Crashed, "left no report"),
        ("cannot_be_built", Crashed, "FileNotFoundError: weights.bin"),
        ("wrong_shape_on_last_rank", Crashed, "shapes cannot be multiplied"),
    ],
)
def test_crash_is_told_with_its_cause_and_the_next_trial_runs(
    pool: WarmPool, tmp_path: Path, function: str, kind: type, words: str
) -> None:
    began_s = time.monotonic()
    outcome = pool.run(
        make_task(user_module(function), data_parallel_size=2), timeout_s=LIMIT_S, log_path=tmp_path / "crash.log"
    )
    assert time.monotonic() - began_s < LIMIT_S  # the peer waits in a collective for ever: it was ended
    assert isinstance(outcome, Crashed), outcome
    assert words in outcome.message
    if function.endswith("on_last_rank"):
        assert outcome.rank == 1
    _run_good_trial(pool, tmp_path)


def test_loss_that_is_not_a_number_is_divergence(pool: WarmPool, tmp_path: Path) -> None:
    task = make_task(user_module("becomes_nan"), data_parallel_size=2)
    outcome = pool.run(task, timeout_s=LIMIT_S, log_path=tmp_path / "nan.log")
    assert isinstance(outcome, Diverged), outcome
    assert outcome.step == 1  # two micro-batches a step and rank: the third forward pass is in the second step
    assert len(outcome.losses) == 2


def test_rank_killed_by_a_stranger_is_a_crash_with_its_signal(pool: WarmPool, tmp_path: Path) -> None:
    task = make_task(user_module("killed_on_last_rank"), data_parallel_size=2)
    began_s = time.monotonic()
    outcome = pool.run(task, timeout_s=LIMIT_S, log_path=tmp_path / "killed.log")
    assert time.monotonic() - began_s < LIMIT_S  # the peer waits in a collective for ever: it was ended
    assert isinstance(outcome, Crashed), outcome
    assert (outcome.rank, outcome.exit_code) == (1, -9)
    _run_good_trial(pool, tmp_path)


def test_programs_that_a_rank_started_end_with_it(pool: WarmPool, tmp_path: Path) -> None:
    task = make_task(user_module("starts_a_program_and_sleeps"))
    for limit_s in PATIENCE_S:
        outcome = pool.run(task, timeout_s=limit_s, log_path=tmp_path / "t.log")
        assert isinstance(outcome, TimedOut), outcome
        started = re.search(r"started program (\d+)", (tmp_path / "t.log").read_text())
        if started is not None:
            break
    assert started is not None, (tmp_path / "t.log").read_text()
    assert not _still_running([one for one in psutil.process_iter() if one.pid == int(started[1])])
    assert not _ranks_of(pool)


def test_log_of_a_chatterbox_is_kept_in_bounds(pool: WarmPool, tmp_path: Path) -> None:
    task = make_task(user_module("prints_endlessly"))
    outcome = pool.run(task, timeout_s=LIMIT_S, log_path=tmp_path / "chatter.log")
    assert isinstance(outcome, Measured), outcome
    assert (tmp_path / "chatter.log").stat().st_size < 32 * MIB


def test_death_of_the_worker_is_an_outcome_and_another_is_started(pool: WarmPool, tmp_path: Path) -> None:
    dead: list[psutil.Process] = []

    def kill_worker(_phase: Phase, steps_done: int) -> None:
        if steps_done > 2 and not dead:
            worker = psutil.Process(pool.worker_pid)
            dead.extend([worker, *worker.children()])
            os.kill(worker.pid, signal.SIGKILL)

    task = make_task(tiny_llama(), data_parallel_size=2, steps=100_000)
    outcome = pool.run(task, timeout_s=LIMIT_S, log_path=tmp_path / "worker.log", on_progress=kill_worker)
    assert isinstance(outcome, Crashed), outcome
    assert (outcome.rank, outcome.exit_code) == (-1, -9)
    assert len(dead) == 3
    assert not _still_running(dead)
    _run_good_trial(pool, tmp_path)


def test_log_that_no_disk_takes_is_explained_and_the_next_trial_runs(pool: WarmPool, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot write"):
        pool.run(make_task(tiny_llama()), timeout_s=LIMIT_S, log_path=tmp_path / "file" / "trial.log")
    _run_good_trial(pool, tmp_path)


def test_worker_that_died_between_trials_is_replaced(pool: WarmPool, tmp_path: Path) -> None:
    pool.wait_ready()
    worker = psutil.Process(pool.worker_pid)
    worker.kill()
    worker.wait(timeout=60)
    _run_good_trial(pool, tmp_path)


class _Stop(Exception):
    """Stands for Ctrl-C, which arrives as an exception at any moment."""


def test_interruption_ends_the_trial_and_leaves_no_process(pool: WarmPool, tmp_path: Path) -> None:
    seen: list[psutil.Process] = []

    def interrupt(_phase: Phase, steps_done: int) -> None:
        if steps_done > 2:
            seen.extend(_ranks_of(pool))
            raise _Stop

    with pytest.raises(_Stop):
        pool.run(
            make_task(tiny_llama(), data_parallel_size=2, steps=100_000),
            timeout_s=LIMIT_S,
            log_path=tmp_path / "stopped.log",
            on_progress=interrupt,
        )
    assert len(seen) == 2
    assert not _still_running(seen)
    assert pool.worker_pid is None
    assert list(tmp_path.iterdir()) == [tmp_path / "stopped.log"]
    _run_good_trial(pool, tmp_path)
