"""After a checkpoint was loaded: an optimizer that takes over another's states, as when a run falls back to offload.

DeepSpeed 0.19.8 loads torch's AdamW into its own CPU Adam as it is: the moments fit, but the parameter groups are the
saved ones, without the settings that only the new optimizer knows ("KeyError: 'bias_correction'" in the next step), and
step counters are tensors where it counts with whole numbers. The other way round is the same.
"""

from __future__ import annotations

from typing import Any

import torch


def settle_loaded_optimizer(optimizer: Any) -> None:
    """Complete the groups with the optimizer's own defaults, and count steps in the way it does."""
    inner = getattr(optimizer, "optimizer", optimizer)
    defaults, states = getattr(inner, "defaults", None), getattr(inner, "state", None)
    if defaults is None or states is None:
        return
    for group in inner.param_groups:
        for name, value in defaults.items():
            group.setdefault(name, value)
    counts_in_tensors = type(inner).__module__.startswith("torch.")
    for state in states.values():
        step: Any = state.get("step") if isinstance(state, dict) else None
        if torch.is_tensor(step) and not counts_in_tensors:
            state["step"] = int(step.item())
        elif isinstance(step, int) and counts_in_tensors:
            state["step"] = torch.tensor(float(step))
