"""Errors as people and programs read them: three lines on standard error, or one JSON document on standard output."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from typing import Any

import typer

from planner.errors import InputError, NoFeasiblePlan, PlannerError, did_you_mean
from planner.report.units import one_line

_CHOICE = re.compile(r"^(?:Value error, )?'(?P<word>.*)' is not one of (?P<choices>'.*')\.?$", re.DOTALL)
_STYLES = {"error": "bold red", "why": "bold yellow", "fix": "bold green"}


def print_error(error: PlannerError, *, as_json: bool) -> None:
    """Print `error:`, `why:`, `fix:`, one line each; colour only on a terminal. As JSON: a document on stdout.

    Where nobody can be told any more (a terminal that went away), the exit code alone says it.
    """
    with contextlib.suppress(OSError, ValueError):
        _print_error(error, as_json=as_json)


def _print_error(error: PlannerError, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(error_document(error), ensure_ascii=False))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=sys.stderr, soft_wrap=True, highlight=False)
    for label, words in (("error", error.error), ("why", error.why), ("fix", error.fix)):
        console.print(Text.assemble((f"{label}: ", _STYLES[label]), one_line(words)))


def error_document(error: PlannerError) -> dict[str, Any]:
    """The error as `--json` prints it."""
    document: dict[str, Any] = {
        "error": error.error,
        "why": error.why,
        "fix": error.fix,
        "exit_code": error.exit_code,
    }
    if isinstance(error, NoFeasiblePlan) and error.tally:
        document["tally"] = dict(error.tally)
    return document


def usage_error(problem: typer.TyperException) -> InputError:
    """What Typer found wrong with the command line, in our three sentences with near matches."""
    context = getattr(problem, "ctx", None)
    path = context.command_path if context is not None else "planner"
    see_help = f"`{path} --help` shows what it takes"
    option = getattr(problem, "option_name", None)
    if option is not None and "No such option" in problem.message:
        known = _options_of(context)
        return InputError(
            f"{path} has no option {option!r}", why="it is not one of its options", fix=did_you_mean(option, known)
        )
    choice = _CHOICE.match(problem.message)
    if choice is not None:
        choices = re.findall(r"'([^']*)'", choice["choices"])
        name = _parameter_name(problem)
        return InputError(
            f"{name} does not take {choice['word']!r}",
            why=f"it takes one of: {', '.join(choices)}",
            fix=did_you_mean(choice["word"], choices),
        )
    name = _parameter_name(problem)
    if type(problem).__name__ == "MissingParameter":
        return InputError(f"{path} needs {name}", why="it was not given", fix=see_help)
    if option is not None:
        return InputError(f"{option} needs a value", why="nothing follows it", fix=see_help)
    prefix = f"{name}: " if name else ""
    message = problem.message.rstrip(".").removeprefix("Value error, ")
    return InputError(f"{prefix}{message}", why=f"{path} could not read its command line", fix=see_help)


def unknown_verb(name: str, known: list[str]) -> InputError:
    """A verb that does not exist, with the nearest that do."""
    return InputError(f"planner has no verb {name!r}", why="it is not one of its verbs", fix=did_you_mean(name, known))


def _parameter_name(problem: typer.TyperException) -> str:
    """`--trials` for an option, `JOB.yaml` for an argument, "" when Typer does not say."""
    parameter = getattr(problem, "param", None)
    if parameter is None:
        return ""
    long_names = [name for name in parameter.opts if name.startswith("--")]
    return str(long_names[0] if long_names else parameter.metavar or parameter.name.upper())


def _options_of(context: Any) -> list[str]:
    if context is None:
        return []
    return [name for parameter in context.command.params for name in parameter.opts if name.startswith("--")]
