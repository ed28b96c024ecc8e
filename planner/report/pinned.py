"""The user's own layout beside the choice: how much faster or slower, where from, or which rule refuses it. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from planner.report.document import Block, Column, Paragraph, Table
from planner.report.explain import winning_trial
from planner.report.input import CandidateRow, PinnedLayout, ReportInput
from planner.report.units import format_bytes, format_fraction, format_seconds, format_tokens_per_s
from planner.report.wording import (
    MEMORY_LABELS,
    TIME_LABELS,
    describe_differences,
    outcome_sentence,
    short_candidate,
)
from planner.spec.trial import Measured

Render: TypeAlias = Callable[[float], str]

_SHARE_WORTH_SAYING = 0.05  # of the largest difference: smaller parts are in the table only
_MOST_SAID = 3


def explain_pinned(report: ReportInput) -> tuple[str, ...]:
    """Sentences: the verdict, in what the two differ, where time and memory go. () when nothing was pinned."""
    pinned = report.pinned
    if pinned is None:
        return ()
    if pinned.row is None:
        refused = "; ".join(f"{row.sentence} ({row.rule})" for row in pinned.refusals)
        return (f"Your layout ({pinned.words}) is refused: {refused or 'no candidate has these values'}.",)
    if pinned.row.key == report.plan.key:
        return (f"Your layout ({pinned.words}) is the choice.",)
    sentences = (
        _verdict(report, pinned, pinned.row),
        f"It has {describe_differences(pinned.row.candidate, report.plan.candidate)}.",
        _time_sentence(report, pinned.row),
        _memory_sentence(report, pinned.row),
        "" if pinned.is_searched else "The job's search ranges do not list it, so it could not be chosen.",
    )
    return tuple(sentence for sentence in sentences if sentence)


def pinned_blocks(report: ReportInput) -> tuple[Block, ...]:
    """The sentences, and both breakdowns side by side."""
    paragraphs: tuple[Block, ...] = tuple(Paragraph(text=text) for text in explain_pinned(report))
    pinned = report.pinned
    if pinned is None or pinned.row is None or pinned.row.key == report.plan.key:
        return paragraphs
    columns = (
        Column(heading="by the model"),
        Column(heading="yours", numeric=True),
        Column(heading="the choice", numeric=True),
        Column(heading="difference", numeric=True),
    )
    theirs, ours = pinned.row.estimate, report.plan.estimate
    rows = [
        (label, format_seconds(mine), format_seconds(chosen), _signed(mine - chosen, format_seconds))
        for label, mine, chosen in (
            ("one step", theirs.step_time_s, ours.step_time_s),
            *((label, getattr(theirs.time, field), getattr(ours.time, field)) for field, label in TIME_LABELS),
        )
        if mine or chosen
    ]
    rows += [
        (label, format_bytes(mine), format_bytes(chosen), _signed(mine - chosen, format_bytes))
        for label, mine, chosen in (
            ("device memory, worst rank", theirs.memory.device_used_bytes, ours.memory.device_used_bytes),
            *(
                (label, getattr(theirs.memory.breakdown, field), getattr(ours.memory.breakdown, field))
                for field, label in MEMORY_LABELS
            ),
        )
        if mine or chosen
    ]
    return (*paragraphs, Table(columns=columns, rows=tuple(rows)))


def _verdict(report: ReportInput, pinned: PinnedLayout, row: CandidateRow) -> str:
    named = f"Your layout ({pinned.words}): {short_candidate(row.candidate)}"
    if pinned.trial is not None and not isinstance(pinned.trial.outcome, Measured):
        return f"{named}. Its trial ended so: {outcome_sentence(pinned.trial.outcome).rstrip('.')}."
    measured = pinned.trial.outcome if pinned.trial is not None else None
    speed = measured.tokens_per_s if isinstance(measured, Measured) else row.estimate.tokens_per_s
    step_s = measured.step_time_s if isinstance(measured, Measured) else row.estimate.step_time_s
    kind = measured.kind if isinstance(measured, Measured) else row.estimate.kind
    ratio = speed / report.plan.promise.tokens_per_s
    compared = f"{format_fraction(abs(ratio - 1))} {'faster' if ratio > 1 else 'slower'} than"
    if abs(ratio - 1) < 0.0005:
        compared = "as fast as"
    sentence = f"{named} makes {format_tokens_per_s(speed)}, a step of {format_seconds(step_s)} ({kind}): {compared}"
    return f"{sentence} the choice{_close(report, measured)}.{_not_tried(pinned, row)}"


def _close(report: ReportInput, measured: object) -> str:
    """Two measurements closer than their joint spread are no ranking."""
    winner = winning_trial(report)
    if winner is None or not isinstance(measured, Measured):
        return ""
    spread_s = math.hypot(winner[1].step_time_spread_s, measured.step_time_spread_s)
    if abs(winner[1].step_time_s - measured.step_time_s) >= spread_s:
        return ""
    return f"; the two are closer than their measurements' spread ({format_seconds(spread_s)}), so either would do"


def _not_tried(pinned: PinnedLayout, row: CandidateRow) -> str:
    memory = row.estimate.memory
    if pinned.trial is not None:
        return ""
    if pinned.screened or memory.low_bytes > memory.usable_bytes:
        needs = f"it needs at least {format_bytes(memory.low_bytes)} a device of {format_bytes(memory.usable_bytes)}"
        return f" It cannot fit, so it was not tried: {needs} usable."
    if memory.high_bytes > memory.usable_bytes:
        return (
            f" It may not fit: up to {format_bytes(memory.high_bytes)} of {format_bytes(memory.usable_bytes)} usable."
        )
    return ""


def _time_sentence(report: ReportInput, row: CandidateRow) -> str:
    ours, theirs = report.plan.estimate, row.estimate
    total = theirs.step_time_s - ours.step_time_s
    parts = [(getattr(theirs.time, field) - getattr(ours.time, field), label) for field, label in TIME_LABELS]
    said = _said(parts, format_seconds)
    if not said:
        return "By the model the two take the same time for each part of a step."
    return f"By the model its step takes {_more_or_less(total, format_seconds, 'longer', 'less')}: {said}."


def _memory_sentence(report: ReportInput, row: CandidateRow) -> str:
    ours, theirs = report.plan.estimate.memory, row.estimate.memory
    total = theirs.device_used_bytes - ours.device_used_bytes
    parts = [
        (getattr(theirs.breakdown, field) - getattr(ours.breakdown, field), label) for field, label in MEMORY_LABELS
    ]
    said = _said(parts, format_bytes)
    if not said:
        return "By the model both take the same memory."
    return f"By the model its worst rank takes {_more_or_less(total, format_bytes, 'more', 'less')} memory: {said}."


def _said(parts: list[tuple[float, str]], render: Render) -> str:
    """`+30 ms tensor-parallel communication, -5 ms compute`: the largest differences, largest first."""
    largest = max((abs(amount) for amount, _ in parts), default=0.0)
    worth = [(amount, label) for amount, label in parts if largest > 0 and abs(amount) >= largest * _SHARE_WORTH_SAYING]
    worth.sort(key=lambda part: -abs(part[0]))
    return ", ".join(f"{_signed(amount, render)} {label}" for amount, label in worth[:_MOST_SAID])


def _more_or_less(amount: float, render: Render, more: str, less: str) -> str:
    if not amount:
        return "as much"
    return f"{render(abs(amount))} {more if amount > 0 else less}"


def _signed(amount: float, render: Render) -> str:
    if not amount:
        return "0"
    return f"{'+' if amount > 0 else '-'}{render(abs(amount))}"
