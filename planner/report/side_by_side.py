"""Several plans side by side: one row each, and which is the fastest, the cheapest, the soonest done.

Owns the comparison as records and as a document; printing it is `cli`'s, writing it `app`'s.
"""

from __future__ import annotations

from collections.abc import Callable

from planner.errors import PlannerError
from planner.report.document import Block, Column, Document, Paragraph, Section, Table
from planner.report.forecast import format_money
from planner.report.input import ReportInput
from planner.report.markdown import render_markdown
from planner.report.units import format_count, format_fraction, format_rate_short, format_seconds, one_line, plural
from planner.report.wording import short_candidate
from planner.spec._record import record

_NONE = "–"


@record
class PlannedRow:
    """One plan, or the `error` that ended it instead (then every figure is 0). Money is 0 where no price is known."""

    name: str
    plan_dir: str
    error: str = ""
    exit_code: int = 0
    candidate: str = ""
    device_name: str = ""
    nodes: int = 0
    world_size: int = 0
    tokens_per_s: float = 0.0
    step_time_kind: str = ""
    memory_free_fraction: float = 0.0  # of the usable memory of the worst rank
    memory_kind: str = ""
    currency: str = ""
    cost_per_hour: float = 0.0
    cost_per_billion_tokens: float = 0.0
    training_tokens: float = 0.0
    training_s: float = 0.0  # of the whole job, failures included
    training_cost: float = 0.0


def planned_row(name: str, report: ReportInput) -> PlannedRow:
    """The row of a plan that was made."""
    plan, promise, forecast = report.plan, report.plan.promise, report.forecast
    cluster, world = report.job.cluster, report.plan.candidate.layout.world_size
    hourly = world * cluster.gpu.price_per_hour
    return PlannedRow(
        name=name,
        plan_dir=report.plan_dir,
        candidate=short_candidate(plan.candidate),
        device_name=cluster.gpu.name,
        nodes=-(-world // cluster.gpus_per_node),
        world_size=world,
        tokens_per_s=promise.tokens_per_s,
        step_time_kind=promise.step_time_kind.value,
        memory_free_fraction=1.0 - promise.device_used_bytes / promise.usable_bytes,
        memory_kind=promise.memory_kind.value,
        currency=cluster.gpu.price_currency if hourly else "",
        cost_per_hour=hourly,
        cost_per_billion_tokens=hourly / 3600.0 / promise.tokens_per_s * 1e9 if promise.tokens_per_s else 0.0,
        training_tokens=forecast.tokens if forecast is not None else 0.0,
        training_s=forecast.expected_s if forecast is not None else 0.0,
        training_cost=forecast.cost if forecast is not None else 0.0,
    )


def failed_row(name: str, plan_dir: str, error: PlannerError) -> PlannedRow:
    """The row of a plan that was not made."""
    return PlannedRow(name=name, plan_dir=plan_dir, error=one_line(error.error), exit_code=error.exit_code)


def comparison_blocks(rows: tuple[PlannedRow, ...]) -> tuple[Block, ...]:
    """The table and what stands out in it."""
    table = Table(columns=_COLUMNS, rows=tuple(_cells(row) for row in rows))
    failed = [f"{row.name}: {row.error} (exit code {row.exit_code})." for row in rows if row.error]
    return (table, *(Paragraph(text=text) for text in (*_bests(rows), *failed)))


def render_comparison(rows: tuple[PlannedRow, ...]) -> str:
    """The text of `comparison.md`."""
    planned = sum(not row.error for row in rows)
    document = Document(
        title="Plans side by side",
        subtitle=f"{plural(planned, 'plan')} of {plural(len(rows), 'job and cluster', 'jobs and clusters')}",
        facts=(),
        sections=(Section(title="Comparison", blocks=comparison_blocks(rows)),),
    )
    return render_markdown(document)


_COLUMNS = (
    Column(heading="plan"),
    Column(heading="device"),
    Column(heading="GPUs", numeric=True),
    Column(heading="tokens/s", numeric=True),
    Column(heading="origin"),
    Column(heading="memory free", numeric=True),
    Column(heading="an hour", numeric=True),
    Column(heading="a billion tokens", numeric=True),
    Column(heading="whole training", numeric=True),
    Column(heading="its cost", numeric=True),
    Column(heading="candidate"),
)


def _cells(row: PlannedRow) -> tuple[str, ...]:
    if row.error:
        return (row.name, *[_NONE] * (len(_COLUMNS) - 1))
    money = (row.cost_per_hour, row.cost_per_billion_tokens)
    return (
        row.name,
        row.device_name,
        format_count(row.world_size),
        format_rate_short(row.tokens_per_s),
        row.step_time_kind,
        format_fraction(row.memory_free_fraction),
        *(format_money(amount, row.currency) if row.currency else _NONE for amount in money),
        format_seconds(row.training_s),
        format_money(row.training_cost, row.currency) if row.currency else _NONE,
        row.candidate,
    )


def _bests(rows: tuple[PlannedRow, ...]) -> list[str]:
    """The best of each kind; costs only where all that have one have it in one currency."""
    made = [row for row in rows if not row.error]
    if len(made) < 2:
        return []
    said = [
        _best("fastest", made, lambda row: -row.tokens_per_s),
        _best("soonest done", made, lambda row: row.training_s),
    ]
    priced = [row for row in made if row.currency]
    if priced and len({row.currency for row in priced}) == 1:
        said.append(_best("cheapest token", priced, lambda row: row.cost_per_billion_tokens))
        said.append(_best("cheapest training", priced, lambda row: row.training_cost))
    unknown = [row.name for row in made if not row.currency]
    note = [f"No price is known for: {', '.join(unknown)}; their costs are left out, not guessed."] if unknown else []
    return [". ".join(said) + ".", *note]


def _best(words: str, rows: list[PlannedRow], key: Callable[[PlannedRow], float]) -> str:
    return f"{words[0].upper()}{words[1:]}: {min(rows, key=key).name}"
