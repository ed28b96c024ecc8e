"""Small spaces written out by hand, and trial records of chosen figures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.search import Priors, SearchProblem
from planner.spec import (
    ActivationCheckpointing,
    BatchSplit,
    Candidate,
    Crashed,
    Measured,
    Outcome,
    OutOfMemory,
    ParallelLayout,
    Phase,
    Precision,
    TrialPolicy,
    TrialRecord,
)
from planner.spec.columns import columns_of
from tests.unit.search.landscapes import USABLE_BYTES, outcome_of


def candidate(  # a test reads best with the fields it is about
    *,
    micro: int = 1,
    gas: int = 1,
    dp: int = 1,
    tp: int = 1,
    pp: int = 1,
    zero: int = 0,
    checkpointing: str = "none",
    precision: Precision = Precision.BF16,
) -> Candidate:
    """A candidate of 24 layers."""
    return Candidate(
        layout=ParallelLayout(
            data_parallel_size=dp,
            tensor_parallel_size=tp,
            pipeline_parallel_size=pp,
            stage_layers=(24 // pp,) * pp,
        ),
        batch=BatchSplit(micro_batch_size=micro, gradient_accumulation_steps=gas, data_parallel_size=dp),
        zero_stage=zero,
        precision=precision,
        activation_checkpointing=ActivationCheckpointing.parse(checkpointing),
    )


def problem(
    candidates: tuple[Candidate, ...],
    *,
    tokens_per_s: tuple[float, ...] | None = None,
    memory_share: tuple[float, ...] | None = None,
    **changed: object,
) -> SearchProblem:
    """A problem over these candidates: predicted speeds (default: all alike) and shares of the usable memory."""
    speed = np.array(tokens_per_s or (1000.0,) * len(candidates))
    memory = np.array(memory_share or (0.5,) * len(candidates)) * USABLE_BYTES
    priors = Priors(
        tokens_per_s=speed,
        step_time_s=1e4 / speed,
        memory_bytes=memory,
        low_bytes=memory * 0.85,
        high_bytes=memory * 1.15,
        fits=memory * 1.15 <= USABLE_BYTES,
    )
    base = SearchProblem(
        columns=columns_of(candidates, gpus_per_node=8),
        priors=priors,
        policy=TrialPolicy(max_trials=3, time_budget_s=1e9),
        seed=0,
        usable_bytes=USABLE_BYTES,
        num_layers=24,
        machine="m",
    )
    return replace(base, **changed)  # type: ignore[arg-type]


def out_of_memory(*, excess: float = 0.1, phase: Phase = Phase.FORWARD) -> OutOfMemory:
    """Memory ran out when the request overshot by this share."""
    return OutOfMemory(
        rank=0,
        phase=phase,
        requested_bytes=int(USABLE_BYTES * (excess + 0.01)),
        allocated_bytes=int(USABLE_BYTES * 0.99),
        capacity_bytes=USABLE_BYTES,
        log_tail="",
    )


def crashed() -> Crashed:
    """A trial that ended for another reason."""
    return Crashed(rank=0, phase=Phase.FORWARD, exit_code=1, message="boom", log_tail="boom")


def measured(tokens_per_s: float, *, memory_share: float = 0.5, spread: float = 0.001) -> Measured:
    """A trial that ran; `spread` is the relative spread of its step times."""
    outcome = outcome_of(tokens_per_s, memory_share * USABLE_BYTES)
    assert isinstance(outcome, Measured)
    return replace(outcome, step_time_spread_s=spread * outcome.step_time_s)


def trial(number: int, which: Candidate, outcome: Outcome, *, machine: str = "m") -> TrialRecord:
    """A record of a second's trial."""
    return TrialRecord(
        number=number,
        key=which.key,
        candidate=which,
        outcome=outcome,
        started_at_s=1.7e9,
        duration_s=1.0,
        machine=machine,
    )
