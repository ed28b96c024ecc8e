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
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NoReturn

import torch

from planner.runtime.allocator import settle_allocator
from planner.runtime.distributed import start_distributed
from planner.runtime.emulation_trial import EmulatedTrial
from planner.runtime.failure import describe_failure
from planner.runtime.limits import limit_memory
from planner.runtime.measure import GpuMemory, Meter, SectionPeaks, open_meter
from planner.runtime.profiling import write_profile
from planner.runtime.script_rank import ScriptSeat, measure_script
from planner.runtime.script_run import Seat
from planner.runtime.session import TrainingSession, build_session
from planner.runtime.whole_file import write_whole
from planner.runtime.worker_marks import RankMarks
from planner.runtime.worker_process import (
    die_with_parent,
    leave_no_core_dump,
    lift_data_limit,
    offer_to_the_kernel_first,
)
from planner.runtime.worker_steps import PhaseClock, StepFigures, run_steps
from planner.spec import DeviceKind, Phase, RankReport, ScriptCall, TorchCompile, TrialTask
from planner.spec._record import record
from planner.spec.codec import to_plain
from planner.spec.worker import RankResult, rank_log_name


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
        if task.script is not None:
            _measure_script(seat, task, task.script, meter, PhaseClock(marks))
        result = RankResult(report=_measure(seat, task, meter, PhaseClock(marks)))
    except BaseException as error:  # SystemExit of a user's module, too, is only the end of this trial
        failed_at_s = time.monotonic()
        lift_data_limit()
        traceback.print_exc()
        result = RankResult(failure=describe_failure(error, task, meter, failed_at_s=failed_at_s))
    _leave(seat, result)
    if result.report is None:
        return 1
    if seat.world_size > 1:
        torch.distributed.barrier()  # Keep: a rank that leaves early breaks its peers' last collective
    return 0


def _end_with(seat: RankSeat, result: RankResult) -> NoReturn:
    """Leave the result and end the process here and now, deep inside the user's script, which cannot prevent it."""
    _leave(seat, result)
    if result.report is not None and seat.world_size > 1:
        torch.distributed.barrier()  # Keep: as in `_run_and_report`
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if result.report is not None else 1)


def _measure_script(seat: RankSeat, task: TrialTask, script: ScriptCall, meter: Meter, clock: PhaseClock) -> NoReturn:
    """Run the user's own script in this rank's seat. Ends the process, or raises what the script raised."""
    if task.device is DeviceKind.CUDA:
        torch.cuda.set_device(seat.rank)
    limit_memory(task, local_rank=seat.rank)

    def fail(error: BaseException) -> NoReturn:
        failed_at_s = time.monotonic()
        lift_data_limit()
        print(f"[trial] {error}", file=sys.stderr)
        _end_with(seat, RankResult(failure=describe_failure(error, task, meter, failed_at_s=failed_at_s)))

    place = ScriptSeat(
        seat=Seat(rank=seat.rank, world_size=seat.world_size, master_port=int(seat.init_method.rpartition(":")[2])),
        scratch_dir=seat.scratch_dir,
        log=Path(seat.scratch_dir) / rank_log_name(seat.rank),
        start_s=time.monotonic() - seat.forked_at_s,
        on_report=lambda report: _end_with(seat, RankResult(report=report)),
        on_failure=fail,
    )
    measure_script(script, task, meter, clock, place=place)


def _leave(seat: RankSeat, result: RankResult) -> None:
    write_whole(result_path(seat.scratch_dir, seat.rank), json.dumps(to_plain(result)))


def _measure(seat: RankSeat, task: TrialTask, meter: Meter, clock: PhaseClock) -> RankReport:
    emulated = _join(seat, task, clock)
    start_s = time.monotonic() - seat.forked_at_s
    limit_memory(task, local_rank=seat.rank)
    clock.enter(Phase.BUILD_MODEL)
    session = build_session(task, on_phase=clock.enter)
    if emulated is not None:
        emulated.attach(session, clock.enter)
    build_s, engine_s = clock.building_times_s()
    initialised_bytes = meter.allocated_bytes()
    building = meter.end_section()
    steps = run_steps(session, task, clock, allocated=_held(task, meter))
    stepping = meter.end_section()
    checks = task.check_checkpoint and not steps.stopped_early
    checkpoint = _check_checkpoint(session, seat, meter) if checks else None
    if task.profile_dir and not steps.stopped_early:
        _profile(session, Path(task.profile_dir), rank=seat.rank)
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
        stopped_early=steps.stopped_early,
        allocated_by_step_bytes=steps.allocated_bytes,
        compile_s=_compile_s(task, steps),
    )
    return emulated.complete(report) if emulated is not None else report


def _profile(session: TrainingSession, directory: Path, *, rank: int) -> None:
    """Write the profile. One that cannot be written is told in the log and costs the trial nothing: what it measured,
    it had measured before."""
    try:
        write_profile(session, directory, rank=rank, note=lambda text: print(f"[profile] {text}"))
    except (RuntimeError, OSError) as problem:
        print(f"[profile] not written: {type(problem).__name__}: {problem}", file=sys.stderr)
        traceback.print_exc()


def _held(task: TrialTask, meter: Meter) -> Callable[[], int]:
    """What is allocated after a step; on a CPU nothing, where resident memory settles for many steps."""
    return meter.allocated_bytes if task.device is DeviceKind.CUDA else lambda: 0


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


def _check_checkpoint(session: TrainingSession, seat: RankSeat, meter: Meter) -> SectionPeaks:
    """Save and load once, all ranks in one directory; the peaks of doing so. The planner removes the scratch."""
    directory = Path(seat.scratch_dir) / "checkpoint"
    directory.mkdir(exist_ok=True)
    session.save_checkpoint(directory)
    torch.distributed.barrier()  # Keep: a rank must not read what another has not finished writing
    session.load_checkpoint(directory)
    return meter.end_section()
