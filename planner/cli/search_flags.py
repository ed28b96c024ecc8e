"""What the verbs that search (`plan`, `replan`) have alike: flags, limits of trials, and what a stop leaves."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from planner.cli.flags import parse_duration_s
from planner.cli.session import invocation_of
from planner.errors import InputError, Interrupted
from planner.spec.kinds import TrialMode

TrialsFlag = Annotated[
    TrialMode | None,
    typer.Option(help="Real runs, one process standing in for a rank, none at all, or (auto) what this machine can."),
]
TimeBudgetFlag = Annotated[
    str | None, typer.Option(metavar="TIME", help="Stop starting trials after this long: 90s, 10m, 1h.")
]
SeedFlag = Annotated[int | None, typer.Option(min=0, metavar="N", help="Seed of the search.")]
NoValidateFlag = Annotated[bool, typer.Option("--no-validate", help="Do not have DeepSpeed itself check the plan.")]


def time_budget_s(time_budget: str | None) -> float | None:
    """Seconds of `--time-budget`, None without one; InputError for what is no duration."""
    return parse_duration_s(time_budget, flag="--time-budget") if time_budget is not None else None


def refuse_idle_limits(trials: TrialMode | None, *, max_trials: int | None, time_budget: str | None) -> None:
    """InputError for limits of trials beside `--trials none`, which runs none."""
    given = ("--max-trials" if max_trials else "", "--time-budget" if time_budget is not None else "")
    idle = " and ".join(filter(None, given))
    if trials is TrialMode.NONE and idle:
        raise InputError(
            f"{idle} {'have' if all(given) else 'has'} no effect beside --trials none",
            why="they limit trials, and none are run",
            fix=f"leave {idle} out, or leave --trials out",
        )


def interrupted_search(context: typer.Context, *, folder: str) -> Interrupted:
    """What Ctrl-C leaves in the `folder` (in words), and what goes on from it: the words typed, with `--resume`."""
    words = invocation_of(context).words
    return Interrupted(
        "interrupted",
        why=f"it was stopped from the keyboard; every trial that had ended is kept in the {folder}",
        fix=f"go on with: {shlex.join(_with_resume(words))}",
    )


def _with_resume(words: tuple[str, ...]) -> tuple[str, ...]:
    if "--resume" in words:
        return words
    end = words.index("--") if "--" in words else len(words)
    return (*words[:end], "--resume", *words[end:])
