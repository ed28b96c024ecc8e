"""The optimizer steps of a trial on one rank: warming up, timing, and noticing that the model does not train.

Owns which steps count. Leaves what a step is to `session` and memory to `measure`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from statistics import fmean
from typing import Protocol

import torch

from planner.runtime.worker_marks import RankMarks
from planner.spec import Phase, TrialTask
from planner.spec._record import record

# fp16 starts at a loss scale of 2**16 and halves it at each overflow (DeepSpeed's dynamic scaler, hysteresis aside):
# after 16 skipped steps it is down at 1, and a model that still overflows does not train.
MAX_EXTRA_WARMUP_STEPS = 16


class StepTimes(Protocol):
    """What of a step's result counts here; `session.StepResult` is one."""

    @property
    def loss(self) -> float: ...
    @property
    def forward_s(self) -> float: ...
    @property
    def backward_s(self) -> float: ...
    @property
    def optimizer_s(self) -> float: ...


class Steppable(Protocol):
    """The part of a training session that steps."""

    @property
    def skipped_steps(self) -> int: ...

    def train_step(self) -> StepTimes: ...


@record
class StepFigures:
    """`times_s`: wall time of each timed step. The phases' times are means per timed step. `losses`: of all steps."""

    times_s: tuple[float, ...]
    forward_s: float
    backward_s: float
    optimizer_s: float
    losses: tuple[float, ...]
    warmup_times_s: tuple[float, ...] = ()
    stopped_early: bool = False
    allocated_bytes: tuple[int, ...] = ()  # after each timed step


class TrialDiverged(Exception):
    """The loss is not finite, or no optimizer step was ever applied. Every rank meets it in the same step."""

    def __init__(self, reason: str, *, losses: tuple[float, ...]) -> None:
        super().__init__(reason)
        self.step = len(losses) - 1
        self.losses = losses


class Listener(Protocol):
    """Hears of phases and steps as they come; `emulation_record.Recorder` is one."""

    def enter(self, phase: Phase) -> None: ...
    def step_done(self) -> None: ...


class PhaseClock:
    """Passes phases and steps on to the marks (and a listener), and remembers when each phase was first entered."""

    def __init__(self, marks: RankMarks) -> None:
        self._marks = marks
        self._listener: Listener | None = None
        self._first_entered_s: dict[Phase, float] = {}

    def tell(self, listener: Listener) -> None:
        """Pass everything on to the listener, too, from now on."""
        self._listener = listener

    def enter(self, phase: Phase) -> None:
        """The rank is in this phase from now on."""
        self._first_entered_s.setdefault(phase, time.perf_counter())
        self._marks.enter(phase)
        if self._listener is not None:
            self._listener.enter(phase)

    def step_done(self) -> None:
        """One more optimizer step is done."""
        self._marks.step_done()
        if self._listener is not None:
            self._listener.step_done()

    def building_times_s(self) -> tuple[float, float]:
        """How long building the model took, and then the engine, when both are just done."""
        now_s = time.perf_counter()
        model_s = self._first_entered_s.get(Phase.BUILD_MODEL, now_s)
        engine_s = self._first_entered_s.get(Phase.BUILD_ENGINE, now_s)
        return engine_s - model_s, now_s - engine_s


_SURELY_HOPELESS_FACTOR = 2.0  # of the limit: then one step is enough


def is_hopeless(times_s: list[float], limit_s: float) -> bool:
    """Whether the timed steps so far say that the trial need not go on: two of them above the limit, or the first far
    above it. `limit_s` 0: never."""
    if limit_s <= 0 or not times_s:
        return False
    return min(times_s) > limit_s * (_SURELY_HOPELESS_FACTOR if len(times_s) == 1 else 1.0)


def _all_give_up(times_s: list[float], task: TrialTask) -> bool:
    """Whether every rank finds the trial hopeless: all stop after the same step, or none does."""
    if task.hopeless_step_s <= 0 or len(times_s) >= task.steps:
        return False
    hopeless = is_hopeless(times_s, task.hopeless_step_s)
    if not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1:
        return hopeless
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_initialized() else torch.device("cpu")
    agreed = torch.tensor(int(hopeless), device=device)
    torch.distributed.all_reduce(agreed, op=torch.distributed.ReduceOp.MIN)
    return bool(agreed.item())


def run_steps(
    session: Steppable, task: TrialTask, clock: PhaseClock, *, allocated: Callable[[], int] = lambda: 0
) -> StepFigures:
    """Warm up, then run and time the task's steps; hopeless ones end them early. Raises TrialDiverged.

    Warming up goes on while every step so far was skipped for overflow: until the first one that is not, the optimizer
    has no states, and neither memory nor time is that of training.
    """
    losses: list[float] = []
    warmup: list[float] = []
    while len(losses) < task.warmup_steps or _still_overflowing(session, losses, task):
        warmup.append(_run_step(session, losses, clock)[0])
    timed: list[tuple[float, StepTimes]] = []
    memory: list[int] = []
    gives_up = False
    while len(timed) < task.steps and not gives_up:
        timed.append(_run_step(session, losses, clock))
        memory.append(allocated())
        gives_up = _all_give_up([seconds for seconds, _ in timed], task)
    if session.skipped_steps >= len(losses):
        raise TrialDiverged("every optimizer step was skipped: gradients overflow", losses=tuple(losses))
    return StepFigures(
        times_s=tuple(seconds for seconds, _ in timed),
        forward_s=fmean(step.forward_s for _, step in timed),
        backward_s=fmean(step.backward_s for _, step in timed),
        optimizer_s=fmean(step.optimizer_s for _, step in timed),
        losses=tuple(losses),
        warmup_times_s=tuple(warmup),
        stopped_early=gives_up,
        allocated_bytes=tuple(memory),
    )


def _still_overflowing(session: Steppable, losses: list[float], task: TrialTask) -> bool:
    extra = len(losses) - task.warmup_steps
    return bool(losses) and session.skipped_steps >= len(losses) and extra < MAX_EXTRA_WARMUP_STEPS


def _run_step(session: Steppable, losses: list[float], clock: PhaseClock) -> tuple[float, StepTimes]:
    """One optimizer step between two synchronisations; its loss is appended to `losses`."""
    _synchronize()
    began_s = time.perf_counter()
    result = session.train_step()
    _synchronize()
    seconds = time.perf_counter() - began_s
    losses.append(result.loss)
    clock.step_done()
    if not math.isfinite(result.loss):
        raise TrialDiverged(f"the loss is {result.loss}", losses=tuple(losses))
    return seconds, result


def _synchronize() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
