"""The pipeline schedule of the chosen split: 1F1B drawn with the model's times, many alike micro-batches elided.

The order is DeepSpeed's `TrainSchedule` (runtime/pipe/schedule.py): stage s of p runs min(m, p - 1 - s) forward passes
ahead, then one backward for each further forward, then what is left; a pass starts when its stage is free and its input
is there. Sending takes no time in the drawing. Pure.
"""

from __future__ import annotations

from planner.report.document import Block, Paragraph, Pass, Schedule, ScheduleCell, ScheduleRow
from planner.report.input import ReportInput
from planner.report.units import format_count, format_fraction, format_seconds, plural
from planner.spec._record import record
from planner.spec.estimate import StageProfile

_MOST_MICRO_BATCHES = 12  # drawn; the middle ones of more are one cell
_MOST_STAGES = 10  # drawn; of more, the first and the last ones
ELIDED = "…"


@record
class _Work:
    """One pass of one micro-batch (its place among those drawn) on one stage."""

    stage: int
    place: int
    kind: Pass
    start_s: float
    end_s: float


def schedule_blocks(report: ReportInput) -> tuple[Block, ...]:
    """What the drawing shows in a sentence, and the drawing; nothing without the stages' times."""
    if not report.stages:
        return ()
    candidate, estimate = report.plan.candidate, report.plan.estimate
    m, p = candidate.batch.gradient_accumulation_steps, candidate.layout.pipeline_parallel_size
    labels = micro_batch_labels(m, p)
    times = _stage_times(report.stages, candidate.layout.stage_layers, p)
    work = simulate(times, len(labels))
    busy_end = max(one.end_s for one in work)
    tail_s = (estimate.time.data_parallel_s + estimate.time.optimizer_s) / m * len(labels)
    schedule = Schedule(
        rows=_rows(work, labels, num_stages=p, busy_end=busy_end, tail_s=tail_s),
        span=f"{format_seconds(estimate.step_time_s)} a step ({estimate.kind})",
    )
    return Paragraph(text=_sentence(report, m, p, drawn=len(labels))), schedule


def micro_batch_labels(num_micro_batches: int, num_stages: int) -> tuple[str, ...]:
    """What is drawn: all micro-batches, or the first and the last ones with one cell for all between."""
    most = max(_MOST_MICRO_BATCHES, min(2 * num_stages + 2, 2 * _MOST_MICRO_BATCHES))
    if num_micro_batches <= most:
        return tuple(str(number) for number in range(1, num_micro_batches + 1))
    first = (most - 1 + 1) // 2
    last = most - 1 - first
    ends = range(num_micro_batches - last + 1, num_micro_batches + 1)
    return (*(str(number) for number in range(1, first + 1)), ELIDED, *(str(number) for number in ends))


def simulate(times: list[tuple[float, float]], num_micro_batches: int) -> list[_Work]:
    """Every pass with its start and end. `times`: forward and backward seconds of each stage."""
    orders = [_order(stage, len(times), num_micro_batches) for stage in range(len(times))]
    ends: dict[tuple[int, int, Pass], float] = {}
    free, done, work = [0.0] * len(times), [0] * len(times), list[_Work]()
    while any(done[stage] < len(order) for stage, order in enumerate(orders)):
        for stage, order in enumerate(orders):
            while done[stage] < len(order):
                kind, place = order[done[stage]]
                ready = _ready(stage, place, kind, ends=ends, last=len(times) - 1)
                if ready is None:
                    break
                start = max(free[stage], ready)
                end = start + times[stage][kind is Pass.BACKWARD]
                ends[stage, place, kind] = free[stage] = end
                done[stage] += 1
                work.append(_Work(stage=stage, place=place, kind=kind, start_s=start, end_s=end))
    return work


def _order(stage: int, num_stages: int, num_micro_batches: int) -> list[tuple[Pass, int]]:
    ahead = min(num_micro_batches, num_stages - 1 - stage)
    order = [(Pass.FORWARD, place) for place in range(ahead)]
    for place in range(num_micro_batches - ahead):
        order += [(Pass.FORWARD, place + ahead), (Pass.BACKWARD, place)]
    return [*order, *((Pass.BACKWARD, place) for place in range(num_micro_batches - ahead, num_micro_batches))]


