"""What the search knows of each trial, and nothing more: the form in which trials reach the deciders.

Trials come from the Optuna study (so that a sampler sees what any worker did), in the order in which they began.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from planner.search.scoring import memory_bytes, standard_error_fraction
from planner.spec._record import record
from planner.spec.columns import CandidateColumns, columns_of
from planner.spec.kinds import Phase
from planner.spec.trial import Measured, Outcome, OutOfMemory, Pruned, TrialRecord


class Ended(StrEnum):
    """How a trial ended, as far as the search cares."""

    MEASURED = "measured"
    PRUNED = "pruned"  # ran, and was stopped because it was too slow: its speed is known as a bound from above
    OUT_OF_MEMORY = "out_of_memory"
    FAILED = "failed"  # crashed, hung, diverged, ended by the host: no statement about memory or speed
    RUNNING = "running"  # at another worker


@record
class Observation:
    """One trial. `memory_bytes` is what it showed or, out of memory, at least what it would have needed;
    `tokens_per_s` what it reached or, pruned, would have reached at most."""

    row: int
    ended: Ended
    tokens_per_s: float = 0.0
    standard_error_fraction: float = 0.0
    memory_bytes: float = 0.0
    phase: Phase = Phase.START


def observe(row: int, outcome: Outcome, *, usable_bytes: int) -> Observation:
    """The observation that an outcome of the candidate at `row` amounts to."""
    if isinstance(outcome, Measured):
        if not outcome.tokens_per_s > 0:
            return Observation(row=row, ended=Ended.FAILED)
        return Observation(
            row=row,
            ended=Ended.MEASURED,
            tokens_per_s=outcome.tokens_per_s,
            standard_error_fraction=standard_error_fraction(outcome),
            memory_bytes=float(memory_bytes(outcome)),
        )
    if isinstance(outcome, Pruned):
        return Observation(
            row=row,
            ended=Ended.PRUNED,
            tokens_per_s=outcome.tokens_per_s,
            memory_bytes=float(memory_bytes(outcome)),
        )
    if isinstance(outcome, OutOfMemory):
        needed = usable_bytes * (1.0 + outcome.excess_fraction)
        return Observation(row=row, ended=Ended.OUT_OF_MEMORY, memory_bytes=needed, phase=outcome.phase)
    return Observation(row=row, ended=Ended.FAILED)


def row_of(columns: CandidateColumns, trial: TrialRecord) -> int | None:
    """The row of a trial's candidate; None when the space does not hold it (any more)."""
    wanted = columns_of((trial.candidate,), gpus_per_node=1)
    same = np.ones(len(columns), dtype=np.bool_)
    for name in columns.__dataclass_fields__:
        if name != "nodes":  # follows from the world size
            same &= getattr(columns, name) == getattr(wanted, name)[0]
    rows = np.flatnonzero(same)
    return int(rows[0]) if len(rows) else None


def trials_of_machine(trials: tuple[TrialRecord, ...], machine: str) -> tuple[TrialRecord, ...]:
    """The trials that say something about `machine`: those it ran itself."""
    return tuple(trial for trial in trials if trial.machine == machine)
