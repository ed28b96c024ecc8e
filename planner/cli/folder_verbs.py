"""The verbs about a plan folder that exists: `verify`, `emit`, `report`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from planner.app.requests import VerifyResult, VerifyRow
from planner.cli.document_view import document_view
from planner.cli.problems import error_document
from planner.cli.session import JsonFlag, QuietFlag, run_verb
from planner.cli.tables import new_table
from planner.errors import PromiseBroken
from planner.report import ReportInput, build_document, render_report_html, render_report_markdown
from planner.report.units import format_fraction, format_named, heading_of, plural
from planner.spec.codec import to_plain
from planner.spec.kinds import Launcher

PlanDir = Annotated[Path, typer.Argument(metavar="PLAN_DIR", help="A folder that `planner plan` wrote.")]


class ReportFormat(StrEnum):
    TEXT = "text"
    HTML = "html"


def verify(
    context: typer.Context,
    plan_dir: PlanDir,
    steps: Annotated[int, typer.Option(min=1, metavar="N", help="Optimizer steps to run.")] = 5,
    profile: Annotated[
        bool, typer.Option("--profile", help="Write memory snapshot, trace and memory curves into the plan folder.")
    ] = False,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Run the emitted files for a few steps on this machine and compare with what the plan promised."""
    with run_verb(context, as_json=as_json, quiet=quiet) as session:
        with session.progress() as progress:
            result = session.use_cases.verify_plan(plan_dir, steps=steps, console=progress, profile=profile)
        session.print(Text(f"ran: {result.command}", style="dim"), _verify_table(result))
        if result.note:
            session.print(Text(result.note))
        document = to_plain(result) | {"plan_dir": str(result.plan_dir), "log_path": str(result.log_path)}
        if result.passed:
            session.print(_verdict(result))
            session.print_essential("passed")
            session.print_json(document)
            return
        broken = _broken(result)
        if not session.as_json:
            raise broken
        session.print_json(document | error_document(broken))
        raise typer.Exit(broken.exit_code)


def emit(
    context: typer.Context,
    plan_dir: PlanDir,
    launcher: Annotated[Launcher | None, typer.Option(help="Render for this launcher; default the plan's own.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write a plan folder of its own here; default into the plan folder.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A value of the job's launch, slurm or kubernetes section."),
    ] = None,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Render the launch files again, for another launcher or another place."""
    with run_verb(context, as_json=as_json, quiet=quiet) as session:
        paths = session.use_cases.emit_plan(plan_dir, launcher=launcher, out_dir=out, overrides=tuple(overrides or ()))
        session.print_json({"files": [str(path) for path in paths]})
        session.print(*(Text(f"wrote {path}") for path in paths))
        session.print_essential("\n".join(map(str, paths)))


def report(
    context: typer.Context,
    plan_dir: PlanDir,
    format: Annotated[
        ReportFormat, typer.Option(help="Text, or one HTML file that opens anywhere.")
    ] = ReportFormat.TEXT,
    out: Annotated[Path | None, typer.Option(help="Write it to this file; default standard output.")] = None,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """The report of a plan again, as text or HTML."""
    with run_verb(context, as_json=as_json, quiet=quiet) as session:
        content = session.use_cases.load_report(plan_dir)
        if out is not None:
            from planner.rundir import write_whole  # loads what `--help` need not wait for

            write_whole(out, _rendered(content, format).encode("utf-8"))
            session.print(Text(f"wrote {out}"))
            session.print_essential(str(out))
        elif session.is_terminal and format is ReportFormat.TEXT:
            session.print(*document_view(build_document(content)))
        elif not session.as_json:
            session.write_line(_rendered(content, format).rstrip("\n"))
        session.print_json(to_plain(content))


def _rendered(content: ReportInput, format: ReportFormat) -> str:
    return render_report_html(content) if format is ReportFormat.HTML else render_report_markdown(content)


def _verify_table(result: VerifyResult) -> Table:
    table = new_table("figure", "promised", "seen", "may differ", "result")
    for row in result.rows:
        table.add_row(
            heading_of(row.name),
            format_named(row.name, row.promised),
            format_named(row.name, row.seen),
            format_fraction(row.tolerance_fraction),
            _result_of(row),
        )
    return table


def _result_of(row: VerifyRow) -> Text:
    if row.is_broken:
        return Text("broken", style="bold red")
    if row.not_comparable:
        return Text(f"not comparable: {row.not_comparable}", style="yellow")
    return Text("as promised", style="green")


def _verdict(result: VerifyResult) -> Text:
    """That nothing is broken, and what this run could not say."""
    left = [heading_of(row.name) for row in result.rows if row.not_comparable]
    if not left:
        return Text("the plan does what it promised", style="bold green")
    return Text(
        f"the plan does what it promised, but for {' and '.join(left)}, which could not be compared here: verify again "
        "when the machine is idle",
        style="bold yellow",
    )


def _broken(result: VerifyResult) -> PromiseBroken:
    broken = [row for row in result.rows if row.is_broken]
    figures = ", ".join(
        f"{heading_of(row.name)} {format_named(row.name, row.seen)} instead of {format_named(row.name, row.promised)}"
        for row in broken
    )
    return PromiseBroken(
        f"the plan in {result.plan_dir} broke its promise: {plural(len(broken), 'figure')} out of tolerance",
        why=figures or "the run did not end as it should",
        fix=f"read {result.log_path}; plan again on this machine when it is not the one that was planned for",
    )
