"""An exception as a record that outlives its process: names, messages, and what the allocator said at the end."""

from __future__ import annotations

import sys

import torch

from planner.runtime.measure import Meter
from planner.runtime.worker_steps import TrialDiverged
from planner.spec import DeviceKind, TrialTask
from planner.spec.worker import RankFailure

_MESSAGE_CHARS = 4000


def describe_failure(error: BaseException, task: TrialTask, meter: Meter | None, *, failed_at_s: float) -> RankFailure:
    """What a rank leaves behind of an exception. Without a `meter` (it failed too early) figures are 0."""
    allocated_bytes, capacity_bytes = _device_state(task, meter) if meter is not None else (0, 0)
    return RankFailure(
        exception=_qualified_name(error),
        message=_bounded(str(error)),
        failed_at_s=failed_at_s,
        chain=_chain(error),
        allocated_bytes=allocated_bytes,
        capacity_bytes=capacity_bytes,
        diverged_at_step=error.step if isinstance(error, TrialDiverged) else -1,
        losses=error.losses if isinstance(error, TrialDiverged) else (),
    )


def _device_state(task: TrialTask, meter: Meter) -> tuple[int, int]:
    """Allocated (at most) and capacity, as far as the device can still be asked; zeros where it cannot."""
    if task.device is DeviceKind.CPU:
        return meter.end_section().used_bytes, task.memory_limit_bytes
    if not torch.cuda.is_initialized():
        return 0, 0
    try:
        total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        allocated = int(torch.cuda.memory_allocated())
    except RuntimeError as problem:  # after an illegal access every call fails
        print(f"[rank] the device does not answer any more: {problem}", file=sys.stderr)
        return 0, 0
    return allocated, min(total, task.memory_limit_bytes) if task.memory_limit_bytes else total


def _chain(error: BaseException) -> tuple[str, ...]:
    """The exceptions behind this one, nearest first."""
    found: list[str] = []
    seen = {id(error)}
    behind = error.__cause__ or error.__context__
    while behind is not None and id(behind) not in seen:
        seen.add(id(behind))
        found.append(_bounded(f"{_qualified_name(behind)}: {behind}"))
        behind = behind.__cause__ or behind.__context__
    return tuple(found)


def _bounded(text: str) -> str:
    """A message that somebody filled with a tensor's values is cut in its middle; the log has it whole."""
    half = _MESSAGE_CHARS // 2
    return text if len(text) <= _MESSAGE_CHARS else f"{text[:half]} … {text[-half:]}"


def _qualified_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
