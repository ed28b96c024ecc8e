"""Watches the DeepSpeed engine of a script that does not know of it: its steps, losses, sequences and phases.

Owns the wrapping of `deepspeed.initialize` and of the engine's own methods, and which steps count. Leaves running the
script to `script_run`, and what happens once enough was seen to whoever listens (`on_enough`, which ends the process).

Only the first engine with an optimizer is watched, and only in the process that installed the watch: what the script
forks (data loaders) carries the wrapping along and is left alone.
"""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable
from statistics import fmean
from typing import Any, NoReturn, Protocol

import deepspeed
import torch

from planner.runtime.script_config import other_config
from planner.runtime.script_count import count_rows, count_sequences, loss_of
from planner.runtime.script_run import ScriptProblem
from planner.runtime.worker_steps import MAX_EXTRA_WARMUP_STEPS, TrialDiverged
from planner.spec import Phase, TrialTask


class Ear(Protocol):
    """Hears phases and steps; `worker_steps.PhaseClock` is one."""

    def enter(self, phase: Phase) -> None:
        """A phase begins."""
        ...

    def step_done(self) -> None:
        """One more optimizer step is done."""
        ...


class ScriptWatch:
    """One watched training. `on_engine` is called when the engine stands; `on_enough` after the last step wanted, and
    `on_problem` when the run is no trial of the plan: both end the process, so that no script can swallow the end."""

    def __init__(
        self,
        task: TrialTask,
        ear: Ear,
        *,
        on_engine: Callable[[], None],
        on_enough: Callable[[ScriptWatch], NoReturn],
        on_problem: Callable[[BaseException], NoReturn],
    ) -> None:
        self._task = task
        self._ear = ear
        self._on_engine = on_engine
        self._on_enough = on_enough
        self._on_problem = on_problem
        self._pid = os.getpid()
        self._engine: Any = None
        self._micro_losses: list[tuple[torch.Tensor, bool]] = []  # loss, whether the script has divided it already
        self._output_losses: list[torch.Tensor] = []  # for a script that calls loss.backward() itself
        self._rows_of_step = 0
        self._step_began_s = 0.0
        self._forward_s = self._backward_s = self._optimizer_s = 0.0
        self._phase_times_s: list[tuple[float, float, float]] = []
        self._times_s: list[float] = []
        self.losses: list[float] = []
        self.rows_per_step: list[int] = []
        self.steps_done = 0

    @property
    def started(self) -> bool:
        """Whether the script has made its engine."""
        return self._engine is not None

    @property
    def device(self) -> torch.device:
        """Where the engine computes, and its process group communicates."""
        return torch.device(self._engine.device)

    @property
    def steps_wanted(self) -> int:
        """Optimizer steps until the end, warming up included."""
        return self._task.warmup_steps + self._task.steps

    @property
    def skipped_steps(self) -> int:
        return int(self._engine.skipped_steps) if self.started else 0

    @property
    def step_times_s(self) -> tuple[float, ...]:
        """Wall time of the timed steps, each from the end of the step before it: the script's own work included."""
        return tuple(self._times_s[-self._task.steps :])

    def phase_means_s(self) -> tuple[float, float, float]:
        """Forward, backward and optimizer per timed step; zeros for a pipeline, which does all in one call."""
        timed = self._phase_times_s[-self._task.steps :]
        forward, backward, optimizer = (fmean(column) for column in zip(*timed))
        return forward, backward, optimizer

    def sequences_per_step(self) -> int:
        """Consumed by all data-parallel ranks in one optimizer step, where the batches could be counted."""
        engine = self._engine
        claimed = int(engine.train_batch_size())
        rows = max(self.rows_per_step, default=0)
        if not rows:  # a middle stage is fed none, and some batches cannot be counted: then DeepSpeed's own word
            return claimed
        return rows * int(engine.dp_world_size)

    def install(self) -> None:
        """Wrap `deepspeed.initialize` before the script imports it."""
        original = deepspeed.initialize

        @functools.wraps(original)
        def initialize(*arguments: Any, **named: Any) -> Any:
            if os.getpid() != self._pid or self.started:
                return original(*arguments, **named)
            self._ear.enter(Phase.BUILD_ENGINE)
            made = original(*arguments, **named)
            if getattr(made[0], "optimizer", None) is not None:
                self._attach(made[0])
            return made

        deepspeed.initialize = initialize

    def _attach(self, engine: Any) -> None:
        problem = other_config(engine, self._task)
        if problem is not None:
            self._on_problem(problem)
        self._engine = engine
        self._on_engine()
        if hasattr(engine, "train_batch"):
            self._wrap_pipeline(engine)
        else:
            self._wrap_plain(engine)
        self._ear.enter(Phase.FORWARD)
        _synchronize()
        self._step_began_s = time.perf_counter()

    def _wrap_plain(self, engine: Any) -> None:
        forward, backward, step = engine.forward, engine.backward, engine.step

        @functools.wraps(forward)
        def watched_forward(*arguments: Any, **named: Any) -> Any:
            if not self._is_training(engine):
                return forward(*arguments, **named)
            self._ear.enter(Phase.FORWARD)
            batch, training = self._task.candidate.batch, self._task.training
            self._rows_of_step += count_sequences(
                arguments, named, micro_batch_size=batch.micro_batch_size, seq_len=training.seq_len
            )
            began_s = time.perf_counter()
            outputs = forward(*arguments, **named)
            self._forward_s += time.perf_counter() - began_s
            loss = loss_of(outputs)
            if loss is not None:
                self._output_losses.append(loss.detach())
            return outputs

        @functools.wraps(backward)
        def watched_backward(loss: Any, *arguments: Any, **named: Any) -> Any:
            self._ear.enter(Phase.BACKWARD)
            if isinstance(loss, torch.Tensor) and loss.numel() == 1:
                self._micro_losses.append((loss.detach(), named.get("scale_wrt_gas") is False))
            began_s = time.perf_counter()
            result = backward(loss, *arguments, **named)
            self._backward_s += time.perf_counter() - began_s
            return result

        @functools.wraps(step)
        def watched_step(*arguments: Any, **named: Any) -> Any:
            before = engine.global_steps
            self._ear.enter(Phase.OPTIMIZER_STEP)
            began_s = time.perf_counter()
            result = step(*arguments, **named)
            self._optimizer_s += time.perf_counter() - began_s
            if engine.global_steps > before and os.getpid() == self._pid:
                self._step_ended(self._loss_of_step())
            return result

        engine.forward, engine.backward, engine.step = watched_forward, watched_backward, watched_step

    def _wrap_pipeline(self, engine: Any) -> None:
        train_batch = engine.train_batch

        @functools.wraps(train_batch)
        def watched_train_batch(*arguments: Any, **named: Any) -> Any:
            self._ear.enter(Phase.TRAIN_BATCH)
            before = engine.global_steps
            loss = train_batch(*arguments, **named)
            if engine.global_steps > before and os.getpid() == self._pid:
                visible = isinstance(loss, torch.Tensor) and loss.numel() == 1
                self._step_ended(float(loss) if visible else None)
            return loss

        engine.train_batch = watched_train_batch
        next_batch = getattr(engine, "_next_batch", None)  # of the first and the last stage, wherever data comes from
        if next_batch is not None:

            @functools.wraps(next_batch)
            def counted_batch() -> Any:
                batch = next_batch()
                self._rows_of_step += count_rows(batch)
                return batch

            engine._next_batch = counted_batch

    def _is_training(self, engine: Any) -> bool:
        return bool(engine.training) and torch.is_grad_enabled() and os.getpid() == self._pid

    def _loss_of_step(self) -> float | None:
        """Mean over this rank's micro-batches; one that the script has divided by their number already is summed."""
        if not self._micro_losses:
            return fmean(map(float, self._output_losses)) if self._output_losses else None
        values = [float(loss) for loss, _ in self._micro_losses]
        divided = any(is_divided for _, is_divided in self._micro_losses)
        return sum(values) if divided else fmean(values)

    def _step_ended(self, loss: float | None) -> None:
        _synchronize()
        now_s = time.perf_counter()
        self._times_s.append(now_s - self._step_began_s)
        self._phase_times_s.append((self._forward_s, self._backward_s, self._optimizer_s))
        self.rows_per_step.append(self._rows_of_step)
        self.steps_done += 1
        self._ear.step_done()
        if loss is not None:
            self.losses.append(loss)
            if not math.isfinite(loss):
                self._on_problem(TrialDiverged(f"the loss is {loss}", losses=tuple(self.losses)))
        self._forward_s = self._backward_s = self._optimizer_s = 0.0
        self._micro_losses, self._output_losses, self._rows_of_step = [], [], 0
        if self._seen_enough():
            if self.skipped_steps >= self.steps_done:
                reason = "every optimizer step was skipped: gradients overflow"
                self._on_problem(TrialDiverged(reason, losses=tuple(self.losses)))
            fed_otherwise = self._fed_otherwise()
            if fed_otherwise is not None:
                self._on_problem(fed_otherwise)
            self._on_enough(self)
        self._ear.enter(Phase.FORWARD)
        self._step_began_s = time.perf_counter()

    def _fed_otherwise(self) -> ScriptProblem | None:
        """A script whose batches are of another size than the config says trains something else."""
        batch = self._task.candidate.batch
        planned = batch.micro_batch_size * batch.gradient_accumulation_steps
        seen = max(self.rows_per_step, default=0)
        if seen in (0, planned):
            return None
        return ScriptProblem(
            f"the script fed each rank {seen} sequences in one optimizer step, but the plan's micro-batch of "
            f"{batch.micro_batch_size} times accumulation of {batch.gradient_accumulation_steps} is {planned}: pass "
            "{micro_batch_size} (and {gradient_accumulation_steps}) on to it in launch.command, or let it ask "
            "engine.train_micro_batch_size_per_gpu()"
        )

    def _seen_enough(self) -> bool:
        """The steps wanted, begun afresh while every one so far was skipped for overflow (no optimizer states yet)."""
        skipped = min(self.skipped_steps, MAX_EXTRA_WARMUP_STEPS)
        return self.steps_done >= self.steps_wanted + skipped


def _synchronize() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
