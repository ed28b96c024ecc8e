"""The reference trainer: runs a task's optimizer steps from its data, with checkpoints, and says how it goes.

Owns the loop and what happens between steps: evaluation, checkpoints, stopping. What one step is belongs to `session`,
memory's figures and warnings to `watch`, its lines to `run_log`, leaving early to `parting`.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import torch
from torch import distributed

from planner.errors import InputError, Interrupted, PlannerError
from planner.runtime.distributed import start_distributed, stop_distributed
from planner.runtime.evaluation import Evaluation
from planner.runtime.export import export_model, refuse_export
from planner.runtime.limits import limit_memory
from planner.runtime.measure import GpuMemory, Meter, SectionPeaks, open_meter, read_driver_memory
from planner.runtime.metrics import Metrics
from planner.runtime.parting import StopRequest, fail, leave_word
from planner.runtime.preflight import check_free_memory, look_at_device
from planner.runtime.preload import preload_deepspeed, preload_model_code
from planner.runtime.profiling import write_profile
from planner.runtime.run_log import RunLog, write_line
from planner.runtime.saving import Checkpoints, checkpoint_folder
from planner.runtime.session import StepResult, build_session
from planner.runtime.watch import HealthWatch
from planner.spec import DeviceKind, Phase, RankReport, TrialTask
from planner.spec._record import record, require
from planner.spec.supervision import RankExit
from planner.spec.trainer import TrainerReport


@record
class Run:
    """What this start of the trainer shall do. `steps`: of this run; None: up to the training's. `end_step`: the
    training's step to end after, in the place of `steps`; when that is reached already, none is run. `supervised`: the
    attempt's folder, where ranks leave word and look for the stop file. `export_dir`: write the model there at the end.
    """

    task: TrialTask
    resume: bool = False
    steps: int | None = None
    checkpoints: bool = True  # write them where the task says
    supervised: Path | None = None
    export_dir: Path | None = None
    profile_dir: Path | None = None  # run two more steps at the end and write what was seen of them there
    end_step: int | None = None

    def __post_init__(self) -> None:
        require(self.steps is None or self.steps >= 1, "--steps is at least 1")


@record
class Seat:
    """Which rank this process is."""

    rank: int
    world_size: int
    local_rank: int


def run_training(run: Run, *, rank: int, world_size: int, local_rank: int) -> TrainerReport:
    """Be one rank of the training from start to end; every rank returns the same report.

    Raises PlannerError for what the user can mend, Interrupted when told to stop (a checkpoint is then saved). Any
    other failure ends the process at once, having left word for the supervisor.
    """
    if not run.task.ds_config_json:
        raise InputError(
            "the task holds no DeepSpeed config",
            why="the task file of a plan leaves it to ds_config.json beside it",
            fix="add --deepspeed-config ds_config.json",
        )
    _refuse_to_write_over(run)
    if run.export_dir is not None:
        refuse_export(run.task, run.export_dir)
    preload_deepspeed()  # Keep first: code loaded later would count as the run's memory, as it does not in a trial
    preload_model_code(run.task.model.model_type)
    gpus_before = read_driver_memory() if run.task.device is DeviceKind.CUDA else ()  # before this rank's own context
    meter = open_meter(run.task.device, local_rank=local_rank, gpus_before=gpus_before)
    seat = Seat(rank=rank, world_size=world_size, local_rank=local_rank)
    start_distributed(device=run.task.device, rank=rank, world_size=world_size, local_rank=local_rank, init_method=None)
    watch = HealthWatch(run.task, meter)
    training: _Training | None = None
    try:
        _preflight(run.task, seat, gpus_before)
        limit_memory(run.task, local_rank=local_rank)
        training = _Training(run, seat=seat, meter=meter, watch=watch)
        report = training.train()
    except PlannerError:
        raise
    except BaseException as error:
        steps_done = training.steps_done if training is not None else 0
        fail(
            error,
            run.task,
            meter,
            rank=rank,
            phase=watch.phase,
            steps_done=steps_done,
            folder=run.supervised,
        )
    finally:
        stop_distributed()
    return report


def _preflight(task: TrialTask, seat: Seat, gpus_before: tuple[GpuMemory, ...]) -> None:
    """Compare free memory with the plan; every rank looks at its own device, the first on each machine speaks."""
    uuid, free = "", 0
    if task.device is DeviceKind.CUDA:
        uuid = f"GPU-{torch.cuda.get_device_properties(seat.local_rank).uuid}"
        free = torch.cuda.mem_get_info(seat.local_rank)[0]
    found = look_at_device(task.device, uuid=uuid, gpus_before=gpus_before, fallback_free_bytes=free)
    sharing = 1 if task.device is DeviceKind.CUDA else seat.world_size
    said = check_free_memory(task.promise, found, sharing=sharing)
    if said and (seat.rank == 0 or said.startswith("warning")):
        write_line(f"[rank {seat.rank}] {said}")


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


def _of_rank_0(folder: Path) -> Path:
    """The folder that the first rank means: nodes may have been started from different ones."""
    named = [str(folder)]
    distributed.broadcast_object_list(named, src=0)
    return Path(named[0])


NOTHING = SectionPeaks(allocated_bytes=0, reserved_bytes=0, used_bytes=0, host_bytes=0)


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

    def step_done(self, peaks: SectionPeaks) -> None:
        """One more step."""
        self.stepping = _most(self.stepping, peaks)

    def saving_done(self) -> None:
        """One more checkpoint."""
        self.saving = _most(self.saving, self._meter.end_section())

    def allocator_retries(self) -> int:
        """Of the whole run."""
        return self._meter.allocator_retries()


def _most(one: SectionPeaks, other: SectionPeaks) -> SectionPeaks:
    return SectionPeaks(**{name: max(getattr(one, name), getattr(other, name)) for name in one.__dataclass_fields__})


class _Training:
    """The loop's state on one rank."""

    def __init__(self, run: Run, *, seat: Seat, meter: Meter, watch: HealthWatch) -> None:
        self._run = run
        self._training = run.task.training
        self._rank = seat.rank
        self._stop = StopRequest(run.supervised)
        self._peaks = _Peaks(meter)
        self._watch = watch
        self._steps: list[StepResult] = []
        self._times_s: list[float] = []
        started = time.perf_counter()
        self._session = build_session(run.task, on_phase=watch.on_phase)
        self._checkpoints = self._open_checkpoints()
        self._resumed_from, notes = self._resume()
        self._end = self._last_step()
        self._log = RunLog(run.task, rank=seat.rank, end=max(self._end, self._training.steps))
        for note in notes:
            self._log.say(note)
        self._evaluation = Evaluation(self._session, run.task) if self._training.run.eval_path else None
        self._metrics = self._open_metrics(seat)
        self._session.prefetch()
        self._build_s = time.perf_counter() - started
        self._peaks.building_done()

    @property
    def steps_done(self) -> int:
        """Optimizer steps since the training began."""
        return self._session.steps_done

    def _open_metrics(self, seat: Seat) -> Metrics | None:
        settings = self._training.run
        if not settings.metrics_port:
            return None
        metrics = Metrics(settings, self._run.task.promise, rank=seat.rank, local_rank=seat.local_rank)
        self._log.say(f"metrics of rank 0: http://{settings.metrics_host}:{metrics.port}/metrics")
        return metrics

    def _open_checkpoints(self) -> Checkpoints | None:
        if not self._training.checkpoint_dir or not self._run.checkpoints:
            return None
        settings = self._training.run
        return Checkpoints(
            self._session,
            Path(self._training.checkpoint_dir),
            keep=settings.keep_checkpoints,
            in_background=settings.async_checkpoints,
        )

    def _resume(self) -> tuple[int, tuple[str, ...]]:
        """The step that the run goes on after, and what there is to say of it."""
        if not self._run.resume:
            return 0, ()
        directory = checkpoint_folder(self._training.checkpoint_dir)
        if not self._session.load_checkpoint(directory):
            return 0, (f"no checkpoint in {directory}: starting from the beginning",)
        first = f"resumed after step {self._session.steps_done} from {directory}"
        return self._session.steps_done, (first, *self._session.ignored_settings())

    def _last_step(self) -> int:
        if self._run.end_step is not None:
            return self._run.end_step
        if self._run.steps is None:
            return self._training.steps
        return self._resumed_from + self._run.steps

    def train(self) -> TrainerReport:
        """Run the steps. Raises Interrupted when told to stop, with everything saved."""
        if self._end > self._training.steps:
            self._log.say(
                f"going on beyond the job's {self._training.steps} steps; the learning rate stays at its floor"
            )
        if self._session.steps_done >= self._end:
            self._log.say(
                f"nothing to train: all {self._end} steps are done; --resume --steps N goes on with N more steps"
            )
        while self._session.steps_done < self._end:
            if self._stop.agreed():  # and the barrier after which every rank times the same stretch
                self._end_early()
            self._step()
            self._evaluate()
            self._checkpoint()
        if self._checkpoints is not None:
            self._checkpoints.settle(wait=True)
        if self._run.export_dir is not None:
            folder = _of_rank_0(self._run.export_dir)
            export_model(self._session, self._run.task, folder)
            self._log.say(f"exported to {folder}")
        report = self._report()
        if self._run.profile_dir is not None:
            write_profile(self._session, self._run.profile_dir, rank=self._rank, note=self._log.say)
        self._close()
        return report

    def _close(self) -> None:
        self._log.close()
        if self._metrics is not None:
            self._metrics.close()
        self._session.close()

    def _end_early(self) -> None:
        if self._checkpoints is not None and self._session.steps_done > max(
            self._resumed_from, self._checkpoints.saved_step
        ):
            self._save()
        if self._checkpoints is not None:
            self._checkpoints.settle(wait=True)
        done = self._session.steps_done
        if self._run.supervised is not None:
            word = RankExit(rank=self._rank, phase=Phase.FINISH, steps_done=done, stopped=True)
            leave_word(self._run.supervised, word)
        distributed.barrier()  # Keep: the launcher ends the other ranks as soon as one has gone
        self._close()
        raise Interrupted(
            f"the training was told to stop, {f'after step {done}' if done else 'before its first step was done'}",
            why="a signal or the supervisor asked for it",
            fix=self._way_on(),
        )

    def _way_on(self) -> str:
        """How to go on after being stopped, by what was really saved."""
        if self._checkpoints is None:
            return "start it again; it writes no checkpoints"
        saved = max(self._resumed_from, self._checkpoints.saved_step)
        if saved <= 0:
            return "start it again: no step was done, so nothing was saved"
        return f"add --resume to go on from its checkpoint after step {saved}"

    def _step(self) -> None:
        learning_rate = self._session.learning_rate
        started = time.perf_counter()
        result = self._session.train_step()
        spent_s = time.perf_counter() - started
        self._steps.append(result)
        self._times_s.append(spent_s)
        tokens = self._session.sequences_per_step * self._training.seq_len
        health, peaks = self._watch.step_done(seconds=spent_s, tokens=tokens)
        self._peaks.step_done(peaks)
        number = self._session.steps_done
        self._log.step(number, result, health, learning_rate=learning_rate)
        if self._metrics is not None:
            self._metrics.show(health, step=number, loss=result.loss, learning_rate=learning_rate)
        for warning in self._watch.warnings(health):
            write_line(f"[rank {self._rank}] step {number}: {warning}")

    def _evaluate(self) -> None:
        interval, done = self._training.run.eval_interval_steps, self._session.steps_done
        if self._evaluation is None or not (done >= self._end or (interval and done % interval == 0)):
            return
        loss = self._evaluation.loss()
        self._log.evaluation(done, loss, num_sequences=self._evaluation.num_sequences)

    def _checkpoint(self) -> None:
        if self._checkpoints is None:
            return
        interval, done = self._training.checkpoint_interval_steps, self._session.steps_done
        if done >= self._end or (interval > 0 and done % interval == 0):
            self._save()
        else:
            self._checkpoints.settle()

    def _save(self) -> None:
        assert self._checkpoints is not None  # noqa: S101 - callers asked
        self._checkpoints.save()
        self._peaks.saving_done()
        self._log.say(f"checkpoint after step {self._session.steps_done} in {self._training.checkpoint_dir}")

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
