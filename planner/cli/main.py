"""The console scripts `planner` and `plan`: which verbs there are, and how a run of one ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup
from typer.main import get_command

from planner import __version__
from planner.cli.check import check
from planner.cli.diagnose import diagnose
from planner.cli.estimate import estimate
from planner.cli.folder_verbs import emit, report, verify
from planner.cli.interrupts import interruptible
from planner.cli.listing import list_known
from planner.cli.own_script import split_script
from planner.cli.plan import plan
from planner.cli.probe import probe
from planner.cli.problems import print_error, unknown_verb, usage_error
from planner.cli.replan import replan
from planner.cli.session import Invocation, Unwritable, flush_stdout, silence_stdout
from planner.cli.supervise import supervise
from planner.cli.tokens import tokens
from planner.cli.usecases import ProductUseCases, UseCases
from planner.errors import InputError, Interrupted, PlannerError

_VERBS: dict[str, tuple[Callable[..., None], str]] = {
    "plan": (plan, "From a job file to a plan folder, by real trials."),
    "estimate": (estimate, "Memory and time of given configurations, no GPU needed."),
    "replan": (replan, "Plan again when hardware or software changed."),
    "verify": (verify, "Run a plan for a few steps and hold it to its promise."),
    "emit": (emit, "Render a plan's launch files for another launcher."),
    "report": (report, "A plan's report, as text or HTML."),
    "check": (check, "Lint an existing DeepSpeed configuration."),
    "diagnose": (diagnose, "Name the cause of a failed run from its logs, and rank what helps."),
    "probe": (probe, "This machine as a cluster file, and what is wrong with it for training."),
    "supervise": (supervise, "Run a launch command and carry it through running out of memory."),
    "tokens": (tokens, "A token file for the reference trainer from text or JSONL."),
    "list": (list_known, "Known GPUs, models, links, clusters, rules and causes."),
}

_EPILOG = (
    "Exit codes: 0 done, 2 the input is wrong, 3 no feasible plan, 4 trials could not be started, "
    "5 not expressible for this target, 6 the promise is broken, 130 interrupted (what had ended is kept)."
)
_HELP_NAMES = {"help_option_names": ["-h", "--help"]}


def main(arguments: Sequence[str] | None = None, *, use_cases: UseCases | None = None) -> NoReturn:
    """The console script `planner`. `use_cases` stands in for the product's own in tests."""
    sys.exit(_run(planner_app(), "planner", arguments, use_cases))


def plan_main(arguments: Sequence[str] | None = None, *, use_cases: UseCases | None = None) -> NoReturn:
    """The console script `plan`: `plan X` is `planner plan X`."""
    sys.exit(_run(plan_app(), "plan", arguments, use_cases))


class _Verbs(TyperGroup):
    """A group whose unknown verbs are answered with the nearest that exist."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is None and not ctx.resilient_parsing:  # resilient: completing a word that is not whole yet
            raise unknown_verb(cmd_name, self.list_commands(ctx))
        return command


def planner_app() -> typer.Typer:
    """The application with every verb."""
    app = typer.Typer(cls=_Verbs, add_completion=True, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.callback(invoke_without_command=True, epilog=_EPILOG, context_settings=_HELP_NAMES)(_planner)
    for name, (verb, short_help) in _VERBS.items():
        app.command(name, short_help=short_help)(verb)
    return app


def plan_app() -> typer.Typer:
    """The application that is the verb `plan` alone."""
    app = typer.Typer(add_completion=True, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command("plan", epilog=_EPILOG, context_settings=_HELP_NAMES)(plan)
    return app


def _planner(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Plans distributed training with real DeepSpeed trials: from a model and a cluster to a run-tested plan."""
    if version:
        print(f"meshplan {__version__}")
        raise typer.Exit(0)
    if context.invoked_subcommand is None:
        print(context.get_help())


def _run(app: typer.Typer, name: str, arguments: Sequence[str] | None, use_cases: UseCases | None) -> int:
    _prepare_streams()
    words, script = split_script(list(sys.argv[1:] if arguments is None else arguments), app_name=name)
    as_json = "--json" in words  # the command line may be what is wrong, so it is not asked for its flags
    try:
        with interruptible():
            code = _invoke(app, name, words, use_cases, script=script)
            flush_stdout()
    except KeyboardInterrupt:  # before or after the verb's own work, which has words of its own for it
        print_error(Interrupted("interrupted", why="it was told to stop", fix="run the command again"), as_json=as_json)
        return Interrupted.exit_code
    except BrokenPipeError:
        silence_stdout()
        return 0
    except PlannerError as error:
        print_error(error, as_json=as_json and not isinstance(error, Unwritable))
        return error.exit_code
    except typer.TyperException as problem:
        print_error(usage_error(problem), as_json=as_json)
        return InputError.exit_code
    return code


def _invoke(
    app: typer.Typer, name: str, words: list[str], use_cases: UseCases | None, *, script: tuple[str, ...]
) -> int:
    typed = (name, *words, *(("--", *script) if script else ()))
    invocation = Invocation(words=typed, use_cases=use_cases or ProductUseCases(), script=script)
    code = get_command(app).main(args=words, prog_name=name, standalone_mode=False, obj=invocation)
    return code if isinstance(code, int) else 0


def _prepare_streams() -> None:
    """Output never fails for a character that the terminal's encoding lacks, or because a stream was closed."""
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("r+"))  # noqa: SIM115 - the process's own
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
