"""All candidates as one plot of speed against memory, and the frontier as a table.

Owns where a point lies and what it says. Which candidates are shown was decided by whoever made the report's input.
"""

from __future__ import annotations

import math

from planner.report.document import Block, Column, Paragraph, PlotFilter, Point, PointState, Scatter, Table, Tick
from planner.report.explain import winning_trial
from planner.report.input import CandidateMap, MappedCandidate, ReportInput
from planner.report.units import (
    format_bytes,
    format_count,
    format_fraction,
    format_rate_short,
    format_seconds,
    format_tokens_per_s,
    plural,
)
from planner.report.wording import outcome_sentence, outcome_word, short_candidate
from planner.spec.candidate import Candidate
from planner.spec.estimate import Estimate
from planner.spec.kinds import Provenance
from planner.spec.runs import one_per_candidate
from planner.spec.trial import Measured, TrialRecord

_REACH = 4.0  # times the usable memory: the right end of the plot at most
_MARGIN = 1.12
_FRONTIER_ROWS = 8
_MAX_Y_TICKS = 5


def candidate_blocks(report: ReportInput) -> tuple[Block, ...]:
    """How to read the plot, the plot, and the frontier in figures; nothing without candidates."""
    shown = report.candidates.shown if report.candidates is not None else ()
    if report.candidates is None or not shown:
        return ()
    trials = {trial.key: trial for trial in one_per_candidate(report.trials)}
    frame = _Frame(report, shown, trials)
    points = [frame.point(one) for one in shown if one.row.key not in trials]
    points += [frame.tried(trial) for trial in trials.values()]
    inside = tuple(point for point in points if 0 <= point.x <= 1 and 0 <= point.y <= 1)
    corners = _frontier(report, shown, trials)
    scatter = Scatter(
        points=inside,
        frontier=tuple((frame.x(memory), frame.y(speed)) for memory, speed, _, _ in corners),
        x_title="device memory of the worst rank",
        y_title="tokens/s",
        x_ticks=frame.x_ticks(),
        y_ticks=speed_ticks(frame.top),
        limits=frame.limits(),
        filters=_filters(inside),
    )
    return (
        Paragraph(text=_intro(report.candidates, len(inside), has_trials=bool(trials))),
        scatter,
        *_frontier_table(report, corners),
    )


