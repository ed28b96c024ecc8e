"""The plan told to people: text and one self-contained HTML file, pure functions of records.

Reading the records from a plan folder is `rundir`'s, writing the files is `app`'s, terminals are `cli`'s.
"""

from __future__ import annotations

from planner.report.explain import explain_cautions, explain_choice
from planner.report.forecast import explain_forecast
from planner.report.html import render_html
from planner.report.input import (
    CandidateMap,
    CandidateRow,
    ErrorCase,
    ExplainedLine,
    FileText,
    MappedCandidate,
    NearMiss,
    PinnedLayout,
    RejectionRow,
    ReportInput,
    Sensitivity,
    TrialLog,
)
from planner.report.markdown import render_markdown
from planner.report.pinned import explain_pinned
from planner.report.sections import build_document
from planner.report.side_by_side import PlannedRow, comparison_blocks, failed_row, planned_row, render_comparison

__all__ = [
    "CandidateMap",
    "CandidateRow",
    "ErrorCase",
    "ExplainedLine",
    "FileText",
    "MappedCandidate",
    "NearMiss",
    "PinnedLayout",
    "PlannedRow",
    "RejectionRow",
    "ReportInput",
    "Sensitivity",
    "TrialLog",
    "build_document",
    "comparison_blocks",
    "explain_cautions",
    "explain_choice",
    "explain_forecast",
    "explain_pinned",
    "failed_row",
    "planned_row",
    "render_comparison",
    "render_report_html",
    "render_report_markdown",
]


def render_report_markdown(report: ReportInput) -> str:
    """The text of `report.md`."""
    return render_markdown(build_document(report))


def render_report_html(report: ReportInput) -> str:
    """The text of `report.html`."""
    return render_html(build_document(report))
