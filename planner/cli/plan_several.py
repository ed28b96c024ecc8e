"""Plans in one call: where each goes, one after the other whatever becomes of the others, and all side by side."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import typer
from rich.console import RenderableType
from rich.text import Text

from planner.app.requests import PlanRequest, PlanResult
from planner.cli.flags import plan_dirs
from planner.cli.problems import error_document, print_error
from planner.cli.session import Session
from planner.cli.summary import plan_document, plan_summary
from planner.cli.tables import add_cells, new_table
from planner.errors import Interrupted, PlannerError
from planner.report import PlannedRow, comparison_blocks, failed_row, planned_row
from planner.report.document import Table
from planner.report.units import format_count, format_duration_limit, format_rate_short, one_line
from planner.spec._record import record
from planner.spec.codec import to_plain

_SAID_ABOVE = "candidate"  # each plan's own summary has it, and a terminal is narrow


@record
class PlanPlace:
    """A job, one of its candidate clusters ("": the one it has), and the plan's folder."""

    job_path: Path
    out_dir: Path
    cluster: str = ""


def plan_places(
    session: Session, paths: tuple[Path, ...], *, out: Path | None, overrides: tuple[str, ...]
) -> tuple[PlanPlace, ...]:
    """One place for each job; where it has several candidate clusters, one for each, in the job's folder."""
    places: list[PlanPlace] = []
    for path, folder in zip(paths, plan_dirs(paths, out)):
        labels = session.use_cases.candidate_clusters(path, overrides)
        places += [PlanPlace(job_path=path, out_dir=folder / label, cluster=label) for label in labels]
        if not labels:
            places.append(PlanPlace(job_path=path, out_dir=folder))
    return tuple(places)


def plan_one(session: Session, request: PlanRequest, *, debug: bool) -> tuple[dict[str, Any], PlanResult]:
    """Plan one job and print its summary; the document of `--json`, and what it was made from."""
    try:
        with session.progress() as progress:
            result = session.use_cases.plan_job(request, console=progress)
    except BaseException as problem:
        if debug:
            _write_debug_file(session, request, problem=problem)
        raise
    document = plan_document(result)
    if debug:
        document["debug_file"] = _write_debug_file(session, request, problem=None)
    session.print(*plan_summary(result))
    session.print_essential(str(result.plan_dir))
    return document, result


def _write_debug_file(session: Session, request: PlanRequest, *, problem: BaseException | None) -> str:
    """Write it and say where; that it cannot be written changes nothing about how the planning ended."""
    try:
        path = session.use_cases.write_debug_file(request, words=session.words, problem=problem)
    except PlannerError as unwritten:
        print(f"the file for a bug report was not written: {unwritten.error}: {unwritten.why}", file=sys.stderr)
        return ""
    print(f"for a bug report: {path} (look it over before you send it)", file=sys.stderr)
    return str(path)


def plan_several(session: Session, requests: tuple[PlanRequest, ...], *, debug: bool) -> None:
    """Plan each job, whatever becomes of the others, and compare; the first that fails gives the exit code."""
    documents: list[dict[str, Any]] = []
    rows: list[PlannedRow] = []
    results: list[tuple[str, PlanResult]] = []
    failures: list[PlannerError] = []
    for request, name in zip(requests, _names(requests)):
        try:
            session.print(Text(f"\n{name}", style="bold"))
            document, result = plan_one(session, request, debug=debug)
            results.append((name, result))
            if result.report is not None:
                rows.append(planned_row(name, result.report))
        except Interrupted:
            raise
        except PlannerError as error:
            failures.append(error)
            rows.append(failed_row(name, str(request.out_dir), error))
            document = {**error_document(error), "plan_dir": str(request.out_dir)}
            if not session.as_json:
                session.print(f"\n{request.job_path}:")
                print_error(error, as_json=False)
        cluster = {"cluster": request.cluster} if request.cluster else {}
        documents.append({"job": str(request.job_path), **cluster, **document})
    _compare(session, requests, documents=documents, rows=tuple(rows), results=results)
    if failures:
        raise typer.Exit(failures[0].exit_code)


