"""Which trial wins: a pure rule over what was measured."""

from __future__ import annotations

import math

from planner.cost import Target
from planner.search.scoring import memory_bytes, standard_error_fraction, utility
from planner.spec._record import record
from planner.spec.candidate import Candidate
from planner.spec.kinds import CheckpointingKind, Objective
from planner.spec.runs import one_per_candidate
from planner.spec.trial import Measured, TrialRecord

# However noisy the machine, a tie never costs more than this share of the best speed.
MAX_TIE_FRACTION = 0.01
_MEMORY_STEP_FRACTION = 0.02  # of usable memory: closer than this, two trials use the same memory

_CHECKPOINTING_ORDER = (
    CheckpointingKind.NONE,
    CheckpointingKind.SELECTIVE,
    CheckpointingKind.LAYERS,
    CheckpointingKind.FULL,
)


@record
class Choice:
    """The winning trial, and the best of the others that may win (None when there is no other)."""

    winner: TrialRecord
    runner_up: TrialRecord | None
    num_tied: int  # trials that cannot be told apart from the fastest, the winner among them


def choose_winner(
    trials: tuple[TrialRecord, ...],
    *,
    objective: Objective,
    memory_headroom_fraction: float,
    usable_bytes: int,
    target: Target | None = None,
) -> Choice | None:
    """The best trial that ran and keeps the headroom; None when there is none. A candidate's runs count together.

    Trials within two standard errors of the fastest (at most 1 %) are ties: of them the one with the least memory wins,
    then the simplest layout (fewest stages, smallest tensor split, lowest ZeRO stage, least recomputation).
    """
    limit = usable_bytes * (1.0 - memory_headroom_fraction)
    ranked = sorted(
        (
            _Entry.of(trial, trial.outcome, objective=objective, target=target)
            for trial in one_per_candidate(trials)
            if isinstance(trial.outcome, Measured)
        ),
        key=lambda entry: (-entry.utility, entry.trial.key, entry.trial.number),
    )
    eligible = [entry for entry in ranked if entry.memory_bytes <= limit and math.isfinite(entry.utility)]
    if not eligible:
        return None
    tied = [entry for entry in eligible if _are_tied(eligible[0], entry)]
    step = _MEMORY_STEP_FRACTION * usable_bytes
    winner = min(tied, key=lambda e: (int(e.memory_bytes // step), simplicity(e.trial.candidate), -e.utility))
    others = [entry for entry in eligible if entry is not winner]
    return Choice(winner=winner.trial, runner_up=others[0].trial if others else None, num_tied=len(tied))


@record
class _Entry:
    trial: TrialRecord
    utility: float
    memory_bytes: int
    standard_error_fraction: float

    @classmethod
    def of(cls, trial: TrialRecord, measured: Measured, *, objective: Objective, target: Target | None) -> _Entry:
        return cls(
            trial=trial,
            utility=utility(measured, trial.candidate.layout.world_size, objective, target=target),
            memory_bytes=memory_bytes(measured),
            standard_error_fraction=standard_error_fraction(measured),
        )


def _are_tied(best: _Entry, other: _Entry) -> bool:
    noise = 2.0 * math.hypot(best.standard_error_fraction, other.standard_error_fraction)
    return best.utility - other.utility <= min(noise, MAX_TIE_FRACTION)


def simplicity(candidate: Candidate) -> tuple[int, int, int, int, int, int, str]:
    """A sort key, simplest first; no two candidates share one."""
    checkpointing = candidate.activation_checkpointing
    return (
        candidate.layout.pipeline_parallel_size,
        candidate.layout.tensor_parallel_size,
        candidate.zero_stage,
        _CHECKPOINTING_ORDER.index(checkpointing.kind),
        checkpointing.num_layers,
        len(candidate.tuning.changes),
        candidate.key,
    )
