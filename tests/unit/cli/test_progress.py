"""Progress on standard error."""

from __future__ import annotations

import dataclasses
import io
import re

from rich.console import Console

from planner.cli.document_view import document_view
from planner.cli.outline import outline_lines
from planner.cli.progress import LineProgress, LiveProgress, time_left_s
from planner.report import build_document
from planner.spec import ActivationCheckpointing, CheckpointingKind, TrialMode
from tests.unit.cli.fakes import make_outline
from tests.unit.report.samples import cluster_report, quickstart_report


def test_time_left_before_any_trial_is_what_the_limit_leaves() -> None:
    assert time_left_s(make_outline(longest_s=100), num_ended=0, elapsed_s=30) == 70


def test_time_left_follows_the_trials_so_far_but_never_passes_the_limit() -> None:
    outline = make_outline(max_trials=10, longest_s=100)
    assert time_left_s(outline, num_ended=5, elapsed_s=20) == 20
    assert time_left_s(outline, num_ended=1, elapsed_s=60) == 40
    assert time_left_s(outline, num_ended=10, elapsed_s=20) == 0
    assert time_left_s(outline, num_ended=1, elapsed_s=200) == 0


def test_outline_without_trials_says_that_the_model_decides() -> None:
    lines = outline_lines(make_outline(mode=TrialMode.NONE))
    assert lines[1] == "no trials: the model alone decides, for 2 x cpu-process (1.00 GiB usable each)"


def _live(width: int) -> str:
    """What a terminal of this width was sent during a search of five trials, one a second."""
    screen, seconds = io.StringIO(), iter(range(100_000))
    console = Console(file=screen, force_terminal=True, width=width, highlight=False, color_system=None)
    report = quickstart_report()
    with LiveProgress(console, clock=lambda: float(next(seconds))) as progress:
        progress.stage("read the job")
        progress.search_started(make_outline())
        for trial in report.trials:
            progress.trial_started(trial.number, trial.candidate)
            progress.trial_ended(trial, best=report.trials[0])
        progress.search_ended()
        progress.stage("validate the plan")
    return screen.getvalue()


def test_live_progress_keeps_each_trial_as_a_line_and_shows_the_time_left() -> None:
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", _live(100))
    for trial in quickstart_report().trials:
        assert len(re.findall(rf"[\r\n] +{trial.number}  ZeRO-", text)) == 1
    assert "  best" in text
    assert re.search(r"trial 1: ZeRO-1 tp2 [^\r]* 1/5, about \d+ s left", text)


def test_live_progress_survives_a_narrow_terminal() -> None:
    assert "ZeRO-1" in _live(20)


def test_lines_of_a_search_fit_a_terminal_of_eighty_columns() -> None:
    screen = io.StringIO()
    progress = LineProgress(Console(file=screen, soft_wrap=True, width=80))
    for trial in quickstart_report().trials:
        progress.trial_ended(trial, best=None)
    assert max(len(line) for line in screen.getvalue().splitlines()) <= 80


def test_report_on_a_terminal_shows_every_section_and_no_markup_of_its_values() -> None:
    for report in (quickstart_report(), cluster_report()):
        screen = io.StringIO()
        console = Console(file=screen, width=100)
        document = build_document(report)
        for part in document_view(document):
            console.print(part)
        for section in document.sections:
            assert section.title in screen.getvalue()


def test_a_long_candidate_and_its_end_are_two_words_and_a_crash_says_why_below() -> None:
    screen = io.StringIO()
    progress = LineProgress(Console(file=screen, soft_wrap=True, width=80))
    for trial in quickstart_report().trials:
        kind = ActivationCheckpointing(kind=CheckpointingKind.SELECTIVE)
        candidate = dataclasses.replace(trial.candidate, activation_checkpointing=kind)
        progress.trial_ended(dataclasses.replace(trial, candidate=candidate), best=None)
    lines = screen.getvalue().splitlines()
    assert any(re.search(r"selective +out of memory", line) for line in lines)
    assert not any("selectiveout" in line for line in lines)
    assert lines[-1] == "      segmentation fault" and "crashed" in lines[-2]
