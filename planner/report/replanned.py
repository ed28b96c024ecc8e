"""The plan before, when a plan was made again, and the plans for losing nodes: as sections and sentences."""

from __future__ import annotations

import shlex

from planner.report.document import Block, Column, Command, Paragraph, Table
from planner.report.units import format_rate_short, format_tokens_per_s, plural
from planner.spec.kinds import Launcher
from planner.spec.plan import Plan
from planner.spec.replan import CheckpointRoute, CheckpointWay, ReplanSummary, SurvivalPlan

_WAYS = {
    CheckpointWay.AS_IS: "loads as it is",
    CheckpointWay.CONVERT: "has to be converted once",
    CheckpointWay.UNIVERSAL: "needs DeepSpeed's universal checkpoint",
    CheckpointWay.CANNOT: "cannot be loaded",
}


def explain_checkpoint(route: CheckpointRoute) -> str:
    """How the old plan's checkpoints come along, in a sentence."""
    return f"{_WAYS[route.way]}: {route.why}"


def origin_blocks(summary: ReplanSummary | None) -> tuple[Block, ...]:
    """The report's section about the plan before; nothing for a plan that came first."""
    if summary is None:
        return ()
    changes = Table(
        columns=(Column(heading="what"), Column(heading="now"), Column(heading="was")),
        rows=tuple((change.what, change.after, change.before) for change in summary.changes),
    )
    trials = (
        f"{plural(summary.num_kept, 'trial')} of it hold here. Of {summary.num_prior} more: they {summary.carried}."
        if summary.num_kept or summary.num_prior
        else "It was made without trials."
    )
    texts = (
        f"Planned again from {summary.from_dir}, which had chosen {summary.old_key} "
        f"({format_tokens_per_s(summary.old_tokens_per_s)}, {summary.old_kind}). Here {summary.old_here.sentence}.",
        trials,
        f"A checkpoint of it {explain_checkpoint(summary.checkpoint)}.",
    )
    blocks: tuple[Block, ...] = (changes, *(Paragraph(text=text) for text in texts))
    if summary.checkpoint.script:
        convert = Command(
            command=f"bash {shlex.quote(summary.checkpoint.script)}", does="converts the newest checkpoint"
        )
        return (*blocks, convert)
    return blocks


def survival_lines(plans: tuple[SurvivalPlan, ...]) -> tuple[str, ...]:
    """One line for each number of nodes that may be left."""
    lines = []
    for one in plans:
        if one.folder:
            kind = f", {one.kind}" if one.kind is not None else ""
            lines.append(f"{plural(one.nodes, 'node')}: {one.key}, {format_tokens_per_s(one.tokens_per_s)}{kind}")
        else:
            why = one.note.split(": ", 1)[0]
            lines.append(f"{plural(one.nodes, 'node')}: no plan{_nearest(one)} ({why})")
    return tuple(lines)


def _nearest(one: SurvivalPlan) -> str:
    return f"; {plural(one.nearest_nodes, 'node')} can" if one.nearest_nodes else ""


def survival_blocks(plan: Plan, plan_dir: str) -> tuple[Block, ...]:
    """The report's section about losing nodes; nothing where it was not planned for."""
    if not plan.survive:
        return ()
    rows = tuple(
        (
            str(one.nodes),
            one.key or f"none{_nearest(one)}",
            format_rate_short(one.tokens_per_s) if one.folder else "",
            str(one.kind or ""),
            _WAYS[one.checkpoint] if one.checkpoint is not None else one.note.split(": ", 1)[0],
        )
        for one in plan.survive
    )
    table = Table(
        columns=(
            Column(heading="nodes left", numeric=True),
            Column(heading="layout"),
            Column(heading="tokens/s", numeric=True),
            Column(heading="origin"),
            Column(heading="a checkpoint of this plan"),
        ),
        rows=rows,
    )
    if not any(one.folder for one in plan.survive):
        return (table,)
    by_hand = " on each of them" if plan.launcher is Launcher.TORCHRUN else ""
    start = Command(
        command=f"bash {shlex.quote(f'{plan_dir}/launch/launch-surviving.sh')} NODES_ALIVE --resume",
        does=f"goes on with what is left{by_hand}",
    )
    return (table, start)
