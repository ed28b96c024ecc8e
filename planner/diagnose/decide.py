"""All facts to one verdict: which event is the cause and which are its wake, then the rules for that kind. Pure.

A run that dies of one rank's shortage prints many failures: the ranks that lost their peer, the launcher that kills the
rest, the exit codes of all. So events are ranked: a message about memory is the cause before anything that merely
follows from a death. Among equals the first in the log is. A kill by signal 9 proves nothing by itself: it is the
host's memory only if no other failure came first.
"""

from __future__ import annotations

from planner.diagnose.arithmetic import has_figures
from planner.diagnose.causes import Cause
from planner.diagnose.growth import strongest_leak
from planner.diagnose.records import EventKind, Hint, LogFacts, MemoryEvent, ModelView, Verdict
from planner.diagnose.rules_bare import decide_bare
from planner.diagnose.rules_device import decide_device
from planner.diagnose.rules_host import decide_host, decide_other
from planner.diagnose.rules_processes import imbalance_in_tables, placement_in_tables, strangers_in_tables
from planner.diagnose.rules_spikes import growth_words
from planner.diagnose.situation import Situation
from planner.diagnose.words import shortened

_ABOUT_MEMORY = (
    EventKind.DEVICE_ALLOCATOR,
    EventKind.SINGLE_LIMIT,
    EventKind.PINNED_HOST,
    EventKind.HOST_ALLOCATOR,
    EventKind.SHARED_MEMORY,
    EventKind.KERNEL_KILL,
    EventKind.DEVICE_ERROR,
    EventKind.LIBRARY_ALLOCATION,
)
_MOMENTS = {
    Hint.SAVES: Cause.CHECKPOINT_SAVE_SPIKE,
    Hint.RESUMES: Cause.RESUME_SPIKE,
    Hint.EVALUATES: Cause.EVAL_ACCUMULATION,
}
_HOST = (EventKind.HOST_ALLOCATOR, EventKind.SHARED_MEMORY, EventKind.KERNEL_KILL, EventKind.KILLED)
_OTHER = (EventKind.COLLECTIVE, EventKind.OTHER_FAILURE, EventKind.NONSENSE_SIZE)


def decide(facts: LogFacts, *, model: ModelView | None = None) -> Verdict:
    """The cause of the failure in these logs, with its evidence. Never raises; `unknown-not-capacity` is an answer."""
    index = first_cause(facts.events)
    if index is None:
        return _without_events(facts)
    situation = Situation(facts=facts, index=index, model=model)
    kind = situation.event.kind
    placed = placement_in_tables(facts)
    if placed is not None and kind not in _HOST:
        return situation.verdict(placed.cause, placed.confidence, *placed.evidence)
    if kind in _HOST:
        return decide_host(situation)
    if kind in _OTHER:
        return decide_other(situation)
    return decide_device(situation) if has_figures(situation.event) else decide_bare(situation)


def first_cause(events: tuple[MemoryEvent, ...]) -> int | None:
    """The event that is the cause; None without events.

    1. the first message about memory, one with figures before one without;
    2. an error that hides one;
    3. the first of: a kill, a failed collective, another failure. A launcher's exit codes count as another failure only
       when nothing else is known.
    """
    memory = [place for place, event in enumerate(events) if event.kind in _ABOUT_MEMORY]
    if memory:
        return _best(events, memory)
    masked = [place for place, event in enumerate(events) if event.kind is EventKind.MASKED]
    rest = [place for place, event in enumerate(events) if event.kind in (*_OTHER, EventKind.KILLED)]
    if masked:
        return masked[0]
    if not rest:
        return None
    substantial = [place for place in rest if not _is_exit_code(events[place])]
    return (substantial or rest)[0]


def _best(events: tuple[MemoryEvent, ...], places: list[int]) -> int:
    """The first message that says something: with figures for a device, any for the host."""
    first = events[places[0]]
    if first.kind in (
        EventKind.DEVICE_ERROR,
        EventKind.LIBRARY_ALLOCATION,
        EventKind.DEVICE_ALLOCATOR,
    ) and not has_figures(first):
        return next((place for place in places if has_figures(events[place])), places[0])
    return places[0]


def _is_exit_code(event: MemoryEvent) -> bool:
    """A launcher's word that a rank ended with an error of its own: it names no reason."""
    return event.kind is EventKind.OTHER_FAILURE and event.exit_code is not None


def _without_events(facts: LogFacts) -> Verdict:
    growth = strongest_leak(facts.series)
    if growth is not None:
        return Verdict(
            cause=Cause.LEAK, confidence=round(min(0.9, 0.5 + 0.4 * growth.fit), 2), evidence=growth_words(growth)
        )
    tables = placement_in_tables(facts) or imbalance_in_tables(facts) or strangers_in_tables(facts)
    if tables is not None:
        return tables
    grows = next((seen for seen in facts.hints if seen.hint is Hint.GROWS), None)
    if grows is not None:
        return Verdict(cause=Cause.LEAK, confidence=0.5, evidence=(f"it is said: {shortened(grows.text)!r}",))
    if facts.has(Hint.SHARED_DEVICE):
        words = next(seen.text for seen in facts.hints if seen.hint is Hint.SHARED_DEVICE)
        return Verdict(cause=Cause.RANK_PLACEMENT, confidence=0.55, evidence=(f"it is said: {shortened(words)!r}",))
    moment = next((seen for seen in facts.hints if seen.from_user and seen.hint in _MOMENTS), None)
    if moment is not None:
        words = f"it is said: {shortened(moment.text)!r}"
        return Verdict(cause=_MOMENTS[moment.hint], confidence=0.55, evidence=(words,))
    if not facts.num_bytes:
        return Verdict(cause=Cause.UNKNOWN_NOT_CAPACITY, confidence=0.1, evidence=("there is nothing to read",))
    if facts.has(Hint.TIME_LIMIT):
        return Verdict(cause=Cause.NOT_OOM, confidence=0.8, evidence=("the scheduler ended the job at its time limit",))
    return Verdict(
        cause=Cause.NOT_OOM,
        confidence=0.5,
        evidence=(f"none of {facts.num_lines:,} lines reports a failure that is known here",),
    )
