"""What a search is given: the candidates, what the analytic model says of them, and the rules of the search.

The parts that act (an evaluator, a clock, a storage) are handed to `run_search` beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import numpy as np

from planner.cost import Target
from planner.search.storage import StudyPlace
from planner.spec._record import record, require
from planner.spec.candidate import Candidate
from planner.spec.columns import BoolColumn, CandidateColumns, FloatColumn
from planner.spec.job import TrialPolicy
from planner.spec.kinds import Objective
from planner.spec.trial import Outcome, TrialRecord

SAMPLERS = ("guided", "tpe", "random")


class Evaluator(Protocol):
    """Runs one candidate: by a real trial, an emulated one, or a formula. Every expected end is an `Outcome`."""

    def evaluate(self, number: int, candidate: Candidate) -> Outcome:
        """Try `candidate` as trial `number` and say how it ended."""


@record
class Priors:
    """What the analytic model says of each candidate; arrays of one length, aligned with the columns.

    `memory_bytes` is the device memory a trial would show (of the worst rank); `low_bytes`..`high_bytes` is taken as an
    interval that holds the truth nine times in ten. `fits` is the model's verdict without headroom.
    """

    tokens_per_s: FloatColumn
    step_time_s: FloatColumn
    memory_bytes: FloatColumn
    low_bytes: FloatColumn
    high_bytes: FloatColumn
    fits: BoolColumn

    def __post_init__(self) -> None:
        lengths = {len(getattr(self, name)) for name in self.__dataclass_fields__}
        require(len(lengths) == 1, "the priors are columns of one length")
        for name in ("tokens_per_s", "step_time_s", "memory_bytes", "low_bytes", "high_bytes"):
            column = getattr(self, name)
            require(bool(np.all(np.isfinite(column) & (column > 0))), f"the prior {name} is finite and positive")


@record
class SearchProblem:
    """The candidates (legal, and not screened out) and how to look for the best of them.

    `usable_bytes` is the memory of one device, of which a winner leaves `memory_headroom_fraction` free. `num_layers`
    is the model's, for the stage partition (0: not a stack of layers). `machine` is the fingerprint of the hardware
    that runs the trials: trials of another machine are kept but not believed. `legal`: the whole space of the job, from
    which the values of Optuna's axes are taken, so that they do not depend on what memory is free today (None: the
    candidates themselves). `worker` names this planner in a shared study; the time budget counts its own trials.
    """

    columns: CandidateColumns
    priors: Priors
    policy: TrialPolicy
    seed: int
    usable_bytes: int
    memory_headroom_fraction: float = 0.05
    objective: Objective = Objective.THROUGHPUT
    target: Target | None = None  # of the objective `deadline`
    num_layers: int = 0
    machine: str = ""
    machine_is_shared: bool = False  # somebody else's memory moves on the devices: then no out-of-memory proves another
    early_end: bool = True  # stop when nothing untried is likely to win
    legal: CandidateColumns | None = None
    worker: str = ""

    def __post_init__(self) -> None:
        require(len(self.columns) == len(self.priors.tokens_per_s), "one prior per candidate")
        require(len(self.columns) > 0, "a search has at least one candidate")
        require(self.usable_bytes > 0, "usable memory is positive")

    @property
    def limit_bytes(self) -> float:
        """What a winner may use at most."""
        return self.usable_bytes * (1.0 - self.memory_headroom_fraction)

    @property
    def is_sweep(self) -> bool:
        """A space no larger than the number of trials is tried whole."""
        return len(self.columns) <= self.policy.max_trials


@record
class Clock:
    """Where the search reads time: `unix_s` for the records, `monotonic_s` for durations and the budget; and how it
    waits for other workers."""

    unix_s: Callable[[], float] = time.time
    monotonic_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


@record
class SearchPorts:
    """The parts that act. `on_trial` gets every trial the moment it ends, with the best so far (itself perhaps); when
    it returns, the trial must be durable."""

    evaluator: Evaluator
    place: StudyPlace
    on_trial: Callable[[TrialRecord, TrialRecord | None], None]
    clock: Clock = Clock()
