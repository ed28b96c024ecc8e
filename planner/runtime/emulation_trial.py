"""What a trial of an emulated rank does beyond a real one: starts the made-up world, records every step, and corrects
the rank's report for what emulating cost.

Owns the life of one emulation within a trial. The steps themselves, and memory, are measured as for a real rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from planner.runtime.emulation import start_emulated
from planner.runtime.emulation_count import emulation_report, own_cost_s
from planner.runtime.emulation_pipeline import announce_step_end
from planner.runtime.emulation_record import Recorder, timeline_of
from planner.runtime.emulation_values import OwnVocabulary
from planner.runtime.grid import coordinates_of
from planner.runtime.session import TrainingSession
from planner.spec import Phase, RankReport, TrialTask


class EmulatedTrial:
    """`recorder` is to hear of every phase and of every step's end."""

    def __init__(self, task: TrialTask, rank: int) -> None:
        self._task = task
        self._rank = rank
        self._sequences = 0
        self.recorder = Recorder(timeline_of(task.device))
        start_emulated(task, rank=rank, recorder=self.recorder)

    def attach(self, session: TrainingSession, on_phase: Callable[[Phase], None]) -> None:
        """Watch a session that was just built, and feed it what one rank can make sense of alone."""
        layout = self._task.candidate.layout
        if layout.pipeline_parallel_size > 1:
            announce_step_end(session.engine, on_phase)
        if layout.tensor_parallel_size > 1:
            session.source = OwnVocabulary(
                session.source,
                tensor_rank=coordinates_of(self._rank, layout).tensor_rank,
                tensor_size=layout.tensor_parallel_size,
                vocab_size=self._task.model.vocab_size,
            )
        session.engine.module.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensors = [value for value in (*args, *kwargs.values()) if torch.is_tensor(value)]
        self._sequences += len(tensors[0])

    def complete(self, report: RankReport) -> RankReport:
        """The report as it would be if emulating cost nothing, with what was recorded.

        `sequences_per_step`: what this rank's forward passes took in, times the data-parallel ranks alike.
        """
        batch = self._task.candidate.batch
        emulation = emulation_report(
            self.recorder,
            rank=self._rank,
            world_size=self._task.candidate.layout.world_size,
            micro_batches=batch.gradient_accumulation_steps,
            num_steps=len(report.step_times_s),
        )
        own_s = own_cost_s(self.recorder)
        num_steps = len(own_s)
        pairs = zip(report.step_times_s, own_s[-len(report.step_times_s) :])
        return replace(
            report,
            step_times_s=tuple(max(0.0, seconds - cost) for seconds, cost in pairs),
            sequences_per_step=self._sequences // num_steps * batch.data_parallel_size,
            emulation=emulation,
        )
