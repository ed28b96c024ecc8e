"""Candidates, outcomes and provenance in words; pure, shared by the report and the terminal."""

from __future__ import annotations

import re
from itertools import groupby

from planner.report.units import format_bytes, format_seconds, one_line, plural
from planner.spec.candidate import Candidate, partition_layers
from planner.spec.estimate import TimeBreakdown
from planner.spec.kinds import (
    ActivationCheckpointing,
    Attention,
    CheckpointingKind,
    Objective,
    OffloadDevice,
    Phase,
    Provenance,
)
from planner.spec.trial import (
    Crashed,
    Diverged,
    HostOutOfMemory,
    Measured,
    Outcome,
    OutOfMemory,
    Pruned,
    TimedOut,
)
from planner.spec.tuning import TUNING_VALUES

_REASON_WIDTH = 60
# The last line of a traceback, with its rank or time before it or not: `torch.cuda.CudaError: …`, `error: …`.
_ERROR_LINE = re.compile(r".{0,40}?\b([\w.]*(?:Error|Exception)|error|fatal)\b: \S", re.IGNORECASE)

PROVENANCE_SENTENCES: dict[Provenance, str] = {
    Provenance.MEASURED: "seen in a real run of this very configuration",
    Provenance.EMULATED: "seen on a process that stood in for one rank of the cluster",
    Provenance.FITTED: "from the model, corrected by measurements of other configurations",
    Provenance.COMPUTED: "from the model and data sheets alone",
}

OBJECTIVE_SUPERLATIVES: dict[Objective, str] = {
    Objective.THROUGHPUT: "the fastest",
    Objective.COST: "the cheapest per token",
    Objective.FEWEST_GPUS: "the one with the fewest GPUs",
    Objective.DEADLINE: "the cheapest that is done in time",
}

MEMORY_LABELS: tuple[tuple[str, str], ...] = (
    ("parameters_bytes", "parameters"),
    ("gradients_bytes", "gradients"),
    ("optimizer_bytes", "optimizer states"),
    ("activations_bytes", "activations"),
    ("buffers_bytes", "buffers"),
    ("allocator_slack_bytes", "slack of the allocator"),
    ("communication_bytes", "communication"),
    ("context_bytes", "device context"),
)

# A setting of `Tuning` that is not the default, in words.
_SETTING_WORDS = {
    "torch_compile": "compiled ({})",
    "cross_entropy": "{} loss",
    "optimizer_kernel": "{} optimizer kernel",
    "allocator": "allocator {}",
    "overlap_comm": "overlap_comm {}",
    "grad_accum_dtype": "gradients accumulated in {}",
    "zero_hpz_partition_size": "hpZ over {} ranks",
    "reduce_bucket_size": "reduce bucket {}",
    "allgather_bucket_size": "all-gather bucket {}",
    "stage3_prefetch_bucket_size": "prefetch bucket {}",
    "stage3_max_live_parameters": "at most {} live parameters",
    "stage3_param_persistence_threshold": "parameters below {} kept whole",
}

TIME_LABELS: tuple[tuple[str, str], ...] = (
    ("compute_s", "compute"),
    ("recompute_s", "recomputation"),
    ("tensor_parallel_s", "tensor-parallel communication"),
    ("data_parallel_s", "data-parallel communication"),
    ("pipeline_s", "sending between stages"),
    ("bubble_s", "pipeline bubble"),
    ("optimizer_s", "optimizer step"),
    ("offload_s", "offload transfers"),
    ("host_s", "host overhead"),
)


def describe_candidate(candidate: Candidate) -> str:
    """`ZeRO-1, tensor 2 x data 4, micro-batch 2 with 8 accumulated, bf16, full checkpointing`."""
    parts = [
        f"ZeRO-{candidate.zero_stage}",
        _describe_layout(candidate),
        _describe_batch(candidate),
        str(candidate.precision),
        _describe_checkpointing(candidate.activation_checkpointing),
    ]
    parts += _extras(candidate)
    return ", ".join(parts)


