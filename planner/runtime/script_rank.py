"""One rank of a trial of the user's own script: runs it under the watch and puts together what was seen.

Owns the order of things in the forked child. Leaves the seat and the report's file to `worker_rank`, the wrapping to
`script_watch`, the call to `script_run`.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, Protocol

import deepspeed
import torch

from planner.runtime.measure import Meter, SectionPeaks
from planner.runtime.script_run import ScriptProblem, Seat, explain_mismatch, explain_return, run_script, take_seat
from planner.runtime.script_watch import Ear, ScriptWatch
from planner.spec import DeviceKind, Phase, RankReport, ScriptCall, TrialTask
from planner.spec._record import record
from planner.spec.codec import to_plain

CONFIG_NAME = "ds_config.json"
TASK_NAME = "task.json"

# A trial must not show up as a run in anybody's tracker.
_QUIET_TRACKERS = {"WANDB_MODE": "disabled", "COMET_MODE": "disabled", "MLFLOW_TRACKING_URI": "file:mlruns-of-trials"}


class Clock(Ear, Protocol):
    """`worker_steps.PhaseClock`: hears phases, and knows how long building took."""

    def building_times_s(self) -> tuple[float, float]:
        """How long the model and then the engine took to build."""
        ...


@record
class ScriptSeat:
    """Where the rank sits, where its files are, and how it says the end: `on_report`, `on_failure` end the process."""

    seat: Seat
    scratch_dir: str
    log: Path
    start_s: float
    on_report: Callable[[RankReport], NoReturn]
    on_failure: Callable[[BaseException], NoReturn]


def write_script_files(task: TrialTask, scratch_dir: str) -> None:
    """What the slots of the command name; written once, before the ranks are forked."""
    if task.script is None:
        return
    folder = Path(scratch_dir)
    (folder / CONFIG_NAME).write_text(task.ds_config_json, encoding="utf-8")
    (folder / TASK_NAME).write_text(json.dumps(to_plain(task)), encoding="utf-8")


def measure_script(script: ScriptCall, task: TrialTask, meter: Meter, clock: Clock, *, place: ScriptSeat) -> NoReturn:
    """Run the script until enough was seen. Ends the process, or raises what the script raised."""
    own_pid = os.getpid()
    take_seat(place.seat)
    os.environ.update({"MESHPLAN_TRIAL": "1", **_QUIET_TRACKERS})
    claim_cpu(task.device)
    sections: list[SectionPeaks] = []

    def engine_stands() -> None:
        sections.append(meter.end_section())

    def enough(watch: ScriptWatch) -> NoReturn:
        place.on_report(script_report(watch, meter, clock, built=sections[0], place=place))

    watch = ScriptWatch(task, clock, on_engine=engine_stands, on_enough=enough, on_problem=place.on_failure)
    watch.install()
    clock.enter(Phase.BUILD_MODEL)
    folder = Path(place.scratch_dir)
    call = script.filled(config_path=str(folder / CONFIG_NAME), task_path=str(folder / TASK_NAME))
    stop: SystemExit | None = None
    try:
        run_script(call, place.seat)
    except SystemExit as error:
        stop = error
    except BaseException as error:
        if os.getpid() != own_pid:
            traceback.print_exc()
            _end_child(1)
        if "mismatch TrainingArguments" in str(error):
            raise ScriptProblem(explain_mismatch(str(error))) from error
        raise
    if os.getpid() != own_pid:  # a child that the script forked: its end is not the rank's
        _end_child(stop.code if stop is not None and isinstance(stop.code, int) else 0)
    sys.stdout.flush()
    raise ScriptProblem(
        explain_return(
            stop,
            started=watch.started,
            steps_done=watch.steps_done,
            steps_wanted=watch.steps_wanted,
            log=place.log,
        )
    ) from stop


def claim_cpu(device: DeviceKind) -> None:
    """On CPU, keep DeepSpeed from its shared-memory all-reduce: it ignores its group, and compiling takes a minute."""
    if device is DeviceKind.CPU:
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def _end_child(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def script_report(
    watch: ScriptWatch, meter: Meter, clock: Clock, *, built: SectionPeaks, place: ScriptSeat
) -> RankReport:
    """What one rank measured; the losses are those of all data-parallel ranks. Every rank has to come here."""
    stepping = meter.end_section()
    clock.enter(Phase.FINISH)
    forward_s, backward_s, optimizer_s = watch.phase_means_s()
    build_s, engine_s = clock.building_times_s()
    return RankReport(
        rank=place.seat.rank,
        initialised_bytes=built.allocated_bytes,
        peak_allocated_bytes=stepping.allocated_bytes,
        peak_reserved_bytes=stepping.reserved_bytes,
        device_used_bytes=max(built.used_bytes, stepping.used_bytes),
        host_peak_bytes=max(built.host_bytes, stepping.host_bytes),
        build_s=build_s,
        engine_s=engine_s,
        step_times_s=watch.step_times_s,
        forward_s=forward_s,
        backward_s=backward_s,
        optimizer_s=optimizer_s,
        losses=mean_losses(watch),
        sequences_per_step=watch.sequences_per_step(),
        skipped_steps=watch.skipped_steps,
        allocator_retries=meter.allocator_retries(),
        build_peak_bytes=built.reserved_bytes,
        start_s=place.start_s,
    )


def mean_losses(watch: ScriptWatch) -> tuple[float, ...]:
    """Of each step, the mean over the ranks that saw one; () when no rank saw any."""
    seen = torch.zeros(watch.steps_done, 2, dtype=torch.float64, device=watch.device)
    for step, loss in enumerate(watch.losses[: watch.steps_done]):
        seen[step, 0], seen[step, 1] = loss, 1.0
    if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
        torch.distributed.all_reduce(seen)
    if not bool((seen[:, 1] > 0).all()):
        return ()
    return tuple((seen[:, 0] / seen[:, 1]).tolist())
