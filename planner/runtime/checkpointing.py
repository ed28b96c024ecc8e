"""Activation checkpointing: what of a layer's forward pass is kept for the backward pass.

Owns how each kind is done with torch's non-reentrant checkpoint, at every layout alike (DeepSpeed's own
`activation_checkpointing` block is not used). Which layers it applies to is decided by `recompute_of`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from planner.spec import ActivationCheckpointing, CheckpointingKind
from planner.spec._record import record

# Matrix products and attention, by the name of the operation; names that a torch version lacks do no harm.
KEPT_OPERATIONS = frozenset(
    {
        "aten::mm",
        "aten::bmm",
        "aten::addmm",
        "aten::baddbmm",
        "aten::_grouped_mm",
        "aten::_scaled_mm",
        "aten::_scaled_dot_product_flash_attention",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_efficient_attention",
        "aten::_scaled_dot_product_cudnn_attention",
        "aten::_scaled_dot_product_fused_attention_overrideable",
    }
)


def _policy(_context: Any, operation: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    name = operation.name() if hasattr(operation, "name") else ""
    kept = name.split(".")[0] in KEPT_OPERATIONS
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


@record
class Recompute:
    """How one layer runs forward. `keeps_rng`: replay random numbers, needed where there is dropout."""

    kind: CheckpointingKind = CheckpointingKind.NONE
    keeps_rng: bool = False

    def run(self, function: Callable[..., Any], *inputs: Any) -> Any:
        """Call `function`, keeping for its backward pass only what the kind says."""
        if self.kind is CheckpointingKind.NONE or not torch.is_grad_enabled():
            return function(*inputs)
        return self.checkpoint(function, *inputs)

    def checkpoint(self, function: Callable[..., Any], *inputs: Any) -> Any:
        """Call `function` under torch's checkpoint."""
        options: dict[str, Any] = {}
        if self.kind is CheckpointingKind.SELECTIVE:
            options["context_fn"] = partial(create_selective_checkpoint_contexts, _policy)
        # The check compares shapes of saved tensors; under ZeRO-3 a parameter's shape tells when it was gathered, not
        # whether the recomputation went right.
        return checkpoint(
            function,
            *inputs,
            use_reentrant=False,
            preserve_rng_state=self.keeps_rng,
            determinism_check="none",
            **options,
        )


def recompute_of(checkpointing: ActivationCheckpointing, *, index_in_stage: int, keeps_rng: bool) -> Recompute:
    """How the layer at this place of its pipeline stage runs."""
    kind = checkpointing.kind
    if kind is CheckpointingKind.LAYERS:
        kind = CheckpointingKind.FULL if index_in_stage < checkpointing.num_layers else CheckpointingKind.NONE
    return Recompute(kind=kind, keeps_rng=keeps_rng)
