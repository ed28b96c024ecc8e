"""How a trial ended, decided from what its ranks left behind. Pure.

Owns which rank's end is the cause and which are collateral, what kind of end it is, and the figures of a measured
trial. Leaves phrases to `planner.diagnose`, processes and files to `pool`.
"""

from __future__ import annotations

import math
import signal
from enum import Enum, auto

from planner.diagnose.memory_text import (
    read_device_figures,
    requested_of_host,
    says_device_memory_ran_out,
    says_host_memory_ran_out,
    says_memory_under_limit,
    says_peer_was_lost,
)
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
    RankReport,
    TimedOut,
    TrialTask,
)
from planner.spec._record import record
from planner.spec.runs import median_and_spread
from planner.spec.worker import RankEnd, RankFailure, TrialEnd
from planner.trial.logs import TAIL_BYTES

_THREAD_REFUSED = "Resource temporarily unavailable"  # under a memory limit a thread's stack could not be had
_KILLED = (
    "killed by signal 9, which is what the kernel does when host memory is short; no such kill was counted, so the "
    "program itself or somebody else may have sent it"
)
_LOADER_GAVE_UP = 127  # the exit code of glibc's loader when it cannot have memory for a library or a thread


@record
class TrialFacts:
    """All that is known of a trial that ended. `end` is None when the worker did not bring it to one: it died
    (`worker_exit_code`) or did not answer any more (None). `log_tails`: one per rank."""

    task: TrialTask
    timeout_s: float
    end: TrialEnd | None
    log_tails: tuple[str, ...]
    last_phase: Phase = Phase.START
    worker_exit_code: int | None = None
    kernel_oom_kills: int = 0  # by the whole host, while the trial ran


class _Cause(Enum):
    DEVICE_MEMORY = auto()
    HOST_MEMORY = auto()
    DIVERGED = auto()
    PEER_LOST = auto()
    OTHER = auto()


def classify_trial(facts: TrialFacts) -> Outcome:
    """The outcome. The first cause decides it: the earliest rank that failed by itself; ranks that merely lost a peer
    or were ended by the worker do not."""
    if facts.end is None:
        return _without_end(facts)
    failed = [rank for rank in facts.end.ranks if rank.report is None and not rank.killed]
    causes = [(rank, _cause_of(rank, facts)) for rank in failed]
    own = [(rank, cause) for rank, cause in causes if cause is not _Cause.PEER_LOST]
    if own or (failed and not facts.end.timed_out):
        rank, cause = min(own or causes, key=lambda pair: _failed_at_s(pair[0]))
        return _failure(rank, cause, facts)
    if any(rank.report is None for rank in facts.end.ranks) or not facts.end.ranks:
        return _timed_out(facts.end.ranks, facts)
    return _measured(tuple(rank.report for rank in facts.end.ranks if rank.report is not None), facts)


def _without_end(facts: TrialFacts) -> Outcome:
    tail = "\n".join(tail for tail in facts.log_tails if tail)[-TAIL_BYTES:]
    if facts.worker_exit_code is None:
        return TimedOut(limit_s=facts.timeout_s, phase=facts.last_phase, log_tail=tail)
    if facts.worker_exit_code == -signal.SIGKILL and facts.kernel_oom_kills > 0:
        return HostOutOfMemory(rank=-1, phase=facts.last_phase, log_tail=tail)
    return Crashed(
        rank=-1,
        phase=facts.last_phase,
        exit_code=facts.worker_exit_code,
        message=f"the trial worker itself ended during the trial ({_how_it_ended(facts.worker_exit_code)})",
        log_tail=tail,
    )


def _failed_at_s(rank: RankEnd) -> float:
    return rank.failure.failed_at_s if rank.failure else rank.ended_at_s


def _cause_of(rank: RankEnd, facts: TrialFacts) -> _Cause:
    if rank.failure is None:
        return _cause_of_silent_death(rank, facts)
    if rank.failure.diverged_at_step >= 0:
        return _Cause.DIVERGED
    # An exception raised while handling another hides it: the one that speaks of memory is the cause.
    texts = (_as_text(rank.failure), *rank.failure.chain)
    for text in texts:
        if says_device_memory_ran_out(text) or text.startswith("torch.OutOfMemoryError"):
            return _Cause.DEVICE_MEMORY
        if _host_refused(text, facts.task) or text.startswith("MemoryError"):
            return _host_or_limit(facts.task)
    return _Cause.PEER_LOST if any(map(says_peer_was_lost, texts)) else _Cause.OTHER


def _cause_of_silent_death(rank: RankEnd, facts: TrialFacts) -> _Cause:
    tail = facts.log_tails[rank.rank]
    if rank.exit_code == -signal.SIGKILL:  # no proof by itself: a script, a person or a batch system sends it too
        short = facts.kernel_oom_kills > 0 or says_host_memory_ran_out(tail)
        return _Cause.HOST_MEMORY if short else _Cause.OTHER
    if rank.exit_code in (-signal.SIGABRT, _LOADER_GAVE_UP) and _host_refused(tail, facts.task):
        return _host_or_limit(facts.task)
    if rank.exit_code == -signal.SIGABRT and says_device_memory_ran_out(tail):
        return _Cause.DEVICE_MEMORY
    return _Cause.OTHER


