"""The reference trainer: runs a task's optimizer steps from its data, with checkpoints, and says how it goes.

Owns the loop, when checkpoints are written, and the log. What one step is belongs to `session`.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from torch import distributed

from planner.errors import InputError
from planner.runtime.distributed import start_distributed, stop_distributed
from planner.runtime.measure import Meter, SectionPeaks, open_meter, read_driver_memory
from planner.runtime.preload import preload_deepspeed, preload_model_code
from planner.runtime.session import StepResult, build_session
from planner.spec import DeviceKind, RankReport, TrialTask
from planner.spec._record import record, require
from planner.spec.trainer import TrainerReport

GIB = 1 << 30


@record
class Run:
    """What this start of the trainer shall do. `steps`: of this run; None: up to the training's."""

    task: TrialTask
    resume: bool = False
    steps: int | None = None
    checkpoints: bool = True  # write them where the task says

    def __post_init__(self) -> None:
        require(self.steps is None or self.steps >= 1, "--steps is at least 1")


def run_training(run: Run, *, rank: int, world_size: int, local_rank: int) -> TrainerReport:
    """Be one rank of the training from start to end; every rank returns the same report."""
    if not run.task.ds_config_json:
        raise InputError(
            "the task holds no DeepSpeed config",
            why="the task file of a plan leaves it to ds_config.json beside it",
            fix="add --deepspeed-config ds_config.json",
        )
    _refuse_to_write_over(run)
    preload_deepspeed()  # Keep first: code loaded later would count as the run's memory, as it does not in a trial
    preload_model_code(run.task.model.model_type)
    gpus_before = read_driver_memory() if run.task.device is DeviceKind.CUDA else ()  # before this rank's own context
    meter = open_meter(run.task.device, local_rank=local_rank, gpus_before=gpus_before)
    start_distributed(device=run.task.device, rank=rank, world_size=world_size, local_rank=local_rank, init_method=None)
    try:
        return _Training(run, rank=rank, meter=meter).train()
    finally:
        stop_distributed()


def _refuse_to_write_over(run: Run) -> None:
    """A training started anew would put its checkpoints in the place of another's, which may have taken weeks."""
    directory = run.task.training.checkpoint_dir
    if run.resume or not run.checkpoints or not directory or not (Path(directory) / "latest").is_file():
        return
    raise InputError(
        f"{directory} already holds checkpoints of a training",
        why="a training started from the beginning would write over them",
        fix="add --resume to go on from them, --no-checkpoint to write none, or move the folder away",
    )


class _Peaks:
    """The most memory that each part of the run took on this rank."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self.initialised_bytes = 0
        self.building = self.stepping = self.saving = NOTHING

    def building_done(self) -> None:
        """Model, engine and, on a resume, their states are there."""
        self.initialised_bytes = self._meter.allocated_bytes()
        self.building = self._meter.end_section()

    def step_done(self) -> SectionPeaks:
        """One more step; gives that step's peaks."""
        peaks = self._meter.end_section()
        self.stepping = _most(self.stepping, peaks)
        return peaks

    def saving_done(self) -> None:
        """One more checkpoint."""
        self.saving = _most(self.saving, self._meter.end_section())

    def allocator_retries(self) -> int:
        """Of the whole run."""
        return self._meter.allocator_retries()


NOTHING = SectionPeaks(allocated_bytes=0, reserved_bytes=0, used_bytes=0, host_bytes=0)


def _most(one: SectionPeaks, other: SectionPeaks) -> SectionPeaks:
    return SectionPeaks(**{name: max(getattr(one, name), getattr(other, name)) for name in one.__dataclass_fields__})


