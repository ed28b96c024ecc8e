"""Takes back the optimizer step that DeepSpeed makes while it sets up 16-bit training without ZeRO.

DeepSpeed 0.19.8 (runtime/fp16/unfused_optimizer.py, `initialize_optimizer_states`) allocates the optimizer's states by
stepping once with zero gradients. Adam then counts one step too many, so that its bias correction makes the first real
steps about a quarter smaller than under ZeRO, and weight decay is applied once too often.
"""

from __future__ import annotations

from typing import Any

import torch
from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer


def take_back_setup_step(optimizer: Any) -> None:
    """Set step counters to 0 and the fp32 weights to the model's; other optimizers made no such step."""
    if not isinstance(optimizer, FP16_UnfusedOptimizer):
        return
    for state in optimizer.optimizer.state.values():
        counted = state.get("step")
        if torch.is_tensor(counted):
            counted.zero_()
        elif counted is not None:
            state["step"] = 0
    with torch.no_grad():
        for masters, weights in zip(optimizer.fp32_groups, optimizer.fp16_groups):
            for master, weight in zip(masters, weights):
                master.copy_(weight)