def _host_refused(text: str, task: TrialTask) -> bool:
    if _is_limited(task):
        return says_memory_under_limit(text)
    return says_host_memory_ran_out(text) or _THREAD_REFUSED in text


def _is_limited(task: TrialTask) -> bool:
    return task.device is DeviceKind.CPU and task.memory_limit_bytes > 0


def _host_or_limit(task: TrialTask) -> _Cause:
    """On CPU under a limit, the limit is the device's memory; otherwise it is the host that had no more."""
    return _Cause.DEVICE_MEMORY if _is_limited(task) else _Cause.HOST_MEMORY


def _failure(rank: RankEnd, cause: _Cause, facts: TrialFacts) -> Outcome:
    tail = facts.log_tails[rank.rank]
    if cause is _Cause.DEVICE_MEMORY:
        return _out_of_memory(rank, facts)
    if cause is _Cause.HOST_MEMORY:
        return HostOutOfMemory(rank=rank.rank, phase=rank.phase, log_tail=tail + _evidence(rank, facts))
    if cause is _Cause.DIVERGED and rank.failure is not None:
        return Diverged(step=rank.failure.diverged_at_step, losses=rank.failure.losses, log_tail=tail)
    message = _as_text(rank.failure) if rank.failure else _how_it_ended(rank.exit_code)
    return Crashed(rank=rank.rank, phase=rank.phase, exit_code=rank.exit_code, message=message, log_tail=tail)


def _evidence(rank: RankEnd, facts: TrialFacts) -> str:
    if rank.exit_code != -signal.SIGKILL or not facts.kernel_oom_kills:
        return ""
    return f"\n[trial] the kernel's out-of-memory killer ended {facts.kernel_oom_kills} process(es) meanwhile\n"


def _out_of_memory(rank: RankEnd, facts: TrialFacts) -> OutOfMemory:
    failure = rank.failure
    texts = (_as_text(failure), *failure.chain) if failure else (facts.log_tails[rank.rank],)
    parsed = next(filter(None, map(read_device_figures, texts)), None)
    requested = parsed.requested_bytes if parsed else max(map(requested_of_host, texts))
    allocated = (parsed.allocated_bytes if parsed else 0) or (failure.allocated_bytes if failure else 0)
    capacity = (parsed.capacity_bytes if parsed else 0) or (failure.capacity_bytes if failure else 0)
    return OutOfMemory(
        rank=rank.rank,
        phase=rank.phase,
        requested_bytes=requested,
        allocated_bytes=allocated,
        capacity_bytes=capacity or facts.task.memory_limit_bytes,
        log_tail=facts.log_tails[rank.rank],
    )


def _timed_out(ranks: tuple[RankEnd, ...], facts: TrialFacts) -> TimedOut:
    """The rank that was furthest behind is the one the others waited for: its place and its log tell most."""
    waiting = [rank for rank in ranks if rank.report is None]
    order = list(Phase)
    behind = min(waiting, key=lambda rank: (rank.steps_done, order.index(rank.phase)), default=None)
    return TimedOut(
        limit_s=facts.timeout_s,
        phase=behind.phase if behind else facts.last_phase,
        log_tail=facts.log_tails[behind.rank] if behind else "",
    )


def _measured(reports: tuple[RankReport, ...], facts: TrialFacts) -> Outcome:
    """Measured, unless the reports themselves say that what ran was not the job."""
    promised = facts.task.training.global_batch_size
    for report in reports:
        tail = facts.log_tails[report.rank]
        if report.sequences_per_step != promised:
            message = (
                f"one optimizer step consumed {report.sequences_per_step} sequences, "
                f"but the job's global batch size is {promised}"
            )
            return Crashed(rank=report.rank, phase=Phase.FINISH, exit_code=0, message=message, log_tail=tail)
        wrong = [step for step, loss in enumerate(report.losses) if not math.isfinite(loss)]
        # A script of the user's may show no losses; its watch has seen to it that some step was taken.
        if wrong or (report.losses and report.skipped_steps >= len(report.losses)):
            step = wrong[0] if wrong else len(report.losses) - 1
            return Diverged(step=step, losses=report.losses, log_tail=tail)
    slowest = tuple(max(times) for times in zip(*(report.step_times_s for report in reports)))
    tokens = promised * _tokens_per_sequence(facts.task)
    if any(report.stopped_early for report in reports):
        quickest_s, limit_s = min(slowest), facts.task.hopeless_step_s
        return Pruned(step_time_s=quickest_s, tokens_per_s=tokens / quickest_s, limit_s=limit_s, ranks=reports)
    step_time_s, spread_s = median_and_spread(slowest)
    return Measured(
        step_time_s=step_time_s,
        step_time_spread_s=spread_s,
        tokens_per_s=tokens / step_time_s,
        ranks=reports,
    )


def _tokens_per_sequence(task: TrialTask) -> int:
    return task.model.traced.tokens_per_sample if task.model.traced else task.training.seq_len


def _as_text(failure: RankFailure | None) -> str:
    return f"{failure.exception}: {failure.message}" if failure else ""


def _how_it_ended(exit_code: int) -> str:
    if exit_code >= 0:
        return f"the process ended with exit code {exit_code} and left no report"
    if exit_code == -signal.SIGKILL:
        return _KILLED
    try:
        return f"ended by signal {-exit_code} ({signal.Signals(-exit_code).name})"
    except ValueError:  # a real-time signal has no name
        return f"ended by signal {-exit_code}"