def short_candidate(candidate: Candidate) -> str:
    """`ZeRO-1 tp2 dp4 mb2x8 bf16 full` for table cells; what is 1, none or the default is left out."""
    layout, batch = candidate.layout, candidate.batch
    parts = [f"ZeRO-{candidate.zero_stage}"]
    if layout.tensor_parallel_size > 1:
        parts.append(f"tp{layout.tensor_parallel_size}")
    if layout.pipeline_parallel_size > 1:
        parts.append(f"pp{layout.pipeline_parallel_size}")
    parts.append(f"dp{layout.data_parallel_size}")
    parts.append(f"mb{batch.micro_batch_size}x{batch.gradient_accumulation_steps}")
    parts.append(str(candidate.precision))
    if candidate.activation_checkpointing.kind is not CheckpointingKind.NONE:
        parts.append(str(candidate.activation_checkpointing))
    return " ".join(parts + _extras(candidate))


def describe_differences(chosen: Candidate, other: Candidate) -> str:
    """How `chosen` differs from `other`, named axis by axis: `micro-batch 8 instead of 4, ZeRO-1 instead of ZeRO-2`."""
    pairs = [
        ("ZeRO-{}", chosen.zero_stage, other.zero_stage),
        ("tensor {}", chosen.layout.tensor_parallel_size, other.layout.tensor_parallel_size),
        ("pipeline {}", chosen.layout.pipeline_parallel_size, other.layout.pipeline_parallel_size),
        ("data {}", chosen.layout.data_parallel_size, other.layout.data_parallel_size),
        ("micro-batch {}", chosen.batch.micro_batch_size, other.batch.micro_batch_size),
        ("accumulation {}", chosen.batch.gradient_accumulation_steps, other.batch.gradient_accumulation_steps),
        ("{}", chosen.precision, other.precision),
        ("checkpointing {}", chosen.activation_checkpointing, other.activation_checkpointing),
        ("attention {}", chosen.attention, other.attention),
        ("optimizer offload {}", chosen.offload_optimizer, other.offload_optimizer),
        ("parameter offload {}", chosen.offload_param, other.offload_param),
        *((f"{name} {{}}", getattr(chosen.tuning, name), getattr(other.tuning, name)) for name in TUNING_VALUES),
    ]
    return ", ".join(f"{words.format(ours)} instead of {theirs}" for words, ours, theirs in pairs if ours != theirs)


def largest_saving(chosen: TimeBreakdown, other: TimeBreakdown) -> tuple[str, float] | None:
    """Where `chosen` spends the most less than `other`: (label, seconds); None where it spends less on nothing."""
    savings = [(getattr(other, field) - getattr(chosen, field), label) for field, label in TIME_LABELS]
    saved_s, label = max(savings)
    return (label, saved_s) if saved_s > 0 else None


def outcome_word(outcome: Outcome) -> str:
    """One or two words for a table cell."""
    match outcome:
        case Measured():
            return str(outcome.kind)
        case Pruned():
            return "too slow"
        case OutOfMemory():
            return "out of memory"
        case HostOutOfMemory():
            return "host memory"
        case TimedOut():
            return "timed out"
        case Diverged():
            return "diverged"
        case Crashed():
            return "crashed"


def crash_reason(outcome: Outcome) -> str:
    """Why it crashed in at most 60 characters, for a table's row; "" where nothing was said and for any other end.

    A traceback's last line says it; where no traceback was kept, the log's last line that names an error.
    """
    if not isinstance(outcome, Crashed):
        return ""
    said = [line for line in outcome.message.splitlines() if line.strip()]
    errors = [line for line in outcome.log_tail.splitlines() if _ERROR_LINE.match(line.strip())]
    reason = one_line(errors[-1] if errors and not _has_error(said) else said[-1] if said else "")
    return reason if len(reason) <= _REASON_WIDTH else reason[: _REASON_WIDTH - 1].rstrip() + "…"


