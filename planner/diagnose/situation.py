"""One event in its surroundings: what every rule is asked about. Pure."""

from __future__ import annotations

from planner.diagnose.causes import Cause
from planner.diagnose.records import Hint, LogFacts, MemoryEvent, ModelView, RunPhase, Verdict
from planner.spec._record import record


@record
class Situation:
    """`index`: the event's place in `facts.events`. `model`: what the cost model says, None when nothing was given."""

    facts: LogFacts
    index: int
    model: ModelView | None = None

    @property
    def event(self) -> MemoryEvent:
        """The event that the situation turns on."""
        return self.facts.events[self.index]

    @property
    def many_ranks(self) -> bool:
        """Whether the run has several ranks: then contexts hold NCCL's memory too."""
        facts = self.facts
        return len(facts.ranks) > 1 or any(facts.ranks) or facts.settings.world_size > 1 or facts.has(Hint.MULTI_RANK)

    @property
    def nominal_bytes(self) -> int:
        """The device's memory by its label: from the log, else from the GPU that was named; 0 when unknown."""
        named = self.facts.settings.nominal_bytes
        return named or (self.model.nominal_bytes if self.model is not None else 0)

    @property
    def micro_batch_size(self) -> int:
        """0 when unknown."""
        given = self.model.micro_batch_size if self.model is not None else 0
        return given or self.facts.settings.micro_batch_size

    def said(self, hint: Hint) -> bool:
        """Whether the user said it, or the log says it near the failure."""
        return self.facts.has(hint)

    def told(self, hint: Hint) -> bool:
        """Whether the user said it in a note."""
        return any(seen.hint is hint and seen.from_user for seen in self.facts.hints)

    @property
    def trains(self) -> bool:
        """Whether the failure is in, or may be in, a training step."""
        return self.event.phase in (RunPhase.FORWARD, RunPhase.BACKWARD, RunPhase.UNKNOWN, RunPhase.DATA)

    def verdict(
        self, cause: Cause, confidence: float, *evidence: str, also: tuple[Cause, ...] = (), grows: str = ""
    ) -> Verdict:
        """A verdict about this event."""
        return Verdict(
            cause=cause,
            confidence=round(min(max(confidence, 0.0), 1.0), 2),
            evidence=tuple(evidence),
            event=self.index,
            also=also,
            grows=grows,
        )
