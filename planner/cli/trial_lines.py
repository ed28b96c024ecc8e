"""A trial as one line, as it ends."""

from __future__ import annotations

from rich.text import Text

from planner.report.units import format_bytes, format_rate_short, format_seconds
from planner.report.wording import crash_reason, outcome_word, short_candidate
from planner.spec.trial import Measured, Outcome, TrialRecord

_CANDIDATE_WIDTH = 31  # with the figures a line of 79 columns; longer candidates push theirs to the right

_REASON_INDENT = 6  # below the candidate


def trial_heading() -> Text:
    """The heading above the lines of `trial_line`."""
    return Text(_columns("#", "candidate", "step", "tokens/s", "memory", "took"), style="dim")


def trial_line(trial: TrialRecord, *, is_best: bool) -> Text:
    """Number, candidate, step time (or how else it ended), tokens/s, memory of the worst rank, duration; below a
    crashed one its reason."""
    line = _columns(
        str(trial.number),
        short_candidate(trial.candidate),
        *_figures(trial.outcome),
        f"{trial.duration_s:.1f} s",
    )
    if not isinstance(trial.outcome, Measured):
        reason = crash_reason(trial.outcome)
        return Text(f"{line}\n{'':{_REASON_INDENT}}{reason}" if reason else line, style="red")
    return Text.assemble((line, "bold"), ("  best", "bold green")) if is_best else Text(line)


def _figures(outcome: Outcome) -> tuple[str, str, str]:
    if not isinstance(outcome, Measured):
        return outcome_word(outcome), "", ""
    return (
        format_seconds(outcome.step_time_s),
        format_rate_short(outcome.tokens_per_s),
        format_bytes(outcome.device_used_bytes),
    )


def _columns(number: str, candidate: str, step: str, speed: str, memory: str, took: str) -> str:
    return f"{number:>4}  {candidate:<{_CANDIDATE_WIDTH}} {step:>13}{speed:>9}{memory:>10}{took:>9}"
