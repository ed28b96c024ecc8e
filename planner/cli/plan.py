"""`planner plan`: its flags (a Typer verb's parameters are its flags, however many) and what it prints."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from planner.app.requests import FROM_ENVIRONMENT, PlanRequest
from planner.cli.own_script import script_overrides
from planner.cli.plan_several import plan_one, plan_places, plan_several
from planner.cli.search_flags import (
    NoValidateFlag,
    SeedFlag,
    TimeBudgetFlag,
    TrialsFlag,
    interrupted_search,
    refuse_idle_limits,
    time_budget_s,
)
from planner.cli.session import JsonFlag, QuietFlag, invocation_of, run_verb
from planner.errors import InputError
from planner.spec.kinds import TrialMode


def plan(
    context: typer.Context,
    jobs: Annotated[
        list[Path],
        typer.Argument(metavar="JOB.yaml", help="Job files; each (and each of its clusters) gets a plan folder."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The plan folder, or with several jobs the folder they go into; default plans/JOB."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a value of the job file; may be repeated."),
    ] = None,
    trials: TrialsFlag = None,
    max_trials: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Run at most this many trials; where checkpoints or a profile are asked for, one more of the winner.",
        ),
    ] = None,
    time_budget: TimeBudgetFlag = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be tried and at most how long, and write nothing.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the trials already in the plan folder.")] = False,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="An Optuna storage (env:NAME: from that variable); default SQLite in the plan folder."
        ),
    ] = None,
    pin: Annotated[
        str | None,
        typer.Option(
            metavar="AXIS=VALUE,…",
            help="Hold a layout of your own against the choice: tensor_parallel_size=8,zero_stage=1.",
        ),
    ] = None,
    join: Annotated[
        str | None, typer.Option(metavar="URL", help="Work as one more planner on the study that runs at this storage.")
    ] = None,
    survive: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Also write the plans for losing 1 to N nodes, for a launcher to pick."),
    ] = 0,
    seed: SeedFlag = None,
    no_site_defaults: Annotated[
        bool, typer.Option("--no-site-defaults", help="Do not lay the site's defaults.yaml below the job.")
    ] = False,
    profile: Annotated[
        bool,
        typer.Option(
            "--profile", help="Run the winner once more and write its memory snapshot, trace and memory curves."
        ),
    ] = False,
    no_validate: NoValidateFlag = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Also write one file to send with a bug report, without secrets.")
    ] = False,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Search with real trials and write a plan folder: DeepSpeed config, launch script, report.

    `plan JOB.yaml -- train.py --deepspeed {deepspeed_config}` plans for a training script of your own.
    `--dry-run` says what would be tried. Ctrl-C keeps what had ended: `--resume` goes on from there.
    """
    paths = tuple(jobs)
    with run_verb(
        context, as_json=as_json, quiet=quiet, kept=interrupted_search(context, folder="plan folder")
    ) as session:
        budget_s = time_budget_s(time_budget)
        _refuse_idle_pin(pin, dry_run=dry_run)
        refuse_idle_limits(trials, max_trials=max_trials, time_budget=time_budget)
        _refuse_idle_survive(survive, dry_run=dry_run)
        script_settings = script_overrides(invocation_of(context).script, folder=Path.cwd())
        study_url = _study_url(storage, join, trials=trials)
        requests = tuple(
            PlanRequest(
                job_path=place.job_path,
                out_dir=place.out_dir,
                cluster=place.cluster,
                site_defaults=not no_site_defaults,
                overrides=(*script_settings, *(overrides or ())),
                trial_mode=trials,
                max_trials=max_trials,
                time_budget_s=budget_s,
                seed=seed,
                storage=study_url,
                join=join is not None,
                pin=pin or "",
                resume=resume,
                validate=not no_validate,
                profile=profile,
                dry_run=dry_run,
                survive=survive,
            )
            for place in plan_places(session, paths, out=out, overrides=tuple(overrides or ()))
        )
        if len(requests) == 1 and not requests[0].cluster:
            session.print_json(plan_one(session, requests[0], debug=debug)[0])
        else:
            plan_several(session, requests, debug=debug)


def _refuse_idle_pin(pin: str | None, *, dry_run: bool) -> None:
    if pin is not None and (dry_run or not pin.strip()):
        raise InputError(
            "--pin has no effect beside --dry-run" if dry_run else "--pin names no layout",
            why="it holds a layout of your own against the plan's choice",
            fix="use --trials none for both by the model alone, or write --pin tensor_parallel_size=8,zero_stage=1",
        )


def _refuse_idle_survive(survive: int, *, dry_run: bool) -> None:
    if survive and dry_run:
        raise InputError(
            "--survive has no effect beside --dry-run",
            why="a dry run says what would be tried, and plans for lost nodes are made without trials",
            fix="leave one of the two out; --trials none plans at once, by the model alone",
        )


def _study_url(storage: str | None, join: str | None, *, trials: TrialMode | None) -> str | None:
    """The one URL of `--storage` and `--join`. InputError for both, and for one that would have no effect."""
    if storage is not None and join is not None:
        raise InputError(
            "--storage and --join are both given",
            why="--storage begins a study (or goes on with one's own), --join works on one that another planner began",
            fix="give one of the two",
        )
    if trials is TrialMode.NONE and (storage or join):
        flag = "--join" if join else "--storage"
        raise InputError(
            f"{flag} has no effect beside --trials none", why="a study is made of trials", fix=f"leave {flag} out"
        )
    url = storage if join is None else join
    if url is None or not url.startswith(FROM_ENVIRONMENT):
        return url
    name = url.removeprefix(FROM_ENVIRONMENT)
    if not os.environ.get(name):
        raise InputError(
            f"{'--storage' if join is None else '--join'} names the variable {name!r}, which is not set",
            why="env:NAME takes the URL from the environment, so that its password is on no command line",
            fix="export the variable, or give the URL itself",
        )
    return os.environ[name]
