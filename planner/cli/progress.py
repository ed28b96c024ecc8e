"""Progress on standard error: finished trials as lines, and on a terminal a bar with the time left below them."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.progress import Progress as Bar
from rich.text import Text

from planner.app.progress import Progress, SearchOutline, SilentProgress
from planner.cli.outline import outline_lines
from planner.cli.trial_lines import trial_heading, trial_line
from planner.report.units import format_duration_limit, printable
from planner.report.wording import short_candidate
from planner.spec.candidate import Candidate
from planner.spec.trial import TrialRecord


@contextlib.contextmanager
def show_progress(*, quiet: bool) -> Iterator[Progress]:
    """The progress that suits standard error: silent, plain lines, or a live bar; the bar is gone when it ends."""
    if quiet:
        yield SilentProgress()
        return
    console = Console(file=sys.stderr, highlight=False, soft_wrap=True)
    if not console.is_terminal or console.is_dumb_terminal:
        yield LineProgress(console)
        return
    with LiveProgress(console) as progress:
        yield progress


def time_left_s(outline: SearchOutline, *, num_ended: int, elapsed_s: float) -> float:
    """At most what the search's own limit leaves, less when the trials so far were quicker: seconds."""
    by_limit_s = max(outline.longest_s - elapsed_s, 0.0)
    if num_ended == 0:
        return by_limit_s
    remaining = max(outline.max_trials - num_ended, 0)
    return min(by_limit_s, remaining * elapsed_s / num_ended)


class LineProgress:
    """One line for each thing that happens, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def stage(self, name: str) -> None:
        self._print(Text(f"{printable(name)} ..."))

    def search_started(self, outline: SearchOutline) -> None:
        for line in outline_lines(outline):
            self._print(Text(line))
        if outline.max_trials:
            self._print(trial_heading())

    def trial_started(self, number: int, candidate: Candidate) -> None:
        pass  # its line is printed when it ends

    def trial_ended(self, trial: TrialRecord, *, best: TrialRecord | None) -> None:
        self._print(trial_line(trial, is_best=best is not None and best.number == trial.number))

    def search_ended(self) -> None:
        pass

    def note(self, text: str) -> None:
        self._print(Text(f"note: {printable(text)}"))

    def _print(self, line: Text) -> None:
        self._console.print(line)


class LiveProgress(LineProgress):
    """The same lines, and below them what is going on now: a spinner, or a bar with the time left."""

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(console)
        self._clock = clock
        self._outline: SearchOutline | None = None
        self._started_s = clock()
        self._num_ended = 0
        self._bar = Bar(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            _Words(self._status),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task("starting", total=None)

    def __enter__(self) -> LiveProgress:
        self._bar.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._bar.stop()

    def stage(self, name: str) -> None:
        self._started_s = self._clock()
        self._bar.reset(self._task, total=None, description=printable(name))

    def search_started(self, outline: SearchOutline) -> None:
        super().search_started(outline)
        if outline.max_trials:
            self._outline, self._started_s, self._num_ended = outline, self._clock(), 0
            self._bar.reset(self._task, total=outline.max_trials, description="search")

    def trial_started(self, number: int, candidate: Candidate) -> None:
        self._bar.update(self._task, description=f"trial {number}: {short_candidate(candidate)}", refresh=True)

    def trial_ended(self, trial: TrialRecord, *, best: TrialRecord | None) -> None:
        super().trial_ended(trial, best=best)
        self._num_ended += 1
        self._bar.update(self._task, completed=self._num_ended, refresh=True)

    def search_ended(self) -> None:
        self._outline = None
        self.stage("search ended")

    def _status(self) -> str:
        """What stands at the end of the live line; asked again at every refresh."""
        elapsed_s = self._clock() - self._started_s
        if self._outline is None:
            return format_duration_limit(elapsed_s)
        left_s = time_left_s(self._outline, num_ended=self._num_ended, elapsed_s=elapsed_s)
        about = "about" if self._num_ended else "at most"
        return f"{self._num_ended}/{self._outline.max_trials}, {about} {format_duration_limit(left_s)} left"


class _Words(ProgressColumn):
    """A column of words that are asked for at every refresh."""

    def __init__(self, words: Callable[[], str]) -> None:
        super().__init__()
        self._words = words

    def render(self, task: Task) -> Text:
        return Text(self._words(), style="dim")
