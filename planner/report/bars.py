"""Where memory and time go, as stacked bars: what the model says beside what was measured."""

from __future__ import annotations

from collections.abc import Callable

from planner.report.document import Bar, Bars, Block, Marker, Paragraph, Segment
from planner.report.explain import winning_trial
from planner.report.input import ReportInput
from planner.report.units import format_bytes, format_fraction, format_seconds
from planner.report.wording import MEMORY_LABELS, TIME_LABELS
from planner.spec.kinds import DeviceKind
from planner.spec.trial import Measured, RankReport

_SMALL_FRACTION = 0.25  # bars that fill less of the scale are shown once more, enlarged
_MAX_RANKS = 8  # bars of measured ranks; the ones using most are shown

# Tones of measured parts follow those of the model's parts, so that no colour means two things.
_TONE_ALLOCATED, _TONE_RESERVED, _TONE_OUTSIDE = 9, 10, 11
_TONE_FORWARD, _TONE_BACKWARD, _TONE_STEP_REST = 9, 10, 11
_TONE_OPTIMIZER = 6  # as the model's optimizer step


def memory_blocks(report: ReportInput) -> tuple[Block, ...]:
    """The worst rank by the model and each measured rank, against what is usable."""
    memory = report.plan.estimate.memory
    bars = [_estimated_memory_bar(report)]
    trial = winning_trial(report)
    if trial is not None:
        ranks = sorted(trial[1].ranks, key=lambda rank: -rank.device_used_bytes)[:_MAX_RANKS]
        bars += [_measured_memory_bar(rank, trial[1]) for rank in sorted(ranks, key=lambda rank: rank.rank)]
    usable_bytes = report.plan.promise.usable_bytes
    markers = [Marker(label=f"usable {format_bytes(usable_bytes)}", amount=usable_bytes)]
    headroom = report.job.memory_headroom_fraction
    if headroom > 0:
        label = f"less {format_fraction(headroom)} kept free"
        markers.insert(0, Marker(label=label, amount=usable_bytes * (1 - headroom)))
    scale = max(usable_bytes, *(bar.total for bar in bars)) * 1.02
    blocks: list[Block] = [Bars(bars=tuple(bars), scale=scale, markers=tuple(markers))]
    longest = max(bar.total for bar in bars)
    if 0 < longest < _SMALL_FRACTION * scale:
        blocks = [
            Bars(bars=tuple(bars), scale=scale, markers=tuple(markers), has_legends=False),
            Paragraph(text="The same, enlarged:"),
            Bars(bars=tuple(bars), scale=longest * 1.02),
        ]
    bounds = (
        f"What the run cannot do without lies between {format_bytes(memory.low_bytes)} and "
        f"{format_bytes(memory.high_bytes)} ({report.plan.estimate.kind})."
    )
    blocks.append(Paragraph(text=bounds))
    if report.job.cluster.gpu.device is DeviceKind.CPU:
        words = "On a CPU, device memory is the process's own: resident memory above what it held when the trial began."
        blocks.append(Paragraph(text=words))
    return tuple(blocks)


def time_blocks(report: ReportInput) -> tuple[Block, ...]:
    """One optimizer step by the model and, where a trial ran, as measured on the slowest rank."""
    estimate = report.plan.estimate
    parts = [(label, getattr(estimate.time, field)) for field, label in TIME_LABELS]
    bars = [
        Bar(
            label="model",
            segments=_segments([(label, amount, tone) for tone, (label, amount) in enumerate(parts)], format_seconds),
            text=f"{format_seconds(estimate.step_time_s)} ({estimate.kind})",
        )
    ]
    trial = winning_trial(report)
    if trial is not None:
        bars.append(_measured_time_bar(trial[1]))
    scale = max(bar.total for bar in bars)
    return (Bars(bars=tuple(bars), scale=scale * 1.02),) if scale > 0 else ()


def _estimated_memory_bar(report: ReportInput) -> Bar:
    memory, kind = report.plan.estimate.memory, report.plan.estimate.kind
    parts = [
        (label, float(getattr(memory.breakdown, field)), tone) for tone, (field, label) in enumerate(MEMORY_LABELS)
    ]
    stages = report.plan.candidate.layout.pipeline_parallel_size
    return Bar(
        label=f"model, stage {memory.worst_stage}" if stages > 1 else "model",
        segments=_segments(parts, format_bytes),
        text=f"{format_bytes(memory.device_used_bytes)} ({kind})",
    )


def _measured_memory_bar(rank: RankReport, outcome: Measured) -> Bar:
    outside = rank.device_used_bytes - rank.peak_reserved_bytes
    parts = [
        ("tensors at the peak", float(rank.peak_allocated_bytes), _TONE_ALLOCATED),
        ("reserved on top", float(rank.peak_reserved_bytes - rank.peak_allocated_bytes), _TONE_RESERVED),
        ("outside the allocator", float(outside), _TONE_OUTSIDE),
    ]
    return Bar(
        label=f"rank {rank.rank}",
        segments=_segments(parts, format_bytes),
        text=f"{format_bytes(rank.device_used_bytes)} ({outcome.kind})",
    )


def _measured_time_bar(outcome: Measured) -> Bar:
    slowest = max(outcome.ranks, key=lambda rank: sum(rank.step_times_s))
    named_s = slowest.forward_s + slowest.backward_s + slowest.optimizer_s
    parts = [
        ("forward", slowest.forward_s, _TONE_FORWARD),
        ("backward", slowest.backward_s, _TONE_BACKWARD),
        ("optimizer step", slowest.optimizer_s, _TONE_OPTIMIZER),
        ("the rest of the step" if named_s else "the whole step", outcome.step_time_s - named_s, _TONE_STEP_REST),
    ]
    return Bar(
        label=f"rank {slowest.rank}",
        segments=_segments(parts, format_seconds),
        text=f"{format_seconds(outcome.step_time_s)} ({outcome.kind})",
    )


def _segments(parts: list[tuple[str, float, int]], render: Callable[[float], str]) -> tuple[Segment, ...]:
    return tuple(
        Segment(label=label, amount=amount, text=render(amount), tone=tone)
        for label, amount, tone in parts
        if amount > 0
    )