def _has_error(lines: list[str]) -> bool:
    return bool(lines) and _ERROR_LINE.match(lines[-1].strip()) is not None


def outcome_sentence(outcome: Outcome) -> str:
    """How the trial ended, with its figures, in one line."""
    match outcome:
        case Measured():
            return f"ran: {format_seconds(outcome.step_time_s)} a step"
        case Pruned():
            return (
                f"stopped early: its quickest step took {format_seconds(outcome.step_time_s)}, and what can win takes "
                f"at most {format_seconds(outcome.limit_s)}"
            )
        case OutOfMemory():
            return f"rank {outcome.rank} ran out of device memory {_while(outcome.phase)}{_memory_figures(outcome)}"
        case HostOutOfMemory():
            return f"rank {outcome.rank} was refused host memory {_while(outcome.phase)}"
        case TimedOut():
            return f"still running after {format_seconds(outcome.limit_s)}, {_while(outcome.phase)}; ended"
        case Diverged():
            return f"the loss stopped being usable at step {outcome.step}"
        case Crashed():
            message = one_line(outcome.message) or "no message"
            return f"rank {outcome.rank} ended with exit code {outcome.exit_code} {_while(outcome.phase)}: {message}"


def _describe_layout(candidate: Candidate) -> str:
    layout = candidate.layout
    named = (
        ("tensor", layout.tensor_parallel_size),
        ("pipeline", layout.pipeline_parallel_size),
        ("data", layout.data_parallel_size),
    )
    words = " x ".join(f"{name} {size}" for name, size in named if size > 1) or "one device"
    layers = layout.stage_layers
    if len(set(layers)) > 1 and layers == partition_layers(sum(layers), len(layers)):
        words += f" ({min(layers)} or {max(layers)} layers a stage)"
    elif len(set(layers)) > 1:
        words += f" (stages of {_runs(layers)} layers)"
    return words


def _runs(layers: tuple[int, ...]) -> str:
    """`24, 8`; alike neighbours together: `4 x 24, 4 x 8`."""
    runs = [(count, len(tuple(alike))) for count, alike in groupby(layers)]
    return ", ".join(str(count) if times == 1 else f"{times} x {count}" for count, times in runs)


def _describe_batch(candidate: Candidate) -> str:
    words = f"micro-batch {candidate.batch.micro_batch_size}"
    accumulated = candidate.batch.gradient_accumulation_steps
    return f"{words} with {accumulated} accumulated" if accumulated > 1 else words


def _describe_checkpointing(checkpointing: ActivationCheckpointing) -> str:
    if checkpointing.kind is CheckpointingKind.NONE:
        return "no checkpointing"
    if checkpointing.kind is CheckpointingKind.LAYERS:
        return f"checkpointing of {plural(checkpointing.num_layers, 'layer')} a stage"
    return f"{checkpointing} checkpointing"


def _extras(candidate: Candidate) -> list[str]:
    extras = [f"{candidate.attention} attention"] if candidate.attention is not Attention.SDPA else []
    if candidate.offload_optimizer is not OffloadDevice.NONE:
        extras.append(f"optimizer on {candidate.offload_optimizer}")
    if candidate.offload_param is not OffloadDevice.NONE:
        extras.append(f"parameters on {candidate.offload_param}")
    return extras + [_SETTING_WORDS[name].format(value) for name, value in candidate.tuning.changes]


def _while(phase: Phase) -> str:
    return f"while in {phase.value.replace('_', ' ')}"


def _memory_figures(outcome: OutOfMemory) -> str:
    figures = []
    if outcome.requested_bytes:
        figures.append(f"asked for {format_bytes(outcome.requested_bytes)}")
    if outcome.allocated_bytes:
        figures.append(f"had {format_bytes(outcome.allocated_bytes)}")
    if outcome.capacity_bytes:
        figures.append(f"limit {format_bytes(outcome.capacity_bytes)}")
    return f" ({', '.join(figures)})" if figures else ""
