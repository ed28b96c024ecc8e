"""The closing summary of `plan`: what was chosen, why, how far from the limit, and what to run next."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from planner.app.requests import PlanResult
from planner.cli.outline import outline_lines, outline_tables
from planner.report import ReportInput, explain_cautions, explain_choice, explain_forecast, explain_pinned
from planner.report.next_steps import next_commands
from planner.report.replanned import survival_lines
from planner.report.units import one_line
from planner.spec.codec import to_plain


def plan_summary(result: PlanResult) -> tuple[RenderableType, ...]:
    """What to print for people when planning ended."""
    if result.report is None:
        return (*(Text(line) for line in outline_lines(result.outline)), *_spaced(outline_tables(result.outline)))
    chosen, lead, memory = explain_choice(result.report)
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    table.add_row("chosen", Text(one_line(chosen), style="bold"))
    table.add_row("why", Text(one_line(lead)))
    table.add_row("memory", Text(one_line(memory)))
    for name, words in result.report.plan.hardware:
        if name == "group":
            table.add_row("nodes", Text(one_line(words)))
    for place, sentence in enumerate(explain_cautions(result.report)):
        table.add_row("" if place else "the run", Text(one_line(sentence)))
    for place, sentence in enumerate(explain_forecast(result.report.forecast)):
        table.add_row("" if place else "in all", Text(one_line(sentence)))
    for place, sentence in enumerate(explain_pinned(result.report)):
        table.add_row("" if place else "yours", Text(one_line(sentence)))
    for name, passed, detail in _validation_rows(result.report):
        table.add_row(name, Text(detail, style="" if passed else "red"))
    for place, sentence in enumerate(survival_lines(result.report.plan.survive)):
        table.add_row("" if place else "survive", Text(one_line(sentence)))
    table.add_row("plan", Text(str(result.plan_dir)))
    return (Text(), table, Text(), *_next_lines(result.report))


def plan_document(result: PlanResult) -> dict[str, Any]:
    """The document that `plan --json` prints."""
    document: dict[str, Any] = {
        "plan_dir": str(result.plan_dir),
        "dry_run": result.report is None,
        "num_candidates": result.outline.num_candidates,
        "outline": to_plain(result.outline),
    }
    if result.plan is not None and result.report is not None:
        document["key"] = result.plan.key
        document["plan"] = to_plain(result.plan)
        document["explanation"] = list(explain_choice(result.report))
        document["cautions"] = list(explain_cautions(result.report))
        if result.report.pinned is not None:
            document["pinned"] = {
                **to_plain(result.report.pinned),
                "explanation": list(explain_pinned(result.report)),
            }
        document["forecast"] = _forecast_document(result.report)
        document["outlook"] = to_plain(result.report.outlook)
        document["files"] = [str(path) for path in result.files]
        document["next"] = [step.command for step in next_commands(result.report)]
    return document


def _forecast_document(report: ReportInput) -> dict[str, Any] | None:
    forecast = report.forecast
    if forecast is None:
        return None
    derived = {"lost_fraction": forecast.lost_fraction, "gpu_hours": forecast.gpu_hours}
    return {**to_plain(forecast), **derived, "is_in_time": forecast.is_in_time}


def _validation_rows(report: ReportInput) -> tuple[tuple[str, bool, str], ...]:
    """One row: all steps passed, or those that did not."""
    steps = report.plan.validation
    failed = [step for step in steps if not step.passed]
    if failed:
        return tuple(("failed", False, one_line(f"{step.name}: {step.detail}")) for step in failed)
    if not steps:
        return (("checked", True, "not validated (--no-validate)"),)
    return (("checked", True, ", ".join(one_line(step.name) for step in steps) + ": passed"),)


def _next_lines(report: ReportInput) -> tuple[Text, ...]:
    steps = next_commands(report)
    width = max(len(step.command) for step in steps)
    return (
        Text("next", style="dim"),
        *(Text.assemble("  ", (step.command.ljust(width), "bold cyan"), ("  " + step.does, "dim")) for step in steps),
    )


def _spaced(tables: tuple[Table, ...]) -> tuple[RenderableType, ...]:
    return tuple(part for table in tables for part in (Text(), table))
