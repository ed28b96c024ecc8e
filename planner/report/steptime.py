"""Where the time of one step goes, as stacked bars: the model beside what the trial showed."""

from __future__ import annotations

from statistics import fmean

from planner.report.document import Bar, Bars, Block
from planner.report.explain import winning_trial
from planner.report.input import ReportInput
from planner.report.memory import segments
from planner.report.units import format_seconds
from planner.report.wording import TIME_LABELS
from planner.spec.estimate import TimeBreakdown
from planner.spec.trial import Measured

# Measured parts do not share the model's colours, but for the optimizer step, which is the same thing.
_TONE_FORWARD, _TONE_BACKWARD, _TONE_OPTIMIZER, _TONE_STEP_REST = 9, 10, 6, 11


def time_blocks(report: ReportInput) -> tuple[Block, ...]:
    """One optimizer step by the model and, where a trial ran, as put together from an emulation or measured on the
    slowest rank."""
    estimate = report.plan.estimate
    bars = [_breakdown_bar("by the model", estimate.time, f"{format_seconds(estimate.step_time_s)} ({estimate.kind})")]
    trial = winning_trial(report)
    if trial is not None and trial[1].breakdown is not None:
        text = f"{format_seconds(trial[1].step_time_s)} ({trial[1].step_time_kind})"
        bars.append(_breakdown_bar("by the trial", trial[1].breakdown, text))
    if trial is not None and trial[1].breakdown is None:
        bars.append(_measured_bar(trial[1]))
    scale = max(bar.total for bar in bars)
    return (Bars(bars=tuple(bars), scale=scale * 1.02),) if scale > 0 else ()


def _breakdown_bar(label: str, time: TimeBreakdown, text: str) -> Bar:
    parts = [(name, getattr(time, field), tone) for tone, (field, name) in enumerate(TIME_LABELS)]
    return Bar(label=label, segments=segments(parts, format_seconds), text=text)


def _measured_bar(outcome: Measured) -> Bar:
    """The step that is promised, split as the slowest rank's mean step is: parts are means, the promise is a median."""
    slowest = max(outcome.ranks, key=lambda rank: sum(rank.step_times_s))
    means_s = (slowest.forward_s, slowest.backward_s, slowest.optimizer_s)
    whole_s = max(fmean(slowest.step_times_s) if slowest.step_times_s else outcome.step_time_s, sum(means_s))
    forward_s, backward_s, optimizer_s = (mean_s * outcome.step_time_s / whole_s for mean_s in means_s)
    named_s = forward_s + backward_s + optimizer_s
    parts = [
        ("forward", forward_s, _TONE_FORWARD),
        ("backward", backward_s, _TONE_BACKWARD),
        ("optimizer step", optimizer_s, _TONE_OPTIMIZER),
        ("the rest of the step" if named_s else "the whole step", outcome.step_time_s - named_s, _TONE_STEP_REST),
    ]
    return Bar(
        label=f"rank {slowest.rank}",
        segments=segments(parts, format_seconds),
        text=f"{format_seconds(outcome.step_time_s)} ({outcome.kind})",
    )
