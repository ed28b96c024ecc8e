"""Failures that belong to a moment of the run, not to the training step: leaks, saving, resuming, evaluating. Pure."""

from __future__ import annotations

from planner.diagnose.arithmetic import Shares
from planner.diagnose.causes import Cause
from planner.diagnose.growth import Growth, strongest_leak
from planner.diagnose.records import EventKind, Hint, RunPhase, Series, Verdict
from planner.diagnose.situation import Situation
from planner.diagnose.words import shortened, size

_HOST_KINDS = (EventKind.KILLED, EventKind.KERNEL_KILL, EventKind.HOST_ALLOCATOR)


def leak(situation: Situation, shares: Shares) -> Verdict | None:
    """A counter that grows with the steps (`growth`), or a user who saw it grow while shapes stayed the same."""
    of_host = situation.event.kind in _HOST_KINDS
    growth = strongest_leak(leaking_series(situation.facts.series, of_host=of_host))
    if growth is not None:
        return situation.verdict(Cause.LEAK, min(0.92, 0.5 + 0.45 * growth.fit), *growth_words(growth))
    grows = next((seen for seen in situation.facts.hints if seen.hint is Hint.GROWS), None)
    if grows is None or situation.said(Hint.VARIABLE_SHAPES):
        return None
    confidence = 0.65 if grows.from_user else 0.5
    return situation.verdict(
        Cause.LEAK, confidence, f"it is said that memory grows over the run: {shortened(grows.text)!r}"
    )


def leaking_series(series: tuple[Series, ...], *, of_host: bool) -> tuple[Series, ...]:
    """The series that concern the memory that ran out. The node's own total rises with every file that is read, so it
    counts for failures of the host only."""
    return tuple(one for one in series if one.is_host == of_host)


def growth_words(growth: Growth) -> tuple[str, ...]:
    """The evidence of a leak in numbers."""
    first, last = growth.series.points[0], growth.series.points[-1]
    whose = f" of rank {growth.series.rank}" if growth.series.rank is not None else ""
    span = last.step - first.step
    return (
        f"{growth.series.name}{whose} grows from {size(growth.first_bytes)} to {size(growth.last_bytes)} over "
        f"{len(growth.series.points)} samples, in a straight line (R^2 {growth.fit:.2f})",
        f"it still grows at the end, at {growth.late_pace:.0%} of the average pace "
        f"({size(growth.bytes_per_step * span)} over the log)",
    )


def save_spike(situation: Situation, shares: Shares) -> Verdict | None:
    """The traceback, or the last lines before the failure, are in saving."""
    if situation.event.phase is RunPhase.CHECKPOINT_SAVE:
        return situation.verdict(
            Cause.CHECKPOINT_SAVE_SPIKE, 0.82, _where(situation, "saving a checkpoint"), *_gathered(situation)
        )
    if situation.event.phase in (RunPhase.UNKNOWN, RunPhase.START) and _only_hint(situation, Hint.SAVES):
        return situation.verdict(Cause.CHECKPOINT_SAVE_SPIKE, 0.6, _said(situation, Hint.SAVES), *_gathered(situation))
    return None


def _gathered(situation: Situation) -> tuple[str, ...]:
    model = situation.model
    if model is None or not model.num_parameters:
        return ()
    return (f"gathered 16-bit weights alone are {size(2 * model.num_parameters)} on one rank",)


def resume_spike(situation: Situation, shares: Shares) -> Verdict | None:
    """Loading to resume: by the traceback or the last lines; or it fits from scratch and fails on resume, wherever the
    failure then shows (mostly in the first step, when the loaded copy is still alive)."""
    phase = situation.event.phase
    if phase is RunPhase.CHECKPOINT_LOAD:
        return situation.verdict(Cause.RESUME_SPIKE, 0.82, _where(situation, "loading a checkpoint"))
    if situation.said(Hint.RESUMES) and situation.said(Hint.SCRATCH_FITS):
        words = _said(situation, Hint.SCRATCH_FITS)
        return situation.verdict(
            Cause.RESUME_SPIKE, 0.8, words, "so the memory that is missing came with the checkpoint"
        )
    at_start = phase in (RunPhase.UNKNOWN, RunPhase.START, RunPhase.BUILD_ENGINE)
    if situation.told(Hint.RESUMES) or (at_start and _only_hint(situation, Hint.RESUMES)):
        return situation.verdict(Cause.RESUME_SPIKE, 0.6, _said(situation, Hint.RESUMES))
    return None


def eval_accumulation(situation: Situation, shares: Shares) -> Verdict | None:
    """In evaluation: outputs of all batches are kept, mostly as logits of the whole vocabulary."""
    if situation.event.phase is RunPhase.EVALUATION:
        return situation.verdict(Cause.EVAL_ACCUMULATION, 0.78, _where(situation, "evaluation"))
    if situation.event.phase in (RunPhase.UNKNOWN, RunPhase.FORWARD) and _only_hint(situation, Hint.EVALUATES):
        return situation.verdict(Cause.EVAL_ACCUMULATION, 0.6, _said(situation, Hint.EVALUATES))
    return None


def _only_hint(situation: Situation, hint: Hint) -> bool:
    """Whether this is the one moment that is spoken of: a log that names all of them tells nothing."""
    moments = [one for one in (Hint.SAVES, Hint.RESUMES, Hint.EVALUATES) if situation.said(one)]
    told = [one for one in moments if situation.told(one)]
    return hint in told or moments == [hint]


def _where(situation: Situation, doing: str) -> str:
    event = situation.event
    if event.file:
        place = f"{event.file}:{event.line}" if event.line else event.file
        inside = f" in {event.function}" if event.function else ""
        return f"the failing call is in {doing}: {place}{inside}"
    return f"the last lines before the failure are of {doing}"


def _said(situation: Situation, hint: Hint) -> str:
    seen = next(seen for seen in situation.facts.hints if seen.hint is hint)
    return f"it is said: {shortened(seen.text)!r}"
