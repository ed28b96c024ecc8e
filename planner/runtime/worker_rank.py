"""One rank of one trial: everything between the fork and the end of the process.

Owns setting the child up, running the steps, and leaving a `RankResult` behind whatever happens. Leaves forking and
ending ranks to `worker_trial`, the model and its steps to `session`, figures of memory to `measure`.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from statistics import median
from typing import NoReturn

import torch

from planner.runtime.allocator import settle_allocator
from planner.runtime.distributed import start_distributed
from planner.runtime.emulation_trial import EmulatedTrial
from planner.runtime.measure import GpuMemory, Meter, SectionPeaks, open_meter
from planner.runtime.session import TrainingSession, build_session
from planner.runtime.worker_marks import RankMarks
from planner.runtime.worker_process import (
    die_with_parent,
    leave_no_core_dump,
    lift_data_limit,
    limit_data_segment,
    offer_to_the_kernel_first,
)
from planner.runtime.worker_steps import PhaseClock, StepFigures, TrialDiverged, run_steps
from planner.spec import DeviceKind, Phase, RankReport, TorchCompile, TrialTask
from planner.spec._record import record
from planner.spec.codec import to_plain
from planner.spec.worker import RankFailure, RankResult, rank_log_name

_MESSAGE_CHARS = 4000


@record
class RankSeat:
    """Where this rank sits in its trial. `forked_at_s` is on the monotonic clock."""

    rank: int
    world_size: int
    init_method: str
    scratch_dir: str
    worker_pid: int
    forked_at_s: float
    threads: int
    answers_descriptor: int  # the worker's pipe to the planner
    gpus_before: tuple[GpuMemory, ...]  # as the driver saw them before the trial


def result_path(scratch_dir: str, rank: int) -> Path:
    """The file in which a rank leaves its `RankResult`, whole or not at all."""
    return Path(scratch_dir) / f"rank_{rank}.json"


def run_rank(seat: RankSeat, task: TrialTask, marks: RankMarks) -> NoReturn:
    """Be this rank, then end the process: exit code 0 with a report, 1 with a failure. Never returns or raises."""
    exit_code = 1
    try:
        _settle_in(seat)
        settle_allocator(task)
        exit_code = _run_and_report(seat, task, marks)
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:  # Keep: whatever fails, a rank must never go on as a second worker; nor run the worker's exit handlers
            os._exit(exit_code)


def _settle_in(seat: RankSeat) -> None:
    """Become a process of its own: group, signals, files, environment, threads."""
    os.setpgid(0, 0)
    die_with_parent(seat.worker_pid, signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    log = os.open(Path(seat.scratch_dir) / rank_log_name(seat.rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    # Keep: the worker's pipe, so that it closes with the worker. Nothing else: importing DeepSpeed opens the GPU's
    # driver, and a child whose driver files were closed can open neither NVML nor NCCL ("GPU access blocked by the
    # operating system", seen with driver 580).
    os.close(seat.answers_descriptor)
    faulthandler.enable(file=2)
    faulthandler.register(signal.SIGUSR1, file=2)
    offer_to_the_kernel_first()
    leave_no_core_dump()
    torch.set_num_threads(seat.threads)
    os.environ["OMP_NUM_THREADS"] = str(seat.threads)


def _run_and_report(seat: RankSeat, task: TrialTask, marks: RankMarks) -> int:
    meter = open_meter(task.device, local_rank=seat.rank, gpus_before=seat.gpus_before)
    try:
        result = RankResult(report=_measure(seat, task, meter, PhaseClock(marks)))
    except BaseException as error:  # SystemExit of a user's module, too, is only the end of this trial
        failed_at_s = time.monotonic()
        lift_data_limit()
        traceback.print_exc()
        result = RankResult(failure=_describe(error, task, meter, failed_at_s=failed_at_s))
    _leave(seat, result)
    if result.report is None:
        return 1
    if seat.world_size > 1:
        torch.distributed.barrier()  # Keep: a rank that leaves early breaks its peers' last collective
    return 0


def _leave(seat: RankSeat, result: RankResult) -> None:
    path = result_path(seat.scratch_dir, seat.rank)
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(to_plain(result)))
    draft.rename(path)


def _measure(seat: RankSeat, task: TrialTask, meter: Meter, clock: PhaseClock) -> RankReport:
    emulated = _join(seat, task, clock)
    start_s = time.monotonic() - seat.forked_at_s
    _limit_memory(task, local_rank=seat.rank)
    clock.enter(Phase.BUILD_MODEL)
    session = build_session(task, on_phase=clock.enter)
    if emulated is not None:
        emulated.attach(session, clock.enter)
    build_s, engine_s = clock.building_times_s()
    initialised_bytes = meter.allocated_bytes()
    building = meter.end_section()
    steps = run_steps(session, task, clock)
    stepping = meter.end_section()
    checkpoint = _check_checkpoint(session, seat, meter) if task.check_checkpoint else None
    sections = [building, stepping] + ([checkpoint] if checkpoint else [])
    clock.enter(Phase.FINISH)
    report = RankReport(
        rank=seat.rank,
        initialised_bytes=initialised_bytes,
        peak_allocated_bytes=stepping.allocated_bytes,
        peak_reserved_bytes=stepping.reserved_bytes,
        device_used_bytes=max(section.used_bytes for section in sections),
        host_peak_bytes=max(section.host_bytes for section in sections),
        build_s=build_s,
        engine_s=engine_s,
        step_times_s=steps.times_s,
        forward_s=steps.forward_s,
        backward_s=steps.backward_s,
        optimizer_s=steps.optimizer_s,
        losses=steps.losses,
        sequences_per_step=session.sequences_per_step,
        skipped_steps=session.skipped_steps,
        allocator_retries=meter.allocator_retries(),
        build_peak_bytes=building.reserved_bytes,
        checkpoint_peak_bytes=checkpoint.reserved_bytes if checkpoint else 0,
        start_s=start_s,
        compile_s=_compile_s(task, steps),
    )
    return emulated.complete(report) if emulated is not None else report


def _compile_s(task: TrialTask, steps: StepFigures) -> float:
    """Seconds that the warm-up took longer than as many steps do: what compiling cost, once."""
    if task.candidate.tuning.torch_compile is TorchCompile.NONE:
        return 0.0
    return max(sum(steps.warmup_times_s) - len(steps.warmup_times_s) * median(steps.times_s), 0.0)


def _join(seat: RankSeat, task: TrialTask, clock: PhaseClock) -> EmulatedTrial | None:
    """Stand among the peers, or among made-up ones."""
    if task.emulated_rank is not None:
        emulated = EmulatedTrial(task, task.emulated_rank)
        clock.tell(emulated.recorder)
        return emulated
    start_distributed(
        device=task.device,
        rank=seat.rank,
        world_size=seat.world_size,
        local_rank=seat.rank,
        init_method=seat.init_method,
    )
    return None


def _limit_memory(task: TrialTask, *, local_rank: int) -> None:
    if not task.memory_limit_bytes:
        return
    if task.device is DeviceKind.CUDA:
        _free, total = torch.cuda.mem_get_info(local_rank)
        torch.cuda.set_per_process_memory_fraction(min(1.0, task.memory_limit_bytes / total), local_rank)
    else:
        limit_data_segment(task.memory_limit_bytes)


def _check_checkpoint(session: TrainingSession, seat: RankSeat, meter: Meter) -> SectionPeaks:
    """Save and load once, all ranks in one directory; the peaks of doing so. The planner removes the scratch."""
    directory = Path(seat.scratch_dir) / "checkpoint"
    directory.mkdir(exist_ok=True)
    session.save_checkpoint(directory)
    torch.distributed.barrier()  # Keep: a rank must not read what another has not finished writing
    session.load_checkpoint(directory)
    return meter.end_section()


def _describe(error: BaseException, task: TrialTask, meter: Meter, *, failed_at_s: float) -> RankFailure:
    allocated_bytes, capacity_bytes = _device_state(task, meter)
    return RankFailure(
        exception=_qualified_name(error),
        message=_bounded(str(error)),
        failed_at_s=failed_at_s,
        chain=_chain(error),
        allocated_bytes=allocated_bytes,
        capacity_bytes=capacity_bytes,
        diverged_at_step=error.step if isinstance(error, TrialDiverged) else -1,
        losses=error.losses if isinstance(error, TrialDiverged) else (),
    )


def _device_state(task: TrialTask, meter: Meter) -> tuple[int, int]:
    """Allocated (at most) and capacity, as far as the device can still be asked; zeros where it cannot."""
    if task.device is DeviceKind.CPU:
        return meter.end_section().used_bytes, task.memory_limit_bytes
    if not torch.cuda.is_initialized():
        return 0, 0
    try:
        total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        allocated = int(torch.cuda.memory_allocated())
    except RuntimeError as problem:  # after an illegal access every call fails
        print(f"[rank] the device does not answer any more: {problem}", file=sys.stderr)
        return 0, 0
    return allocated, min(total, task.memory_limit_bytes) if task.memory_limit_bytes else total


def _chain(error: BaseException) -> tuple[str, ...]:
    """The exceptions behind this one, nearest first."""
    found: list[str] = []
    seen = {id(error)}
    behind = error.__cause__ or error.__context__
    while behind is not None and id(behind) not in seen:
        seen.add(id(behind))
        found.append(_bounded(f"{_qualified_name(behind)}: {behind}"))
        behind = behind.__cause__ or behind.__context__
    return tuple(found)


def _bounded(text: str) -> str:
    """A message that somebody filled with a tensor's values is cut in its middle; the log has it whole."""
    half = _MESSAGE_CHARS // 2
    return text if len(text) <= _MESSAGE_CHARS else f"{text[:half]} … {text[-half:]}"


def _qualified_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
