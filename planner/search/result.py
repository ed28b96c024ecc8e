"""What a search found and why it stopped."""

from __future__ import annotations

from planner.search.winner import Choice
from planner.spec._record import record
from planner.spec.trial import OutOfMemory, TrialRecord


@record
class SearchResult:
    """`trials` are all of this machine, earlier runs' included; `choice` is None when none of them may win.

    `num_untried` candidates were left alone, `num_pruned` were proven to run out of memory by smaller ones that did.
    """

    trials: tuple[TrialRecord, ...]
    choice: Choice | None
    stopped_because: str
    num_untried: int
    num_pruned: int
    study_note: str = ""

    @property
    def num_out_of_memory(self) -> int:
        """Trials that ended out of device memory."""
        return sum(isinstance(trial.outcome, OutOfMemory) for trial in self.trials)