class _Frame:
    """The plot's scales: memory logarithmic, speed from 0."""

    def __init__(self, report: ReportInput, shown: tuple[MappedCandidate, ...], trials: dict[str, TrialRecord]) -> None:
        self.report, self.trials = report, trials
        self.usable = float(report.plan.promise.usable_bytes)
        used = [float(one.row.estimate.memory.device_used_bytes) for one in shown]
        measured = [trial.outcome for trial in trials.values() if isinstance(trial.outcome, Measured)]
        used += [float(outcome.device_used_bytes) for outcome in measured]
        within = [memory for memory in used if 0 < memory <= _REACH * self.usable] or [self.usable]
        self.low = min(*within, self.usable) / _MARGIN
        self.high = max(*within, self.usable) * _MARGIN
        speeds = [one.row.estimate.tokens_per_s for one in shown] + [outcome.tokens_per_s for outcome in measured]
        self.top = max((*speeds, report.plan.promise.tokens_per_s)) * 1.06

    def x(self, memory: float) -> float:
        return math.log(max(memory, 1.0) / self.low) / math.log(self.high / self.low)

    def y(self, speed: float) -> float:
        return speed / self.top

    def point(self, one: MappedCandidate) -> Point:
        estimate, chosen = one.row.estimate, one.row.key == self.report.plan.key
        state = PointState.CHOSEN if chosen else PointState.FITS if one.fits else PointState.TOO_LARGE
        return Point(
            x=self.x(estimate.memory.device_used_bytes),
            y=self.y(estimate.tokens_per_s),
            state=state,
            name=short_candidate(one.row.candidate),
            choices=_choices(one.row.candidate),
            facts=(
                *(["the choice"] if chosen else []),
                *_estimate_facts(estimate),
                *(["not sure to fit with the memory that is to be kept free"] if not one.fits else []),
            ),
        )

    def tried(self, trial: TrialRecord) -> Point:
        """A trial where it was measured; one that did not run, where the model puts it, or at the limit."""
        outcome = trial.outcome
        row = next((row for row in self.report.tried if row.key == trial.key), None)
        estimate = row.estimate if row is not None else None
        state, facts = PointState.FAILED, [outcome_sentence(outcome)]
        memory = float(estimate.memory.device_used_bytes) if estimate is not None else self.usable
        speed = estimate.tokens_per_s if estimate is not None else 0.0
        if isinstance(outcome, Measured):
            memory, speed = float(outcome.device_used_bytes), outcome.tokens_per_s
            state = PointState.EMULATED if outcome.kind is Provenance.EMULATED else PointState.MEASURED
            facts = [
                f"{format_tokens_per_s(speed)}, {format_seconds(outcome.step_time_s)} a step "
                f"({outcome.step_time_kind})",
                f"{format_bytes(memory)} device memory ({outcome.kind})",
            ]
        if estimate is not None and isinstance(outcome, Measured):
            facts.append(
                f"by the model {format_seconds(estimate.step_time_s)} and "
                f"{format_bytes(estimate.memory.device_used_bytes)} ({estimate.kind})"
            )
        winner = winning_trial(self.report)
        chosen = winner is not None and winner[0].key == trial.key
        return Point(
            x=min(max(self.x(memory), 0.0), 1.0),
            y=self.y(speed),
            state=PointState.CHOSEN if chosen else state,
            name=short_candidate(trial.candidate),
            choices=_choices(trial.candidate),
            facts=(f"{'the choice, ' if chosen else ''}trial {trial.number}: {outcome_word(outcome)}", *facts),
        )

    def x_ticks(self) -> tuple[Tick, ...]:
        """Powers of two of a byte unit; with few in sight, also those and a half."""
        first, last = math.floor(math.log2(self.low)), math.ceil(math.log2(self.high))
        sizes = [2.0**power for power in range(first, last + 1)]
        if sum(self.low <= size <= self.high for size in sizes) < 3:
            sizes += [1.5 * size for size in sizes]
        sizes = sorted(size for size in sizes if self.low <= size <= self.high)
        step = math.ceil(len(sizes) / 7)
        return tuple(Tick(at=self.x(size), label=_round_bytes(size)) for size in sizes[::step])

    def limits(self) -> tuple[Tick, ...]:
        """Where the memory ends, and where what may be used of it does; one label says both."""
        headroom, label = self.report.job.memory_headroom_fraction, f"usable {format_bytes(self.usable)}"
        if not headroom:
            return (Tick(at=self.x(self.usable), label=label),)
        label += f", {format_fraction(headroom)} of it kept free"
        return (Tick(at=self.x(self.usable * (1 - headroom)), label=""), Tick(at=self.x(self.usable), label=label))


def speed_ticks(top: float) -> tuple[Tick, ...]:
    """Round rates from 0 up to `top`, at most five."""
    if not top > 0:
        return (Tick(at=0.0, label="0"),)
    step = 10.0 ** math.floor(math.log10(top / _MAX_Y_TICKS))
    step *= next(factor for factor in (1, 2, 2.5, 5, 10) if top / (step * factor) <= _MAX_Y_TICKS)
    count = math.floor(top / step)
    return tuple(Tick(at=step * place / top, label=_round_rate(step * place)) for place in range(count + 1))


def _round_bytes(size: float) -> str:
    number, _, unit = format_bytes(size).partition(" ")
    number = number.rstrip("0").rstrip(".") if "." in number else number
    return f"{number} {unit}"


def _round_rate(rate: float) -> str:
    number, _, prefix = format_rate_short(rate).partition(" ")
    number = number.rstrip("0").rstrip(".") if "." in number else number
    return f"{number} {prefix}".rstrip()


def _choices(candidate: Candidate) -> tuple[int, ...]:
    layout = candidate.layout
    return (candidate.zero_stage, layout.tensor_parallel_size, layout.pipeline_parallel_size)


