"""What `planner replan` prints: what changed, the old plan's worth, the new layout beside the old, the checkpoint."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from planner.app.replan_request import ReplanResult
from planner.cli.outline import outline_lines
from planner.cli.summary import plan_document, plan_summary
from planner.cli.tables import new_table
from planner.report.replanned import explain_checkpoint
from planner.report.units import format_bytes, format_rate_short, format_seconds, one_line
from planner.report.wording import describe_candidate, describe_differences
from planner.spec import Plan, Promise
from planner.spec.codec import to_plain
from planner.spec.replan import CheckpointRoute


def replan_summary(result: ReplanResult) -> tuple[RenderableType, ...]:
    """For people."""
    old = result.old_plan
    if not result.changes:
        return (
            Text("nothing that bears on the plan has changed: it stands as it is", style="bold"),
            Text(one_line(f"{old.key}: {result.old_here.sentence}")),
            Text(str(result.old_dir)),
        )
    lines = _grid()
    for place, change in enumerate(result.changes):
        lines.add_row("" if place else "changed", Text(one_line(change.sentence)))
    lines.add_row("old plan", Text(one_line(f"{old.key}: {result.old_here.sentence}.")))
    if result.num_kept or result.num_prior:
        lines.add_row(
            "trials",
            Text(one_line(f"{result.num_kept} of the old plan hold; {result.num_prior} more: they {result.carried}")),
        )
    parts: tuple[RenderableType, ...] = (Text(), lines)
    if result.planned is None or result.planned.plan is None:
        outline = outline_lines(result.outline) if result.outline is not None else ()
        return (*parts, *(Text(line) for line in outline))
    new = result.planned.plan
    closing = _grid()
    closing.add_row("change", Text(one_line(_gain(result, new)), style="bold"))
    if result.checkpoint is not None:
        closing.add_row("checkpoint", Text(one_line(_checkpoint(result.checkpoint))))
    return (*parts, Text(), _beside(old, new), Text(), closing, *plan_summary(result.planned))


def _grid() -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    return table


def _beside(old: Plan, new: Plan) -> Table:
    """The new layout beside the old one, each with its own promise."""
    table = new_table("", "layout", "GPUs", "step", "tokens/s", "memory", "of usable")
    table.columns[1].justify = "left"
    for name, plan in (("old", old), ("new", new)):
        promise = plan.promise
        table.add_row(
            Text(name),
            Text(one_line(describe_candidate(plan.candidate))),
            Text(str(plan.candidate.layout.world_size)),
            Text(format_seconds(promise.step_time_s)),
            Text(f"{format_rate_short(promise.tokens_per_s)} {promise.step_time_kind}"),
            Text(format_bytes(promise.device_used_bytes)),
            Text(format_bytes(promise.usable_bytes)),
        )
    return table


def _gain(result: ReplanResult, new: Plan) -> str:
    """What the change of hardware costs or brings, and what planning again brings over keeping the layout."""
    before, after = result.old_plan.promise, new.promise
    words = f"{_more_or_less(before, after.tokens_per_s)} than before the change"
    if result.old_here.runs and result.old_plan.key != new.key:
        here = result.old_here.tokens_per_s
        share = after.tokens_per_s / here - 1.0
        words += f"; {abs(share):.0%} {'more' if share >= 0 else 'less'} than the old layout would give here"
    if result.old_plan.key == new.key:
        return f"{words}; the layout stays the same"
    return f"{words}; what differs: {describe_differences(new.candidate, result.old_plan.candidate)}"


def _more_or_less(before: Promise, after: float) -> str:
    share = after / before.tokens_per_s - 1.0
    return f"{abs(share):.0%} {'more' if share >= 0 else 'fewer'} tokens/s"


def _checkpoint(route: CheckpointRoute) -> str:
    words = explain_checkpoint(route)
    return f"{words}. Run: bash {route.script}" if route.script else words


def replan_document(result: ReplanResult) -> dict[str, Any]:
    """The document that `replan --json` prints."""
    new = result.planned.plan if result.planned is not None else None
    document: dict[str, Any] = {
        "changed": bool(result.changes),
        "old_plan_dir": str(result.old_dir),
        "plan_dir": str(result.planned.plan_dir if result.planned is not None else result.old_dir),
        "old_key": result.old_plan.key,
        "key": new.key if new is not None else result.old_plan.key,
        "changes": [{**to_plain(change), "sentence": change.sentence} for change in result.changes],
        "old_plan_here": {**to_plain(result.old_here), "runs": result.old_here.runs},
        "num_trials_kept": result.num_kept,
        "num_trials_prior": result.num_prior,
        "checkpoint": to_plain(result.checkpoint) if result.checkpoint is not None else None,
        "plan": to_plain(new if new is not None else result.old_plan),
    }
    if result.outline is not None and new is None:
        document["outline"] = to_plain(result.outline)
    if new is not None and result.planned is not None:
        before = result.old_plan.promise.tokens_per_s
        document["gain_fraction"] = new.promise.tokens_per_s / before - 1.0
        document["planned"] = plan_document(result.planned)
    return document
