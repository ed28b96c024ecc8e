"""What a run that runs out of memory goes on with: the steps down from the choice, in order."""

from __future__ import annotations

from planner.report.document import Block, Column, Paragraph, Table
from planner.report.input import ReportInput
from planner.report.units import format_bytes, format_rate_short, format_seconds
from planner.report.wording import short_candidate


def fallback_blocks(report: ReportInput) -> tuple[Block, ...]:
    """Each step with what it changes, costs and needs; nothing where the plan has none."""
    fallbacks = report.plan.fallbacks
    if not fallbacks:
        return ()
    columns = (
        Column(heading="candidate"),
        Column(heading="change"),
        Column(heading="memory", numeric=True),
        Column(heading="step", numeric=True),
        Column(heading="tokens/s", numeric=True),
        Column(heading="origin"),
        Column(heading="checked"),
    )
    rows = tuple(
        (
            short_candidate(one.candidate),
            one.change,
            format_bytes(one.estimate.memory.device_used_bytes),
            format_seconds(one.estimate.step_time_s),
            format_rate_short(one.estimate.tokens_per_s),
            str(one.estimate.kind),
            ", ".join(step.name for step in one.validation if step.passed),
        )
        for one in fallbacks
    )
    text = "The same global batch in less memory, step by step; each has its files in a folder under fallbacks/."
    return Paragraph(text=text), Table(columns=columns, rows=rows)