def _ready(stage: int, place: int, kind: Pass, *, ends: dict[tuple[int, int, Pass], float], last: int) -> float | None:
    """When the input of this pass is there; None: not yet known."""
    if kind is Pass.FORWARD:
        return 0.0 if stage == 0 else ends.get((stage - 1, place, Pass.FORWARD))
    if stage == last:
        return ends.get((stage, place, Pass.FORWARD))
    return ends.get((stage + 1, place, Pass.BACKWARD))


def _stage_times(
    stages: tuple[StageProfile, ...], stage_layers: tuple[int, ...], num_stages: int
) -> list[tuple[float, float]]:
    """Seconds of each stage: those of the first and the last are known, the others go by their layers."""
    if len(stages) == num_stages:
        return [(stage.forward_s, stage.backward_s) for stage in stages]
    inner = stages[min(1, len(stages) - 1)]
    shares = [layers / inner.layers if inner.layers else 1.0 for layers in stage_layers or (1,) * num_stages]
    middle = [(inner.forward_s * share, inner.backward_s * share) for share in shares[1:-1]]
    first, last = stages[0], stages[-1]
    return [(first.forward_s, first.backward_s), *middle, (last.forward_s, last.backward_s)]


def _rows(
    work: list[_Work], labels: tuple[str, ...], *, num_stages: int, busy_end: float, tail_s: float
) -> tuple[ScheduleRow, ...]:
    whole = busy_end + tail_s
    shown = list(range(num_stages))
    if num_stages > _MOST_STAGES:
        shown = [*shown[: _MOST_STAGES // 2], *shown[-(_MOST_STAGES // 2) :]]
    rows = []
    for stage in shown:
        cells = [_cell(one, labels, whole) for one in work if one.stage == stage]
        if tail_s > 0:
            text = "reducing gradients and the optimizer step"
            cells.append(ScheduleCell(start=busy_end / whole, end=1.0, kind=Pass.UPDATE, label="", text=text))
        rows.append(ScheduleRow(label=f"stage {stage}" if num_stages > 1 else "every rank", cells=tuple(cells)))
    return tuple(rows)


def _cell(one: _Work, labels: tuple[str, ...], whole: float) -> ScheduleCell:
    label = labels[one.place]
    named = "many micro-batches alike" if label == ELIDED else f"micro-batch {label}"
    text = f"{one.kind} pass of {named}: {format_seconds(one.end_s - one.start_s)}"
    return ScheduleCell(start=one.start_s / whole, end=one.end_s / whole, kind=one.kind, label=label, text=text)


def _sentence(report: ReportInput, m: int, p: int, *, drawn: int) -> str:
    estimate = report.plan.estimate
    each = plural(m, "micro-batch", "micro-batches")
    elided = f" Only the first and the last are drawn; {ELIDED} stands for {format_count(m - drawn + 1)} alike."
    elided = elided if drawn < m else ""
    if p == 1:
        turns = f"{each} a step one after the other" if m > 1 else "one micro-batch a step"
        return (
            f"There is no pipeline: every rank runs the whole depth of the model, {turns}, then reduces gradients and "
            f"updates ({estimate.kind}).{elided}"
        )
    layers = report.plan.candidate.layout.stage_layers
    share = estimate.time.bubble_s / estimate.step_time_s if estimate.step_time_s else 0.0
    skipped = f" Of {p} stages the first and last {_MOST_STAGES // 2} are drawn." if p > _MOST_STAGES else ""
    return (
        f"{p} stages ({_layers_words(layers)}) work on {each} a step, one forward and one backward pass in "
        f"turn (1F1B). Stages wait {format_fraction(share)} of the step: the bubble ({estimate.kind}). Drawn with the "
        f"model's times.{skipped}{elided}"
    )


def _layers_words(layers: tuple[int, ...]) -> str:
    """`10 layers each`, `15 or 16 layers each`, `6 to 15 layers each`."""
    if len(set(layers)) < 2:
        return f"{plural(layers[0], 'layer')} each" if layers else "one a rank"
    word = "or" if max(layers) - min(layers) == 1 else "to"
    return f"{min(layers)} {word} {max(layers)} layers each"
