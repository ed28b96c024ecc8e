"""What a remedy may depend on, and the two helpers that the remedies share. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from planner.diagnose.arithmetic import Shares
from planner.diagnose.config_reading import MemoryConfig
from planner.diagnose.records import Fix, LogFacts, MemoryEvent, ModelView, Verdict
from planner.spec._record import record


@record
class Remedy:
    """What a remedy may depend on."""

    facts: LogFacts
    verdict: Verdict
    event: MemoryEvent | None
    shares: Shares | None
    model: ModelView | None
    config: MemoryConfig | None = None


RemedyRule: TypeAlias = Callable[[Remedy], list[Fix]]


def from_log(change: dict[str, Any], why: str, frees: int | None) -> Fix:
    """A fix whose memory the log itself tells."""
    return Fix(change=change, why=why, frees_bytes=frees, basis="log" if frees is not None else "")


def allocator_variable(event: MemoryEvent | None) -> str:
    """The environment variable's name in this version: what the message itself names, else the backend's."""
    if event is not None and event.environment_variable.endswith("ALLOC_CONF"):
        return event.environment_variable
    backend = event.backend if event is not None else ""
    return {"hip": "PYTORCH_HIP_ALLOC_CONF", "npu": "PYTORCH_NPU_ALLOC_CONF"}.get(backend, "PYTORCH_CUDA_ALLOC_CONF")
