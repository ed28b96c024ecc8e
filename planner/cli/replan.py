"""`planner replan`: its flags. What it prints is `replan_view`'s."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.app.replan_request import ReplanRequest
from planner.cli.folder_verbs import PlanDir
from planner.cli.replan_view import replan_document, replan_summary
from planner.cli.search_flags import (
    NoValidateFlag,
    SeedFlag,
    TimeBudgetFlag,
    TrialsFlag,
    interrupted_search,
    refuse_idle_limits,
    time_budget_s,
)
from planner.cli.session import JsonFlag, QuietFlag, run_verb


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
    trials: TrialsFlag = None,
    max_trials: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Run at most this many trials beside those that still hold.")
    ] = None,
    time_budget: TimeBudgetFlag = None,
    survive: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Also plan for losing 1 to N nodes; default as many as the old plan."),
    ] = None,
    seed: SeedFlag = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what changed and what the old plan is worth now; write nothing.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the trials already in the new folder.")] = False,
    no_validate: NoValidateFlag = False,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Plan again when hardware or software changed, at the same global batch, reusing what still holds.

    Says what changed, whether the old plan still runs and how fast, and how its checkpoints come to the new one. The
    old folder is only read. Nothing changed: the old plan stands, and nothing is run or written.
    """
    with run_verb(
        context, as_json=as_json, quiet=quiet, kept=interrupted_search(context, folder="new folder")
    ) as session:
        refuse_idle_limits(trials, max_trials=max_trials, time_budget=time_budget)
        request = ReplanRequest(
            plan_dir=plan_dir,
            cluster=cluster,
            out_dir=out,
            trial_mode=trials,
            max_trials=max_trials,
            time_budget_s=time_budget_s(time_budget),
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
