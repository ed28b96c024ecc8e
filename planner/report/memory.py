"""Where device memory goes, as stacked bars: each stage at its peak, each phase of a step, each measured rank."""

from __future__ import annotations

from collections.abc import Callable

from planner.report.document import Bar, Bars, Block, Column, Marker, Paragraph, Segment, Table
from planner.report.explain import winning_trial
from planner.report.input import ReportInput
from planner.report.units import format_bytes, format_fraction, plural
from planner.report.wording import MEMORY_LABELS
from planner.spec.estimate import MemoryBreakdown, StageProfile
from planner.spec.kinds import DeviceKind
from planner.spec.trial import Measured, RankReport

_SMALL_FRACTION = 0.25  # bars that fill less of the scale are shown once more, enlarged
_MAX_RANKS = 8  # bars of measured ranks; the ones using most are shown

# Tones of measured parts follow those of the model's parts, so that no colour means two things.
_TONE_ALLOCATED, _TONE_RESERVED, _TONE_OUTSIDE = 9, 10, 11


def memory_blocks(report: ReportInput) -> tuple[Block, ...]:
    """Stages and measured ranks against what is usable, the phases of a step, and what the bounds mean."""
    bars = _estimated_bars(report)
    trial = winning_trial(report)
    if trial is not None:
        ranks = sorted(trial[1].ranks, key=lambda rank: -rank.device_used_bytes)[:_MAX_RANKS]
        bars += [_measured_bar(rank, trial[1], report) for rank in sorted(ranks, key=lambda rank: rank.rank)]
    blocks = _against_usable(report, tuple(bars))
    blocks += _phases(report)
    if trial is not None:
        blocks += _measured_phases(trial[1], report)
    blocks.append(Paragraph(text=_bounds_sentence(report)))
    if report.job.cluster.gpu.device is DeviceKind.CPU:
        words = "On a CPU, device memory is the process's own: resident memory above what it held when the trial began."
        blocks.append(Paragraph(text=words))
    return tuple(blocks)


def _against_usable(report: ReportInput, bars: tuple[Bar, ...]) -> list[Block]:
    usable_bytes = report.plan.promise.usable_bytes
    markers = [Marker(label=f"usable {format_bytes(usable_bytes)}", amount=usable_bytes)]
    headroom = report.job.memory_headroom_fraction
    if headroom > 0:
        label = f"less {format_fraction(headroom)} kept free"
        markers.insert(0, Marker(label=label, amount=usable_bytes * (1 - headroom)))
    scale = max(usable_bytes, *(bar.total for bar in bars)) * 1.02
    longest = max(bar.total for bar in bars)
    if not 0 < longest < _SMALL_FRACTION * scale:
        return [Bars(bars=bars, scale=scale, markers=tuple(markers))]
    return [
        Bars(bars=bars, scale=scale, markers=tuple(markers), has_legends=False),
        Paragraph(text="The same, enlarged:"),
        Bars(bars=bars, scale=longest * 1.02),
    ]


def _estimated_bars(report: ReportInput) -> list[Bar]:
    """A bar for each stage that differs, or for the whole model where there is one stage only."""
    memory, kind = report.plan.estimate.memory, report.plan.estimate.kind
    if len(report.stages) < 2:
        return [_breakdown_bar("by the model", memory.breakdown, str(kind))]
    return [
        _breakdown_bar(f"{_stage_name(report, stage)}, by the model", stage.peak, str(kind))
        for stage in _shown_stages(report)
    ]


def _shown_stages(report: ReportInput) -> list[StageProfile]:
    """Those that differ: where stages stand on several kinds of devices, the first and the last on each."""
    stages = report.stages
    ends = [
        place in (0, len(stages) - 1)
        or stages[place - 1].device != stages[place].device
        or stages[place + 1].device != stages[place].device
        for place in range(len(stages))
    ]
    return [stage for stage, is_end in zip(stages, ends) if is_end or not stage.device]


def _stage_name(report: ReportInput, stage: StageProfile) -> str:
    """`first stage (0)`, `middle stages (1 to 6)`, `last stage (7)`; the middle ones hold at most what the first
    of them does."""
    last = report.plan.candidate.layout.pipeline_parallel_size - 1
    if stage.device:
        return f"stage {stage.index} ({plural(stage.layers, 'layer')} on {stage.device})"
    if stage.index == 0:
        return "first stage (0)"
    if stage.index == last:
        return f"last stage ({last})"
    return f"middle stages (1 to {last - 1}, at most)" if last > 2 else "middle stage (1)"