class _Training:
    """The loop's state on one rank."""

    def __init__(self, run: Run, *, rank: int, meter: Meter) -> None:
        self._run = run
        self._training = run.task.training
        self._rank = rank
        self._peaks = _Peaks(meter)
        self._steps: list[StepResult] = []
        self._times_s: list[float] = []
        started = time.perf_counter()
        self._session = build_session(run.task, on_phase=lambda _phase: None)
        self._resumed_from = self._resume()
        self._build_s = time.perf_counter() - started
        self._peaks.building_done()

    def _say(self, text: str) -> None:
        if self._rank == 0:
            print(text, flush=True)

    def _resume(self) -> int:
        if not self._run.resume:
            return 0
        if not self._training.checkpoint_dir:
            raise InputError(
                "--resume was given, but the job names no checkpoint folder",
                why="training.checkpoint_dir is where checkpoints are written and found",
                fix="set training.checkpoint_dir in the job file, or leave out --resume",
            )
        directory = Path(self._training.checkpoint_dir)
        if not self._session.load_checkpoint(directory):
            self._say(f"no checkpoint in {directory}: starting from the beginning")
            return 0
        self._say(f"resumed after step {self._session.steps_done} from {directory}")
        return self._session.steps_done

    def train(self) -> TrainerReport:
        """Run the steps."""
        end = self._training.steps if self._run.steps is None else self._resumed_from + self._run.steps
        while self._session.steps_done < end:
            self._step()
            self._checkpoint(is_last=self._session.steps_done >= end)
        return self._report()

    def _step(self) -> None:
        distributed.barrier()  # so that every rank times the same stretch
        started = time.perf_counter()
        result = self._session.train_step()
        spent_s = time.perf_counter() - started
        self._steps.append(result)
        self._times_s.append(spent_s)
        peaks = self._peaks.step_done()
        tokens = self._session.sequences_per_step * self._training.seq_len
        self._say(
            f"step {self._session.steps_done}/{self._training.steps}  loss {result.loss:.4f}  "
            f"lr {self._session.learning_rate:.3e}  {tokens / spent_s:,.0f} tokens/s  {spent_s:.3f} s  "
            f"{peaks.used_bytes / GIB:.2f} GiB"
        )

    def _checkpoint(self, *, is_last: bool) -> None:
        interval = self._training.checkpoint_interval_steps
        due = is_last or (interval > 0 and self._session.steps_done % interval == 0)
        if due and self._training.checkpoint_dir and self._run.checkpoints:
            self._session.save_checkpoint(self._training.checkpoint_dir)
            self._peaks.saving_done()
            self._say(f"checkpoint after step {self._session.steps_done} in {self._training.checkpoint_dir}")

    def _report(self) -> TrainerReport:
        ranks: list[RankReport | None] = [None] * distributed.get_world_size()
        distributed.all_gather_object(ranks, self._rank_report())
        reports = tuple(report for report in ranks if report is not None)
        slowest = [max(times) for times in zip(*(report.step_times_s for report in reports))]
        tokens = self._session.sequences_per_step * self._training.seq_len
        return TrainerReport(
            resumed_from_step=self._resumed_from,
            steps_done=self._session.steps_done,
            losses=tuple(step.loss for step in self._steps),
            tokens_per_s=tokens / statistics.median(slowest) if slowest else 0.0,
            ranks=reports,
        )

    def _rank_report(self) -> RankReport:
        peaks, timed = self._peaks, self._steps[1:] or self._steps
        return RankReport(
            rank=self._rank,
            initialised_bytes=peaks.initialised_bytes,
            peak_allocated_bytes=peaks.stepping.allocated_bytes,
            peak_reserved_bytes=peaks.stepping.reserved_bytes,
            device_used_bytes=_most(_most(peaks.building, peaks.stepping), peaks.saving).used_bytes,
            host_peak_bytes=_most(_most(peaks.building, peaks.stepping), peaks.saving).host_bytes,
            build_s=self._build_s,
            engine_s=0.0,
            step_times_s=tuple(self._times_s[1:] or self._times_s),
            forward_s=statistics.fmean(step.forward_s for step in timed) if timed else 0.0,
            backward_s=statistics.fmean(step.backward_s for step in timed) if timed else 0.0,
            optimizer_s=statistics.fmean(step.optimizer_s for step in timed) if timed else 0.0,
            losses=tuple(step.loss for step in self._steps),
            sequences_per_step=self._session.sequences_per_step,
            skipped_steps=self._session.skipped_steps,
            allocator_retries=peaks.allocator_retries(),
            build_peak_bytes=peaks.building.reserved_bytes,
            checkpoint_peak_bytes=peaks.saving.reserved_bytes,
        )
