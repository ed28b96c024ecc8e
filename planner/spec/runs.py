"""Several trials of one candidate as one: the figures that stand for it wherever a single one is told. Pure.

Two runs of one candidate differ by chance, so neither the luckiest nor the last speaks for it: time is that of all
timed steps together, memory the most that any run showed (one that saved a checkpoint included).
"""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean, median

from planner.spec.estimate import TimeBreakdown
from planner.spec.kinds import Phase
from planner.spec.trial import Diverged, HostOutOfMemory, Measured, Outcome, OutOfMemory, RankReport, TrialRecord

_NORMAL_MAD = 1.4826  # median absolute deviation of a normal distribution -> its standard deviation
_CHECKPOINTING = (Phase.CHECKPOINT_SAVE, Phase.CHECKPOINT_LOAD)
_MOST_OF_RANK = (
    "initialised_bytes",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "device_used_bytes",
    "host_peak_bytes",
    "build_peak_bytes",
    "checkpoint_peak_bytes",
    "skipped_steps",
    "allocator_retries",
)
_MEAN_OF_STEPS = ("forward_s", "backward_s", "optimizer_s")


def one_per_candidate(trials: tuple[TrialRecord, ...]) -> tuple[TrialRecord, ...]:
    """One record for each candidate, in the order of its first trial.

    A candidate that ran stands with all its runs together, under the number of the last of them. What a later trial
    says of its memory, its loss or its checkpoints counts against it; a crash or time-out of a run that was only
    repeated is the machine's accident, and changes nothing.
    """
    by_key: dict[str, list[TrialRecord]] = {}
    for trial in trials:
        by_key.setdefault(trial.key, []).append(trial)
    return tuple(_standing(runs) for runs in by_key.values())


def together(trials: tuple[TrialRecord, ...], key: str) -> tuple[TrialRecord, Measured] | None:
    """All runs of this candidate that came to their end, as one; None where none did."""
    runs = [(trial, trial.outcome) for trial in trials if trial.key == key and isinstance(trial.outcome, Measured)]
    if not runs:
        return None
    last, end = runs[-1]
    alike = [outcome for _, outcome in runs if _are_alike(outcome, end)]
    combined = _combined(alike) if len(alike) > 1 else end
    return replace(last, outcome=combined), combined


def median_and_spread(times_s: tuple[float, ...]) -> tuple[float, float]:
    """The median, and the median absolute deviation x 1.4826 (a standard deviation that outliers do not move)."""
    middle = median(times_s)
    return middle, _NORMAL_MAD * median(abs(seconds - middle) for seconds in times_s)


def _standing(runs: list[TrialRecord]) -> TrialRecord:
    found = together(tuple(runs), runs[-1].key)
    if found is None:
        return runs[-1]
    place = max(place for place, run in enumerate(runs) if isinstance(run.outcome, Measured))
    later = runs[place + 1 :]
    return next((run for run in reversed(later) if _counts_against(run.outcome)), found[0])


def _counts_against(outcome: Outcome) -> bool:
    if isinstance(outcome, OutOfMemory | HostOutOfMemory | Diverged):
        return True
    return getattr(outcome, "phase", None) in _CHECKPOINTING


def _are_alike(one: Measured, other: Measured) -> bool:
    """Whether the figures are of the same kind and the same ranks."""
    kinds = (one.kind, one.step_time_kind, one.breakdown is None) == (
        other.kind,
        other.step_time_kind,
        other.breakdown is None,
    )
    return kinds and [rank.rank for rank in one.ranks] == [rank.rank for rank in other.ranks]


def _combined(runs: list[Measured]) -> Measured:
    """A step put together by an emulation is the mean of the runs, so that its parts are too; a step that ran is the
    median of all timed ones, each as long as its slowest rank."""
    last = runs[-1]
    tokens = last.tokens_per_s * last.step_time_s
    step_time_s, spread_s = median_and_spread(_steps_s(runs))
    if last.breakdown is not None:
        step_time_s = fmean(run.step_time_s for run in runs)
        spread_s = max(spread_s, *(run.step_time_spread_s for run in runs))
    return replace(
        last,
        step_time_s=step_time_s,
        step_time_spread_s=spread_s,
        tokens_per_s=tokens / step_time_s,
        ranks=tuple(_combined_rank(reports) for reports in zip(*(run.ranks for run in runs))),
        breakdown=_mean_breakdown([run.breakdown for run in runs if run.breakdown is not None]),
    )


def _steps_s(runs: list[Measured]) -> tuple[float, ...]:
    if runs[-1].breakdown is not None:
        return tuple(run.step_time_s for run in runs)
    steps_s = [
        tuple(max(times) for times in zip(*(rank.step_times_s for rank in run.ranks))) or (run.step_time_s,)
        for run in runs
    ]
    return tuple(seconds for of_run in steps_s for seconds in of_run)


def _combined_rank(reports: tuple[RankReport, ...]) -> RankReport:
    weights = [max(len(report.step_times_s), 1) for report in reports]
    most = {name: max(getattr(report, name) for report in reports) for name in _MOST_OF_RANK}
    means = {
        name: sum(getattr(report, name) * weight for report, weight in zip(reports, weights)) / sum(weights)
        for name in _MEAN_OF_STEPS
    }
    steps_s = tuple(seconds for report in reports for seconds in report.step_times_s)
    return replace(reports[-1], step_times_s=steps_s, **most, **means)


def _mean_breakdown(parts: list[TimeBreakdown]) -> TimeBreakdown | None:
    if not parts:
        return None
    return TimeBreakdown(
        **{name: fmean(getattr(part, name) for part in parts) for name in TimeBreakdown.__dataclass_fields__}
    )