def _filters(points: tuple[Point, ...]) -> tuple[PlotFilter, ...]:
    named = zip(("ZeRO stage", "tensor", "pipeline"), zip(*(point.choices for point in points)))
    return tuple(PlotFilter(name=name, values=tuple(sorted(set(of_axis)))) for name, of_axis in named)


def _estimate_facts(estimate: Estimate) -> tuple[str, ...]:
    memory = estimate.memory
    return (
        f"{format_tokens_per_s(estimate.tokens_per_s)}, {format_seconds(estimate.step_time_s)} a step "
        f"({estimate.kind}, not tried)",
        f"{format_bytes(memory.device_used_bytes)} device memory; cannot do without {format_bytes(memory.low_bytes)} "
        f"to {format_bytes(memory.high_bytes)} ({estimate.kind})",
    )


def _intro(candidates: CandidateMap, drawn: int, *, has_trials: bool) -> str:
    legal, fit = candidates.num_legal, candidates.num_fit
    words = f"{plural(legal, 'candidate is', 'candidates are')} legal, and by the model {format_count(fit)} surely fit"
    if drawn < legal:
        words += (
            f". {format_count(drawn)} are drawn: the frontier, all that were tried, the best of each layout, an even "
            f"share of what fits and of what may not; beyond {_REACH:g} times the usable memory nothing is drawn"
        )
    kind = candidates.shown[0].row.estimate.kind
    if not has_trials:
        return f"{words}. None was tried: all stand where the model puts them ({kind})."
    return f"{words}. Trials stand where they were measured or emulated, all others where the model puts them ({kind})."


def _frontier(
    report: ReportInput, shown: tuple[MappedCandidate, ...], trials: dict[str, TrialRecord]
) -> list[tuple[float, float, Candidate, str]]:
    """(memory, speed, candidate, origin) of what is faster than all that fit with as little memory; measured figures
    take the model's place."""
    limit = report.plan.promise.usable_bytes * (1 - report.job.memory_headroom_fraction)
    found = [
        (
            float(one.row.estimate.memory.device_used_bytes),
            one.row.estimate.tokens_per_s,
            one.row.candidate,
            str(one.row.estimate.kind),
        )
        for one in shown
        if one.fits and one.row.key not in trials
    ]
    for trial in trials.values():
        outcome = trial.outcome
        if isinstance(outcome, Measured) and outcome.device_used_bytes <= limit:
            kind = str(outcome.step_time_kind)
            found.append((float(outcome.device_used_bytes), outcome.tokens_per_s, trial.candidate, kind))
    corners: list[tuple[float, float, Candidate, str]] = []
    for corner in sorted(found, key=lambda one: (one[0], -one[1])):
        if not corners or corner[1] > corners[-1][1]:
            corners.append(corner)
    return corners


def _frontier_table(report: ReportInput, corners: list[tuple[float, float, Candidate, str]]) -> tuple[Block, ...]:
    if len(corners) < 2:
        return ()
    places = {round(index * (len(corners) - 1) / (_FRONTIER_ROWS - 1)) for index in range(_FRONTIER_ROWS)}
    chosen = report.plan.promise.tokens_per_s
    picked = [corners[place] for place in sorted(places)]
    rows = tuple(
        (
            short_candidate(candidate),
            format_bytes(memory),
            format_rate_short(speed),
            f"{speed / chosen - 1:+.0%}".replace("+0%", "0%").replace("-0%", "0%"),
            kind,
        )
        for memory, speed, candidate, kind in picked
    )
    columns = (
        Column(heading="candidate"),
        Column(heading="memory", numeric=True),
        Column(heading="tokens/s", numeric=True),
        Column(heading="to the choice", numeric=True),
        Column(heading="origin"),
    )
    keys = [candidate.key for _, _, candidate, _ in picked]
    highlighted = keys.index(report.plan.key) if report.plan.key in keys else None
    text = "The frontier: the fastest that fits in so much memory"
    text += f" ({len(picked)} of its {len(corners)} corners):" if len(picked) < len(corners) else ":"
    return Paragraph(text=text), Table(columns=columns, rows=rows, highlighted=highlighted)
