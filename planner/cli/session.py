"""What every verb does alike: where it prints, how it shows progress, and how it ends."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Iterator
from typing import Annotated, Any, cast

import typer
from rich.console import Console, RenderableType

from planner.app.progress import Progress
from planner.cli.problems import print_error
from planner.cli.progress import show_progress
from planner.cli.usecases import UseCases
from planner.errors import InputError, Interrupted, PlannerError
from planner.spec._record import record

JsonFlag = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on standard output and nothing else there.")
]
QuietFlag = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress, no notes; only the essential line of the result.")
]

_END_PADDING = re.compile(r" +$", re.MULTILINE)
PIPED_WIDTH = 120  # columns of prose when standard output is not a terminal


class Session:
    """One run of one verb. Results go to standard output; progress and notes to standard error."""

    def __init__(self, invocation: Invocation, *, as_json: bool, quiet: bool) -> None:
        self.use_cases = invocation.use_cases
        self.words = invocation.words
        self.as_json = as_json
        self.quiet = quiet
        self._stdout = sys.stdout
        self.is_terminal = self._stdout.isatty()

    @property
    def width(self) -> int | None:
        """Columns of standard output, as far as that is known: None when it is piped."""
        return Console(file=self._stdout).width if self.is_terminal or "COLUMNS" in os.environ else None

    def print(self, *renderables: RenderableType, piped_width: int = PIPED_WIDTH) -> None:
        """Print for people; nothing with `--json` or `--quiet`. What is piped carries no padding at line ends."""
        if self.as_json or self.quiet:
            return
        shown = io.StringIO()
        width = self.width or piped_width
        console = Console(file=shown, force_terminal=self.is_terminal or None, width=width, highlight=False)
        for renderable in renderables:
            console.print(renderable)
        self._write(shown.getvalue() if self.is_terminal else _END_PADDING.sub("", shown.getvalue()))

    def print_essential(self, text: str) -> None:
        """Print the line that `--quiet` leaves; nothing with `--json` or without `--quiet`."""
        if self.quiet and not self.as_json:
            self.write_line(text)

    def print_json(self, document: Any) -> None:
        """Print the one document of `--json`; nothing without it."""
        if self.as_json:
            self.write_line(json.dumps(document, ensure_ascii=False, allow_nan=False))

    def write_line(self, line: str) -> None:
        """Write a line as it is, whatever the flags say."""
        self._write(line + "\n")

    def _write(self, text: str) -> None:
        with refuse_unwritable():
            self._stdout.write(text)

    def progress(self) -> contextlib.AbstractContextManager[Progress]:
        """Shows the progress of a use case on standard error while the context is open."""
        return show_progress(quiet=self.quiet)


class Unwritable(InputError):
    """Standard output takes no more: a full disk, mostly."""

    def __init__(self, problem: OSError) -> None:
        why = problem.strerror or str(problem)
        super().__init__("cannot write to standard output", why=why, fix="free some space, or send it somewhere else")


@contextlib.contextmanager
def refuse_unwritable() -> Iterator[None]:
    """Turn what a full disk does to standard output into `Unwritable`; a broken pipe stays what it is."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as problem:
        silence_stdout()
        raise Unwritable(problem) from None


def flush_stdout() -> None:
    """Write out what is buffered, so that a failure is met here and not at the interpreter's end."""
    with refuse_unwritable():
        sys.stdout.flush()


def silence_stdout() -> None:
    """Send what is still to be printed nowhere: whoever was reading has gone, and that is no error of ours."""
    if sys.__stdout__ is not None:  # not sys.stdout: while a verb runs that is standard error
        with contextlib.suppress(OSError, ValueError):  # a stream without a file descriptor has nothing to send
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno())


@record
class Invocation:
    """What was typed, and the product it is asked of; travels as Typer's context object."""

    words: tuple[str, ...]
    use_cases: UseCases
    script: tuple[str, ...] = ()  # what followed `--`: the user's own training script and its arguments


def invocation_of(context: typer.Context) -> Invocation:
    """The invocation that this verb's context belongs to."""
    return cast(Invocation, context.find_root().obj)


@contextlib.contextmanager
def run_verb(
    context: typer.Context, *, as_json: bool, quiet: bool, kept: Interrupted | None = None
) -> Iterator[Session]:
    """Run a verb's body; every end a user can meet becomes its message and its exit code.

    `kept` says what an interrupt left behind and how to go on. While the body runs, whatever but the session prints to
    standard output goes to standard error.
    """
    session = Session(invocation_of(context), as_json=as_json, quiet=quiet)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield session
        return
    except BrokenPipeError:
        silence_stdout()
        raise typer.Exit(0) from None
    except Interrupted as error:
        problem: PlannerError = Interrupted(error.error, why=error.why, fix=kept.fix if kept else error.fix)
    except PlannerError as error:
        problem = error
    except KeyboardInterrupt:
        problem = kept or Interrupted(
            "interrupted", why="it was stopped from the keyboard", fix="run the command again"
        )
    print_error(problem, as_json=as_json and not isinstance(problem, Unwritable))
    raise typer.Exit(problem.exit_code)
