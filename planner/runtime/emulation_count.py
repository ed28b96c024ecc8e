"""What the marks and calls of recorded steps amount to: times without emulation's own cost, equal calls counted.

Pure but for asking the timeline how far apart two marks are. Owns what happens in each micro-batch and what once in a
step. A plain engine enters `FORWARD` for every micro-batch; a pipeline's engine does them all in `TRAIN_BATCH` and
enters `OPTIMIZER_STEP` when the last is done.
"""

from __future__ import annotations

from collections import Counter
from statistics import fmean, median
from typing import Any

from planner.runtime.emulation_record import Call, CallKind, Recorder, Section, Timeline
from planner.spec import Phase
from planner.spec._record import record
from planner.spec.traffic import CollectiveCount, EmulationReport

_Key = tuple[CallKind, Phase]


@record
class _StepTimes:
    micro_batch_s: float
    step_end_s: float
    own_s: float


def emulation_report(
    recorder: Recorder, *, rank: int, world_size: int, micro_batches: int, num_steps: int
) -> EmulationReport:
    """The last `num_steps` steps as one report: medians of their times, the calls of the last."""
    timeline, steps = recorder.timeline, recorder.steps()[-num_steps:]
    times = [_times(sections, end, timeline=timeline, micro_batches=micro_batches) for sections, end in steps]
    sections, end = steps[-1]
    groups, collectives = _counted(sections, end, timeline=timeline, micro_batches=micro_batches)
    return EmulationReport(
        rank=rank,
        world_size=world_size,
        micro_batches=micro_batches,
        micro_batch_s=median(step.micro_batch_s for step in times),
        step_end_s=median(step.step_end_s for step in times),
        own_s=median(step.own_s for step in times),
        groups=groups,
        collectives=collectives,
    )


def ordered_calls(recorder: Recorder) -> tuple[CallKind, ...]:
    """The collectives of the last step, in the order in which this rank started them."""
    sections, _end = recorder.steps()[-1]
    return tuple(call.what for section in sections for call in section.calls)


def own_cost_s(recorder: Recorder) -> tuple[float, ...]:
    """Per step so far, what emulating took of the main stream."""
    return tuple(sum(_own_s(part, recorder.timeline) for part in sections) for sections, _ in recorder.steps())


def _own_s(section: Section, timeline: Timeline) -> float:
    return sum(timeline.seconds(call.began, call.ended) for call in section.calls if call.ended is not None)


def _times(sections: list[Section], end: Any, *, timeline: Timeline, micro_batches: int) -> _StepTimes:
    stops = [section.began for section in sections[1:]] + [end]
    own = [_own_s(section, timeline) for section in sections]
    net = [timeline.seconds(part.began, stop) - cost for part, stop, cost in zip(sections, stops, own)]
    repeated = [[net[index] for index in part] for part in _micro_batch_parts(sections)]
    if len(repeated) > 1:  # the last one also reduces gradients and takes the step
        micro_batch_s = fmean(sum(part) for part in repeated[:-1])
        step_end_s = max(0.0, sum(repeated[-1]) - micro_batch_s)
    else:
        is_end = [section.phase is Phase.OPTIMIZER_STEP for section in sections]
        step_end_s = sum(seconds for seconds, ends in zip(net, is_end) if ends)
        micro_batch_s = (sum(net) - step_end_s) / micro_batches
    return _StepTimes(micro_batch_s=micro_batch_s, step_end_s=step_end_s, own_s=sum(own))


def _micro_batch_parts(sections: list[Section]) -> list[list[int]]:
    """Indexes of the sections of each micro-batch; one part where they cannot be told apart."""
    parts: list[list[int]] = []
    for index, section in enumerate(sections):
        if section.phase is Phase.FORWARD or not parts:
            parts.append([])
        parts[-1].append(index)
    return parts


def _counted(
    sections: list[Section], end: Any, *, timeline: Timeline, micro_batches: int
) -> tuple[tuple[tuple[int, ...], ...], tuple[CollectiveCount, ...]]:
    overlaps = _overlaps(sections, end, timeline)
    each, once = _split(sections, micro_batches)
    groups = tuple(dict.fromkeys(call.ranks for call, _ in overlaps))
    counts = tuple(
        CollectiveCount(
            kind=call.kind,
            dtype=call.dtype,
            num_bytes=call.num_bytes,
            group=groups.index(call.ranks),
            phase=phase,
            count=count,
            each_micro_batch=is_each,
            overlap_s=overlaps[call, phase],
        )
        for counter, is_each in ((each, True), (once, False))
        for (call, phase), count in counter.items()
        if count
    )
    return groups, counts


def _overlaps(sections: list[Section], end: Any, timeline: Timeline) -> dict[_Key, float]:
    """Mean time from the start of each kind of call to what waits for it, in order of first appearance."""
    found: dict[_Key, list[float]] = {}
    stops = [section.began for section in sections[1:]] + [end]
    for section, stop in zip(sections, stops):
        for call in section.calls:
            found.setdefault((call.what, section.phase), []).append(_overlap_s(call, stop, timeline))
    return {key: fmean(seconds) for key, seconds in found.items()}


def _overlap_s(call: Call, section_end: Any, timeline: Timeline) -> float:
    if call.waited is None:
        return max(0.0, timeline.seconds(call.ended or call.began, section_end))
    return max(0.0, timeline.seconds(call.ended or call.began, call.waited))


def _split(sections: list[Section], micro_batches: int) -> tuple[Counter[_Key], Counter[_Key]]:
    """What happens in each micro-batch, and what once in the step beside it."""
    parts = [
        Counter((call.what, sections[index].phase) for index in part for call in sections[index].calls)
        for part in _micro_batch_parts(sections)
    ]
    if len(parts) > 1:
        first, last = parts[0], parts[-1]
        return first & last, (first | last) - (first & last)
    (whole,) = parts
    each = Counter({key: count // micro_batches for key, count in whole.items() if key[1] is not Phase.OPTIMIZER_STEP})
    once = whole - Counter({key: count * micro_batches for key, count in each.items()})
    return each, once
