"""Why an attempt ended, from what its ranks left."""

from __future__ import annotations

import pytest

from planner.spec import Phase
from planner.spec.supervision import RankExit
from planner.spec.worker import RankFailure
from planner.supervise.evidence import Leftovers, judge
from planner.supervise.policy import DONE, FAILED, OUT_OF_MEMORY, STOPPED

CUDA = "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.15 GiB"


def word(rank: int, *, exception: str = "", message: str = "", at_s: float = 1.0, stopped: bool = False) -> RankExit:
    failure = RankFailure(exception=exception, message=message, failed_at_s=at_s) if exception else None
    return RankExit(rank=rank, phase=Phase.BACKWARD, steps_done=7, failure=failure, stopped=stopped)


def left(*exits: RankExit, exit_code: int = 1, log_tail: str = "", kills: int = 0, told: bool = False) -> Leftovers:
    return Leftovers(exits=exits, exit_code=exit_code, log_tail=log_tail, kernel_oom_kills=kills, told_to_stop=told)


def test_judge_first_rank_that_failed_by_itself_is_the_cause() -> None:
    lost = word(0, exception="RuntimeError", message="Connection closed by peer [127.0.0.1]:1", at_s=1.0)
    oom = word(3, exception="torch.OutOfMemoryError", message=CUDA, at_s=2.0)
    ending = judge(left(lost, oom))
    assert (ending.end, ending.rank, ending.phase, ending.steps_done) == (OUT_OF_MEMORY, 3, Phase.BACKWARD, 7)


@pytest.mark.parametrize(
    ("exception", "message", "end"),
    [
        ("torch.OutOfMemoryError", CUDA, OUT_OF_MEMORY),
        ("MemoryError", "std::bad_alloc", OUT_OF_MEMORY),
        ("RuntimeError", "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes", OUT_OF_MEMORY),
        ("planner.runtime.preflight.NotEnoughFreeMemory", "only 3 GiB free", OUT_OF_MEMORY),
        ("ValueError", "shapes do not match", FAILED),
        ("RuntimeError", "Connection closed by peer", FAILED),
    ],
)
def test_judge_tells_memory_from_other_failures(exception: str, message: str, end: str) -> None:
    assert judge(left(word(0, exception=exception, message=message))).end == end


def test_judge_without_a_word_reads_the_log_and_the_kernels_count() -> None:
    aborted = "terminate called after throwing an instance of 'std::bad_alloc'"
    assert judge(left(log_tail=f"step 3\n{aborted}\n")).end == OUT_OF_MEMORY
    killed = "  exitcode  : -9 (pid: 12)"
    assert judge(left(log_tail=killed, kills=1)).end == OUT_OF_MEMORY
    assert judge(left(log_tail=killed)).end == FAILED  # somebody else may have sent the signal


def test_judge_rank_killed_for_memory_is_the_cause_though_only_its_peers_left_word() -> None:
    lost = word(1, exception="RuntimeError", message="Connection closed by peer [127.0.0.1]:1")
    logged = "torch.distributed.elastic: failed (exitcode: -9) local_rank: 0 (pid: 12) of binary: python"
    ending = judge(left(lost, log_tail=logged, kills=1))
    assert (ending.end, ending.rank, ending.steps_done) == (OUT_OF_MEMORY, -1, 7)
    assert judge(left(lost, log_tail="terminate called after throwing 'std::bad_alloc'")).end == OUT_OF_MEMORY
    alone = judge(left(lost, log_tail=logged))  # somebody else may have sent the signal
    assert (alone.end, alone.rank) == (FAILED, 1)
    bug = word(2, exception="ValueError", message="shapes do not match")
    assert judge(left(lost, bug, log_tail=logged, kills=1)).rank == 2


def test_judge_done_and_stopped() -> None:
    assert judge(left(exit_code=0)).end == DONE
    assert judge(left(word(0, stopped=True), exit_code=0)).end == STOPPED
    assert judge(left(exit_code=-15, told=True)).end == STOPPED