def _breakdown_bar(label: str, breakdown: MemoryBreakdown, kind: str) -> Bar:
    parts = [(name, float(getattr(breakdown, field)), tone) for tone, (field, name) in enumerate(MEMORY_LABELS)]
    total = sum(amount for _, amount, _ in parts)
    return Bar(label=label, segments=segments(parts, format_bytes), text=f"{format_bytes(total)} ({kind})")


def _phases(report: ReportInput) -> list[Block]:
    """What lives at each moment of a step that can be the peak; cached blocks are left out, for they are free then."""
    if not report.stages:
        return []
    kind = str(report.plan.estimate.kind)
    bars = tuple(
        _breakdown_bar(f"{_stage_name(report, stage)}: {moment}" if len(report.stages) > 1 else moment, held, kind)
        for stage in _shown_stages(report)
        for moment, held in stage.moments
    )
    text = (
        "Through one step, without the blocks that the allocator keeps cached: at the loss all activations live, then "
        "come the first gradients, at the end of the backward pass all gradients, and the optimizer's copies in its "
        "step."
    )
    return [Paragraph(text=text), Bars(bars=bars, scale=max(bar.total for bar in bars) * 1.02)]


def _measured_phases(outcome: Measured, report: ReportInput) -> list[Block]:
    """What each rank of the trial showed, phase by phase."""
    ranks = sorted(outcome.ranks, key=lambda rank: -rank.device_used_bytes)[:_MAX_RANKS]
    headings = ["rank", "while building", "once built", "tensors in a step", "reserved in a step", "whole trial"]
    has_checkpoint = any(rank.checkpoint_peak_bytes for rank in ranks)
    if has_checkpoint:
        headings.append("checkpointing")
    columns = tuple(Column(heading=heading, numeric=True) for heading in headings)
    rows = tuple(
        (
            _rank_name(rank.rank, report),
            format_bytes(rank.build_peak_bytes) if rank.build_peak_bytes else "",
            format_bytes(rank.initialised_bytes),
            format_bytes(rank.peak_allocated_bytes),
            format_bytes(rank.peak_reserved_bytes),
            format_bytes(rank.device_used_bytes),
            *((format_bytes(rank.checkpoint_peak_bytes),) if has_checkpoint else ()),
        )
        for rank in sorted(ranks, key=lambda rank: rank.rank)
    )
    text = f"Phase by phase in the trial ({outcome.kind}; at most, by rank):"
    return [Paragraph(text=text), Table(columns=columns, rows=rows)]


def _bounds_sentence(report: ReportInput) -> str:
    """What the interval is of, beside the figure it can be held against."""
    memory, kind = report.plan.estimate.memory, report.plan.estimate.kind
    needed = memory.device_used_bytes - memory.breakdown.allocator_slack_bytes
    sentence = (
        f"Of this the run cannot do without {format_bytes(needed)}, by the model between "
        f"{format_bytes(memory.low_bytes)} and {format_bytes(memory.high_bytes)} ({kind})."
    )
    if not memory.breakdown.allocator_slack_bytes:
        return sentence
    return (
        f"{sentence} The rest, {format_bytes(memory.breakdown.allocator_slack_bytes)}, are cached blocks that the "
        "allocator gives back when memory is short: they count in what is promised above, not in these bounds."
    )


def _rank_name(rank: int, report: ReportInput) -> str:
    """`8 (stage 1)`: the pipeline is the outermost of DeepSpeed's axes (`PipeModelDataParallelTopology`)."""
    layout = report.plan.candidate.layout
    if layout.pipeline_parallel_size == 1:
        return str(rank)
    return f"{rank} (stage {rank // (layout.data_parallel_size * layout.tensor_parallel_size)})"


def _measured_bar(rank: RankReport, outcome: Measured, report: ReportInput) -> Bar:
    outside = rank.device_used_bytes - rank.peak_reserved_bytes
    parts = [
        ("tensors at the peak", float(rank.peak_allocated_bytes), _TONE_ALLOCATED),
        ("reserved on top", float(rank.peak_reserved_bytes - rank.peak_allocated_bytes), _TONE_RESERVED),
        ("outside the allocator", float(outside), _TONE_OUTSIDE),
    ]
    return Bar(
        label=f"rank {_rank_name(rank.rank, report)}",
        segments=segments(parts, format_bytes),
        text=f"{format_bytes(rank.device_used_bytes)} ({outcome.kind})",
    )


def segments(parts: list[tuple[str, float, int]], render: Callable[[float], str]) -> tuple[Segment, ...]:
    """The parts that are there, with their amounts in words."""
    return tuple(
        Segment(label=label, amount=amount, text=render(amount), tone=tone)
        for label, amount, tone in parts
        if amount > 0
    )