def _compare(
    session: Session,
    requests: tuple[PlanRequest, ...],
    *,
    documents: list[dict[str, Any]],
    rows: tuple[PlannedRow, ...],
    results: list[tuple[str, PlanResult]],
) -> None:
    """The table at the end; beside it `comparison.md`, where anything was planned."""
    document: dict[str, Any] = {"plans": documents, "comparison": [to_plain(row) for row in rows]}
    if requests[0].dry_run:
        document["comparison"] = [_would_try(name, result) for name, result in results] + document["comparison"]
        session.print(*_outlook(results, failed=tuple(row for row in rows if row.error)))
    else:
        path = session.use_cases.write_comparison(_common_folder(requests), rows)
        document["comparison_file"] = str(path)
        session.print(Text(), *_shown(rows), Text(f"written to {path}", style="dim"))
        session.print_essential(str(path))
    session.print_json(document)


def _names(requests: tuple[PlanRequest, ...]) -> tuple[str, ...]:
    """Of each plan in the table: the job file's name, and the cluster's label where the job has several."""
    several_jobs = len({request.job_path for request in requests}) > 1
    names = []
    for request in requests:
        job = request.job_path.stem or str(request.job_path)
        label = f"{job}/{request.cluster}" if several_jobs else request.cluster
        names.append(label if request.cluster else job)
    return tuple(names)


def _common_folder(requests: tuple[PlanRequest, ...]) -> Path:
    """The folder that all plan folders are in."""
    return Path(os.path.commonpath([request.out_dir.parent for request in requests]))


def _shown(rows: tuple[PlannedRow, ...]) -> tuple[RenderableType, ...]:
    shown: list[RenderableType] = []
    for block in comparison_blocks(rows):
        if isinstance(block, Table):
            kept = [place for place, column in enumerate(block.columns) if column.heading != _SAID_ABOVE]
            table = new_table(*(block.columns[place].heading for place in kept))
            for column, place in zip(table.columns, kept):
                column.justify = "right" if block.columns[place].numeric else "left"
            for cells in block.rows:
                add_cells(table, *(cells[place] for place in kept))
            shown.append(table)
        else:
            shown.append(Text(one_line(getattr(block, "text", ""))))
    return tuple(shown)


def _would_try(name: str, result: PlanResult) -> dict[str, Any]:
    """A dry run as a row of `comparison`."""
    outline = result.outline
    return {
        "name": name,
        "plan_dir": str(result.plan_dir),
        "device_name": outline.device_name,
        "world_size": outline.world_size,
        "num_candidates": outline.num_candidates,
        "max_trials": outline.max_trials,
        "longest_s": outline.longest_s,
        "tokens_per_s_by_model": max((one.tokens_per_s for one in outline.first_candidates), default=0.0),
    }


def _outlook(results: list[tuple[str, PlanResult]], *, failed: tuple[PlannedRow, ...]) -> tuple[RenderableType, ...]:
    """What each dry run would try, side by side."""
    table = new_table("plan", "device", "GPUs", "legal candidates", "trials", "at most", "tokens/s by the model")
    for name, result in results:
        outline = result.outline
        best = max((one.tokens_per_s for one in outline.first_candidates), default=0.0)
        add_cells(
            table,
            name,
            outline.device_name,
            format_count(outline.world_size),
            format_count(outline.num_candidates),
            format_count(outline.max_trials),
            format_duration_limit(outline.longest_s),
            format_rate_short(best) if best else "–",
        )
    for row in failed:
        add_cells(table, row.name, *["–"] * (len(table.columns) - 1))
    words = tuple(Text(one_line(f"{row.name}: {row.error} (exit code {row.exit_code}).")) for row in failed)
    return (Text(), table, *words)
