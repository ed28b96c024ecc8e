"""What binds the choice, and what different hardware would change: the outlook in a few sentences before its tables."""

from __future__ import annotations

from planner.report.document import Block, Paragraph
from planner.report.input import ReportInput
from planner.report.outlook import outlook_blocks
from planner.report.units import format_bytes, format_fraction
from planner.report.wording import TIME_LABELS, short_candidate
from planner.spec.outlook import Outlook, WhatIf

_WORTH_FRACTION = 0.02  # a gain below this is less than the model can tell
_NEAR_LIMIT_FRACTION = 0.10  # of the usable memory left, beyond the headroom
_COMMUNICATION = ("tensor_parallel_s", "data_parallel_s", "pipeline_s")


def limit_blocks(report: ReportInput) -> tuple[Block, ...]:
    """The binding constraint in words, then what other hardware would bring."""
    return (
        *(Paragraph(text=sentence) for sentence in explain_limits(report)),
        *outlook_blocks(report.outlook),
    )


def explain_limits(report: ReportInput) -> tuple[str, ...]:
    """What the step's time goes to, whether memory binds, and which change of the hardware would bring the most."""
    return (_time_sentence(report), _memory_sentence(report), *_gain_sentences(report.outlook))


def _time_sentence(report: ReportInput) -> str:
    estimate = report.plan.estimate
    time, whole = estimate.time, estimate.step_time_s
    parts = {label: getattr(time, field) for field, label in TIME_LABELS if field not in _COMMUNICATION}
    parts["communication"] = sum(getattr(time, field) for field in _COMMUNICATION)
    ranked = sorted(parts.items(), key=lambda part: -part[1])
    largest, amount = ranked[0]
    rest = [f"{label} {format_fraction(spent / whole)}" for label, spent in ranked[1:3] if spent > 0.01 * whole]
    words = f"The step is bound by {largest}: {format_fraction(amount / whole)} of it by the model"
    return words + (f", then {' and '.join(rest)}" if rest else "") + f" ({estimate.kind})."


def _memory_sentence(report: ReportInput) -> str:
    promise, miss = report.plan.promise, report.near_miss
    limit = promise.usable_bytes * (1 - report.job.memory_headroom_fraction)
    left = limit - promise.device_used_bytes
    # Over several kinds of nodes only what fits is priced, so nothing is known of what memory keeps out.
    clause = "" if report.job.cluster.groups else ", and nothing faster is kept out by it"
    if miss is not None and miss.is_faster:
        return (
            f"Memory binds too: {short_candidate(miss.row.candidate)} would be faster by the model "
            f"({miss.row.estimate.kind}) but may need {format_bytes(miss.over_bytes)} more than there is."
        )
    if left <= _NEAR_LIMIT_FRACTION * promise.usable_bytes:
        return (
            f"Memory is nearly full ({format_bytes(max(left, 0))} left beside what is kept free, "
            f"{promise.memory_kind}){clause}."
        )
    return (
        f"Memory does not bind: {format_bytes(left)} are left beside what is kept free ({promise.memory_kind}){clause}."
    )


def _gain_sentences(outlook: Outlook | None) -> tuple[str, ...]:
    changes = outlook.what_if if outlook is not None else ()
    possible = [change for change in changes if change.candidate is not None]
    worth = sorted(
        (one for one in possible if one.gain_fraction >= _WORTH_FRACTION), key=lambda one: -one.gain_fraction
    )
    if not possible:
        return ()
    if not worth:
        return ("None of the changes below would bring 2% or more (computed).",)
    said = ", ".join(_gain(change) for change in worth)
    return (f"What would help, most first: {said} (computed).",)


def _gain(change: WhatIf) -> str:
    return f"{change.change} {change.gain_fraction:+.0%}"
