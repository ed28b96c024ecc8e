"""What the reference trainer reports at its end, so that `verify` can hold a run against the plan's promise."""

from __future__ import annotations

from planner.spec._record import record, require
from planner.spec.trial import RankReport


@record
class TrainerReport:
    """One run of the reference trainer. `losses` are one per optimizer step of this run, the same on every rank.

    `ranks` holds what each rank measured; its times leave out the first step of the run (unless it was the only one).
    `tokens_per_s` goes by the median over those steps of the slowest rank of each.
    """

    resumed_from_step: int  # 0: from the beginning
    steps_done: int  # optimizer steps since the training began, those before a resume included
    losses: tuple[float, ...]
    tokens_per_s: float
    ranks: tuple[RankReport, ...]

    def __post_init__(self) -> None:
        require(self.steps_done >= self.resumed_from_step, "a run does not go backwards")
