"""What every verb does alike: where it prints, how it shows progress, and how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Annotated, Any, cast

import typer
from rich.console import Console, RenderableType

from planner.app.progress import Progress
from planner.cli.problems import print_error
from planner.cli.progress import show_progress
from planner.cli.usecases import ProductUseCases, UseCases
from planner.errors import Interrupted, PlannerError

JsonFlag = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on standard output and nothing else there.")
]
QuietFlag = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress, no notes; only the essential line of the result.")
]

PIPED_WIDTH = 120  # columns of a table when standard output is not a terminal


class Session:
    """One run of one verb. Results go to standard output; progress and notes to standard error."""

    def __init__(self, use_cases: UseCases, *, as_json: bool, quiet: bool) -> None:
        self.use_cases = use_cases
        self.as_json = as_json
        self.quiet = quiet
        self._stdout = sys.stdout
        width = None if self._stdout.isatty() or "COLUMNS" in os.environ else PIPED_WIDTH
        self.console = Console(file=self._stdout, width=width, highlight=False)

    def print(self, *renderables: RenderableType) -> None:
        """Print for people; nothing with `--json` or `--quiet`."""
        if not self.as_json and not self.quiet:
            for renderable in renderables:
                self.console.print(renderable)

    def print_essential(self, text: str) -> None:
        """Print the line that `--quiet` leaves; nothing with `--json` or without `--quiet`."""
        if self.quiet and not self.as_json:
            print(text, file=self._stdout)

    def print_json(self, document: Any) -> None:
        """Print the one document of `--json`; nothing without it."""
        if self.as_json:
            self.write_line(json.dumps(document, ensure_ascii=False, allow_nan=False))

    def write_line(self, line: str) -> None:
        """Write a line as it is, whatever the flags say."""
        self._stdout.write(line + "\n")

    def progress(self) -> contextlib.AbstractContextManager[Progress]:
        """Shows the progress of a use case on standard error while the context is open."""
        return show_progress(quiet=self.quiet)


def silence_stdout() -> None:
    """Send what is still to be printed nowhere: whoever was reading has gone, and that is no error of ours."""
    with contextlib.suppress(OSError, ValueError):  # a standard output without a file descriptor has nothing to send
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def run_verb(
    context: typer.Context, *, as_json: bool, quiet: bool, kept: Interrupted | None = None
) -> Iterator[Session]:
    """Run a verb's body; every end a user can meet becomes its message and its exit code.

    `kept` says what an interrupt left behind. While the body runs with `--json`, whatever else prints to standard
    output goes to standard error.
    """
    use_cases = cast(UseCases, context.find_root().obj or ProductUseCases())
    session = Session(use_cases, as_json=as_json, quiet=quiet)
    diverted = contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()
    try:
        with diverted:
            yield session
        return
    except BrokenPipeError:
        silence_stdout()
        raise typer.Exit(0) from None
    except PlannerError as error:
        problem = error
    except KeyboardInterrupt:
        problem = kept or Interrupted(
            "interrupted", why="it was stopped from the keyboard", fix="run the command again"
        )
    print_error(problem, as_json=as_json)
    raise typer.Exit(problem.exit_code)
