"""The runner-up and the nearest miss beside the choice, and how the choice stands when the model errs."""

from __future__ import annotations

from planner.report.document import Block, Column, Paragraph, Table
from planner.report.explain import explain_lead, find_trial
from planner.report.input import CandidateRow, NearMiss, ReportInput, Sensitivity
from planner.report.units import (
    format_bytes,
    format_count,
    format_fraction,
    format_rate_short,
    format_seconds,
    plural,
)
from planner.report.wording import MEMORY_LABELS, TIME_LABELS, describe_differences, short_candidate
from planner.spec.kinds import Objective

_WORTH_SAYING = 0.001


def rival_blocks(report: ReportInput) -> tuple[Block, ...]:
    """Each rival in a sentence, then all of them beside the choice, part by part."""
    blocks: list[Block] = [Paragraph(text=explain_lead(report))]
    rows: list[tuple[str, CandidateRow]] = []
    if report.runner_up is not None:
        rows.append(("the runner-up", report.runner_up))
    miss = report.near_miss
    if miss is None and report.candidates is not None:
        why = "every legal candidate fits"
        if report.job.cluster.groups:
            why = "over several kinds of nodes only partitions that fit are looked for"
        blocks.append(Paragraph(text=f"There is no near miss: {why}."))
    if miss is not None:
        blocks.append(Paragraph(text=_miss_sentence(report, miss)))
        if report.runner_up is None or miss.row.key != report.runner_up.key:
            rows.append(("the nearest miss", miss.row))
    return (*blocks, *((_beside(report, rows),) if rows else ()))


def _miss_sentence(report: ReportInput, miss: NearMiss) -> str:
    name, kind = short_candidate(miss.row.candidate), miss.row.estimate.kind
    difference = describe_differences(miss.row.candidate, report.plan.candidate)
    memory = miss.row.estimate.memory
    short = (
        f"it may need {format_bytes(miss.over_bytes)} more device memory than may be used"
        if miss.over_bytes
        else f"it needs {format_bytes(memory.host_bytes)} of {format_bytes(memory.host_usable_bytes)} host memory"
    )
    rate = miss.row.estimate.tokens_per_s / report.plan.promise.tokens_per_s - 1
    if miss.is_faster:
        speed = f"would be {format_fraction(rate)} faster than the choice by the model"
        return f"The nearest miss, {name}, {speed}, but {short} ({kind}): {difference}."
    return f"The nearest miss, {name}, would not win if it fitted; {short} ({kind})."


def _beside(report: ReportInput, rivals: list[tuple[str, CandidateRow]]) -> Table:
    estimates = [report.plan.estimate, *(row.estimate for _, row in rivals)]
    names = [short_candidate(report.plan.candidate), *(short_candidate(row.candidate) for _, row in rivals)]
    rows: list[tuple[str, ...]] = [("candidate", *names)]
    tried = [find_trial(report, key) for key in (report.plan.key, *(row.key for _, row in rivals))]
    if any(trial is not None for trial in tried):
        figures = [
            f"{format_seconds(trial[1].step_time_s)} ({trial[1].step_time_kind})" if trial is not None else "not tried"
            for trial in tried
        ]
        rows.append(("one step, in its trial", *figures))
    rows.append(("one step, by the model", *(f"{format_seconds(one.step_time_s)} ({one.kind})" for one in estimates)))
    for field, label in TIME_LABELS:
        amounts = [getattr(one.time, field) for one in estimates]
        if any(amounts):
            rows.append((f"–\N{NO-BREAK SPACE}{label}", *(format_seconds(amount) for amount in amounts)))
    rows.append(
        ("device memory, by the model", *(_memory(one.memory.device_used_bytes, one.kind) for one in estimates))
    )
    for field, label in MEMORY_LABELS:
        sizes = [getattr(one.memory.breakdown, field) for one in estimates]
        if any(sizes):
            rows.append((f"–\N{NO-BREAK SPACE}{label}", *(format_bytes(size) for size in sizes)))
    columns = (
        Column(heading=""),
        Column(heading="the choice"),
        *(Column(heading=title) for title, _ in rivals),
    )
    return Table(columns=columns, rows=tuple(rows))


def _memory(size: int, kind: object) -> str:
    return f"{format_bytes(size)} ({kind})"


def doubt_blocks(report: ReportInput) -> tuple[Block, ...]:
    """How wrong the model has to be before another candidate wins."""
    doubt = report.sensitivity
    if doubt is None:
        return ()
    blocks: list[Block] = [Paragraph(text=text) for text in explain_doubt(report, doubt)]
    if doubt.cases:
        columns = (
            Column(heading="if"),
            Column(heading="the choice would be"),
            Column(heading="tokens/s then", numeric=True),
            Column(heading="the choice loses", numeric=True),
        )
        rows = tuple(
            (
                case.change,
                "the same" if case.best.key == report.plan.key else short_candidate(case.best.candidate),
                format_rate_short(case.best.estimate.tokens_per_s),
                format_fraction(case.loss_fraction) if case.loss_fraction >= _WORTH_SAYING else "nothing",
            )
            for case in doubt.cases
        )
        alike = "all that was not tried alike" if report.trials else "all candidates alike"
        blocks.append(Paragraph(text=f"If the model erred for {alike} ({report.plan.estimate.kind}):"))
        blocks.append(Table(columns=columns, rows=rows))
    return tuple(blocks)


def explain_doubt(report: ReportInput, doubt: Sensitivity) -> tuple[str, ...]:
    """The rival nobody tried, how many are close, and how well the model did where it could be held against trials."""
    said = []
    tried = bool(report.trials)
    if doubt.rival is not None:
        what = "of those not tried" if tried else "of the others"
        lead = doubt.lead_fraction
        name, kind = short_candidate(doubt.rival.candidate), doubt.rival.estimate.kind
        if report.job.objective is Objective.FEWEST_GPUS and lead > 1:
            said.append(f"The best {what}, {name}, takes more devices ({kind}).")
        elif lead >= _WORTH_SAYING:
            said.append(
                f"The best {what}, {name}, would have to be {format_fraction(lead)} better than the model says to win "
                f"({kind})."
            )
        elif lead > -_WORTH_SAYING:
            said.append(f"The best {what}, {name}, is as good by the model ({kind}): either would do.")
        else:
            said.append(
                f"By the model the best {what}, {name}, is {format_fraction(-lead)} better than the choice ({kind}): "
                "the search did not think it likely enough to win to try it."
            )
    else:
        said.append(
            "There is no other candidate that fits and was not tried: the model's error cannot change the choice."
        )
    close = [f"{format_count(count)} within {format_fraction(share)}" for share, count in doubt.within if count]
    if close:
        what = "Not tried, but near or above the choice by the model" if tried else "Near the choice by the model"
        said.append(f"{what}: {', '.join(close)}.")
    if doubt.residual_fraction is not None:
        num = plural(len({one.key for one in report.trials if find_trial(report, one.key)}), "tried candidate")
        said.append(
            f"Corrected by {num}, the model misses their step times by {format_fraction(doubt.residual_fraction)} "
            "(one robust standard deviation; fitted)."
        )
    elif not tried:
        said.append(
            "No trial corrected the model's step times, so the table says what would become of the choice if it erred."
        )
    return tuple(said)
