"""Caps what one rank may allocate, so that running out of memory can be tried for real."""

from __future__ import annotations

import torch

from planner.runtime.worker_process import limit_data_segment
from planner.spec import DeviceKind, TrialTask


def limit_memory(task: TrialTask, *, local_rank: int) -> None:
    """Lay the task's `memory_limit_bytes` on this process, if it has one; the device is claimed already."""
    if not task.memory_limit_bytes:
        return
    if task.device is DeviceKind.CUDA:
        _free, total = torch.cuda.mem_get_info(local_rank)
        torch.cuda.set_per_process_memory_fraction(min(1.0, task.memory_limit_bytes / total), local_rank)
    else:
        limit_data_segment(task.memory_limit_bytes)
