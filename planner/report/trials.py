"""The search as it went: what each trial reached, the best so far, every trial in figures, the ends of the logs."""

from __future__ import annotations

from planner.report.candidates import speed_ticks
from planner.report.document import Block, Column, History, HistoryStep, Log, Paragraph, PointState, Table
from planner.report.input import ReportInput
from planner.report.units import format_bytes, format_rate_short, format_seconds, format_tokens_per_s
from planner.report.wording import outcome_sentence, outcome_word, short_candidate
from planner.spec.kinds import Objective, Provenance
from planner.spec.runs import one_per_candidate, together
from planner.spec.trial import Measured, TrialRecord

_HEADROOM = 1.08  # above the fastest trial


def search_blocks(report: ReportInput) -> tuple[Block, ...]:
    """Why which trials ran, the history, and the table of all trials."""
    blocks: list[Block] = []
    if report.plan.search.trials_note:
        note = report.plan.search.trials_note
        blocks.append(Paragraph(text=note[0].upper() + note[1:] + ("" if note.endswith(".") else ".")))
    if not report.trials:
        return tuple(blocks)
    if len(report.trials) > 1:
        blocks.append(_history(report))
    numbers = [trial.number for trial in report.trials]
    chosen = report.plan.trial_number
    table = Table(
        columns=_TRIAL_COLUMNS,
        rows=tuple(_trial_row(trial, report) for trial in report.trials),
        highlighted=numbers.index(chosen) if chosen in numbers else None,
    )
    return (*blocks, table, *_repeated(report), *_failures(report))


def log_blocks(report: ReportInput) -> tuple[Block, ...]:
    """The end of every trial's log that is there."""
    trials = {trial.number: trial for trial in report.trials}
    return tuple(
        Log(title=_log_title(trials[log.number], is_cut=log.is_cut), text=log.text)
        for log in report.logs
        if log.number in trials
    )


def _log_title(trial: TrialRecord, *, is_cut: bool) -> str:
    name = f"trial {trial.number}, {short_candidate(trial.candidate)}: {outcome_word(trial.outcome)}"
    place = f"logs/{trial.log_name}" if trial.log_name else "the outcome"
    return f"{name} ({'the end of ' if is_cut else ''}{place})"


def _history(report: ReportInput) -> History:
    """Trials in the order they ended. What the objective ranks by is drawn: tokens/s, for cost per device."""
    figures = [_figure(trial, report) for trial in report.trials]
    top = max((figure for figure in figures if figure is not None), default=0.0) * _HEADROOM or 1.0
    steps = list[HistoryStep]()
    limit = report.plan.promise.usable_bytes * (1 - report.job.memory_headroom_fraction)
    for place, (trial, figure) in enumerate(zip(report.trials, figures), start=1):
        best = _best(report.trials[:place], report, limit_bytes=limit)
        steps.append(
            HistoryStep(
                number=trial.number,
                name=short_candidate(trial.candidate),
                state=_state(trial, report),
                y=figure / top if figure is not None else None,
                best_y=best / top if best is not None else None,
                text=_figure_text(trial),
            )
        )
    per = "tokens/s per device" if _is_about_cost(report) else "tokens/s"
    return History(steps=tuple(steps), y_title=per, y_ticks=speed_ticks(top))


def _best(trials: tuple[TrialRecord, ...], report: ReportInput, *, limit_bytes: float) -> float | None:
    """What the best candidate so far reached, all its runs together: a second run may take some of it back."""
    standing = [(trial, trial.outcome) for trial in one_per_candidate(trials)]
    fitting = [trial for trial, end in standing if isinstance(end, Measured) and end.device_used_bytes <= limit_bytes]
    return max((figure for trial in fitting if (figure := _figure(trial, report)) is not None), default=None)


def _repeated(report: ReportInput) -> tuple[Block, ...]:
    """Which rows are runs of one candidate, and what counts for it everywhere else."""
    ran = [trial for trial in report.trials if isinstance(trial.outcome, Measured)]
    said = []
    for key in dict.fromkeys(trial.key for trial in ran):
        numbers = [str(trial.number) for trial in ran if trial.key == key]
        found = together(report.trials, key)
        if len(numbers) < 2 or found is None:
            continue
        measured = found[1]
        how = "mean of the runs" if measured.breakdown is not None else "median of all their steps"
        said.append(
            Paragraph(
                text=f"Trials {', '.join(numbers[:-1])} and {numbers[-1]} are runs of one candidate, "
                f"{short_candidate(found[0].candidate)}. Everywhere else it stands with the {how}, "
                f"{format_seconds(measured.step_time_s)} ± {format_seconds(measured.step_time_spread_s)}, and the most "
                f"memory that any of them showed, {format_bytes(measured.device_used_bytes)} ({measured.kind})."
            )
        )
    return tuple(said)


def _figure(trial: TrialRecord, report: ReportInput) -> float | None:
    if not isinstance(trial.outcome, Measured):
        return None
    devices = trial.candidate.layout.world_size if _is_about_cost(report) else 1
    return trial.outcome.tokens_per_s / devices


def _is_about_cost(report: ReportInput) -> bool:
    return report.job.objective in (Objective.COST, Objective.DEADLINE)


def _figure_text(trial: TrialRecord) -> str:
    if not isinstance(trial.outcome, Measured):
        return outcome_sentence(trial.outcome)
    return f"{format_tokens_per_s(trial.outcome.tokens_per_s)} ({trial.outcome.step_time_kind})"


def _state(trial: TrialRecord, report: ReportInput) -> PointState:
    if trial.number == report.plan.trial_number:
        return PointState.CHOSEN
    if not isinstance(trial.outcome, Measured):
        return PointState.FAILED
    return PointState.EMULATED if trial.outcome.kind is Provenance.EMULATED else PointState.MEASURED


_TRIAL_COLUMNS = (
    Column(heading="trial", numeric=True),
    Column(heading="candidate"),
    Column(heading="outcome"),
    Column(heading="step", numeric=True),
    Column(heading="spread", numeric=True),
    Column(heading="by the model", numeric=True),
    Column(heading="tokens/s", numeric=True),
    Column(heading="memory", numeric=True),
    Column(heading="took", numeric=True),
)


def _trial_row(trial: TrialRecord, report: ReportInput) -> tuple[str, ...]:
    outcome = trial.outcome
    estimate = next((row.estimate for row in report.tried if row.key == trial.key), None)
    predicted = f"{format_seconds(estimate.step_time_s)} ({estimate.kind})" if estimate is not None else ""
    figures = ("", "", "", "")
    if isinstance(outcome, Measured):
        figures = (
            format_seconds(outcome.step_time_s),
            f"± {format_seconds(outcome.step_time_spread_s)}",
            format_rate_short(outcome.tokens_per_s),
            format_bytes(outcome.device_used_bytes),
        )
    named = (str(trial.number), short_candidate(trial.candidate), outcome_word(outcome))
    return (*named, *figures[:2], predicted, *figures[2:], format_seconds(trial.duration_s))


def _failures(report: ReportInput) -> tuple[Block, ...]:
    failed = tuple(
        (str(trial.number), outcome_sentence(trial.outcome), f"logs/{trial.log_name}" if trial.log_name else "")
        for trial in report.trials
        if not isinstance(trial.outcome, Measured)
    )
    columns = (
        Column(heading="trial", numeric=True),
        Column(heading="how it ended"),
        Column(heading="log", code=True),
    )
    return (Table(columns=columns, rows=failed),) if failed else ()
