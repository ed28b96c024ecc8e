"""`planner replan`: its flags. What it prints is `replan_view`'s."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from planner.app.replan_request import ReplanRequest
from planner.cli.flags import parse_duration_s, refuse_idle_limits
from planner.cli.folder_verbs import PlanDir
from planner.cli.replan_view import replan_document, replan_summary
from planner.cli.session import JsonFlag, QuietFlag, invocation_of, run_verb
from planner.errors import Interrupted
from planner.spec.kinds import TrialMode


def replan(
    context: typer.Context,
    plan_dir: PlanDir,
    cluster: Annotated[
        str,
        typer.Option(
            metavar="NEW.yaml|auto|HOSTFILE|NAME",
            help="What it shall run on now: a cluster file, this machine, a hostfile, or a name of "
            "`planner list clusters`; left out: the plan's own cluster, under the software that is installed now.",
        ),
    ] = "",
    out: Annotated[
        Path | None, typer.Option(help="The new plan folder; default beside the old one, named after the cluster.")
    ] = None,
    trials: Annotated[
        TrialMode | None,
        typer.Option(
            help="Real runs, one process standing in for a rank, none at all, or (auto) what this machine can."
        ),
    ] = None,
    max_trials: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Run at most this many trials beside those that still hold.")
    ] = None,
    time_budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="Stop starting trials after this long: 90s, 10m, 1h.")
    ] = None,
    survive: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Also plan for losing 1 to N nodes; default as many as the old plan."),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, metavar="N", help="Seed of the search.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what changed and what the old plan is worth now; write nothing.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the trials already in the new folder.")] = False,
    no_validate: Annotated[
        bool, typer.Option("--no-validate", help="Do not have DeepSpeed itself check the plan.")
    ] = False,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Plan again when hardware or software changed, at the same global batch, reusing what still holds.

    Says what changed, whether the old plan still runs and how fast, and how its checkpoints come to the new one. The
    old folder is only read. Nothing changed: the old plan stands, and nothing is run or written.
    """
    with run_verb(context, as_json=as_json, quiet=quiet, kept=_kept(context)) as session:
        refuse_idle_limits(trials, max_trials=max_trials, time_budget=time_budget)
        request = ReplanRequest(
            plan_dir=plan_dir,
            cluster=cluster,
            out_dir=out,
            trial_mode=trials,
            max_trials=max_trials,
            time_budget_s=parse_duration_s(time_budget, flag="--time-budget") if time_budget is not None else None,
            seed=seed,
            resume=resume,
            validate=not no_validate,
            dry_run=dry_run,
            survive=survive,
        )
        with session.progress() as progress:
            result = session.use_cases.replan(request, console=progress)
        session.print(*replan_summary(result))
        session.print_essential(str(result.planned.plan_dir if result.planned is not None else result.old_dir))
        session.print_json(replan_document(result))


def _kept(context: typer.Context) -> Interrupted:
    words = invocation_of(context).words
    return Interrupted(
        "interrupted",
        why="it was stopped from the keyboard; every trial that had ended is kept in the new folder",
        fix=f"go on with: {shlex.join(words if '--resume' in words else (*words, '--resume'))}",
    )
