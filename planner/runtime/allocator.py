"""The plan's setting of torch's CUDA allocator, put in place before CUDA starts.

Imports torch only where it has been imported anyway: the reference trainer sets its environment first.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from planner.spec import Allocator, DeviceKind, TrialTask
from planner.spec.tuning import ALLOCATOR_ENVIRONMENT


def settle_allocator(task: TrialTask) -> None:
    """Set what the task asks for, in the environment and, where torch has read that already, in torch itself. Must come
    before the process's first use of the device; does nothing for the default and on a CPU."""
    if task.candidate.tuning.allocator is Allocator.DEFAULT or task.device is not DeviceKind.CUDA:
        return
    os.environ.update(ALLOCATOR_ENVIRONMENT)
    torch: Any = sys.modules.get("torch")
    if torch is not None:  # a forked child of the warm worker: torch may have read the environment at its import
        older: Any = getattr(torch.cuda.memory, "_set_allocator_settings", None)
        setter = getattr(torch._C, "_accelerator_setAllocatorSettings", older)  # torch 2.9 and newer
        setter(ALLOCATOR_ENVIRONMENT[0][1])
