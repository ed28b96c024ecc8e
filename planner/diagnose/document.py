"""A diagnosis as the one JSON document of `diagnose --json`, and nothing but plain values in it. Pure.

The keys of `interface.md` (`events`, `cause`, `confidence`, `evidence`, `fixes`) with more beside them. What the log
does not say is null.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from planner.diagnose.records import Figures, Fix, LogFacts, MemoryEvent, ModelView, Verdict
from planner.diagnose.snapshot import DevicePeak

MAX_EVENTS_SHOWN = 256


def document_of(
    facts: LogFacts,
    verdict: Verdict,
    fixes: tuple[Fix, ...],
    *,
    snapshots: tuple[DevicePeak, ...] = (),
    model: ModelView | None = None,
) -> dict[str, Any]:
    """The document; sizes in bytes."""
    document: dict[str, Any] = {
        "events": [_event(event, facts) for event in facts.events[:MAX_EVENTS_SHOWN]],
        "cause": verdict.cause.value,
        "confidence": verdict.confidence,
        "evidence": list(verdict.evidence),
        "fixes": [_fix(fix) for fix in fixes],
        "event": verdict.event if verdict.event is not None and verdict.event < MAX_EVENTS_SHOWN else None,
        "also": [cause.value for cause in verdict.also],
        "grows": verdict.grows or None,
        "ranks": list(facts.ranks[:4096]),
        "notes": [*facts.notes, *(model.assumptions if model is not None else ())],
        "scanned": {"bytes": facts.num_bytes, "lines": facts.num_lines},
    }
    if snapshots:
        document["snapshots"] = [_snapshot(peak) for peak in snapshots]
    if model is not None:
        document["computed"] = {
            "high_bytes": model.high_bytes,
            "usable_bytes": model.usable_bytes,
            "states_bytes": model.states_bytes,
            "activations_bytes": model.activations_bytes,
            "host_bytes": model.host_bytes,
        }
    return document


def _event(event: MemoryEvent, facts: LogFacts) -> dict[str, Any]:
    figures: dict[str, Any] = {f"{field.name}_bytes": getattr(event.figures, field.name) for field in fields(Figures)}
    figures["reserved_bytes"] = event.figures.reserved
    return {
        "kind": event.kind.value,
        "backend": event.backend or None,
        "rank": event.rank,
        "gpu": event.gpu,
        "physical_gpu": physical_gpu(event, facts),
        "pid": event.pid,
        "exit_code": event.exit_code,
        "phase": event.phase.value,
        "file": event.file or None,
        "line": event.line,
        "function": event.function or None,
        **figures,
        "other_processes": [{"pid": other.pid, "memory_bytes": other.memory_bytes} for other in event.others],
        "log": event.source or None,
        "log_line": event.log_line,
        "count": event.count,
        "text": event.text,
    }


def physical_gpu(event: MemoryEvent, facts: LogFacts) -> str | None:
    """The device behind the number in the message: processes renumber the ones that are visible to them from 0."""
    visible = [name for name in facts.settings.visible_devices.split(",") if name]
    if event.gpu is None or not visible or event.gpu >= len(visible):
        return None
    return visible[event.gpu]


def _fix(fix: Fix) -> dict[str, Any]:
    return {
        "change": fix.change,
        "frees_bytes": fix.frees_bytes,
        "slows_fraction": fix.slows_fraction,
        "why": fix.why,
        "fits": fix.fits,
        "host_bytes": fix.host_bytes,
        "basis": fix.basis or None,
    }


def _snapshot(peak: DevicePeak) -> dict[str, Any]:
    return {
        "device": peak.device,
        "peak_bytes": peak.peak_bytes,
        "allocated_bytes": peak.allocated_bytes,
        "reserved_bytes": peak.reserved_bytes,
        "largest_idle_block_bytes": peak.largest_idle_block_bytes,
        "private_pool_bytes": peak.private_pool_bytes,
        "has_history": peak.has_history,
        "unattributed_bytes": peak.unattributed_bytes,
        "holders": [asdict(holder) for holder in peak.holders],
    }
