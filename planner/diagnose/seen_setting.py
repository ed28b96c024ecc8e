"""What the figures of a failure prove about a setting that nobody told: whether activations were recomputed. Pure.

At the loss and in the backward pass a run without checkpointing holds the activations of every layer. Where the log
shows far less than that, and about what full checkpointing takes, the run checkpoints.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from planner.diagnose.pricing import PricedSetting, Variant, price_variants, view_of
from planner.diagnose.records import MemoryEvent, RunPhase
from planner.diagnose.words import size
from planner.spec.columns import checkpointing_code
from planner.spec.kinds import ActivationCheckpointing, CheckpointingKind

_FULL = checkpointing_code(ActivationCheckpointing(kind=CheckpointingKind.FULL))
_FAR_MORE = 1.6  # computed without checkpointing over seen: beyond the model's own error
_ABOUT = 1.3  # computed with it over seen
_AT_THE_LOSS = re.compile(r"lm_head|logits|cross_entropy|compute_loss|loss_fn|embed_out|output_layer", re.IGNORECASE)


def with_seen_checkpointing(setting: PricedSetting, events: Iterable[MemoryEvent]) -> PricedSetting:
    """The setting with full checkpointing where the log proves it, which is then said among the assumptions."""
    needs = [need for event in events if (need := _need_of_all_layers(event))]
    if not needs or setting.axis("checkpointed_layers") == _FULL:
        return setting
    seen = max(needs)
    axes = (("checkpointed_layers", _FULL),)
    (price,) = price_variants(setting, (Variant(axes=axes),))
    computed = view_of(setting).allocated_bytes
    checkpointed = computed - price.frees_bytes
    if computed < _FAR_MORE * seen or checkpointed > _ABOUT * seen:
        return setting
    said = (
        f"the run recomputes activations: without that {size(computed)} would have been live, and the log shows "
        f"{size(seen)} (--activation-checkpointing says otherwise)"
    )
    columns = replace(setting.columns, checkpointed_layers=setting.columns.checkpointed_layers * 0 + _FULL)
    return replace(setting, columns=columns, assumptions=(*setting.assumptions, said))


def fails_at_the_loss(event: MemoryEvent) -> bool:
    """Whether the innermost frames are those of the head or the loss."""
    inner = " ".join(f"{frame.function} {frame.code}" for frame in event.frames[-3:])
    return _AT_THE_LOSS.search(inner) is not None


def _need_of_all_layers(event: MemoryEvent) -> int:
    """Live memory and the request, in bytes, of a failure at which every layer's activations are held; 0 for others."""
    live, request = event.figures.allocated, event.figures.requested
    if live is None or request is None:
        return 0
    at_the_end = event.phase is RunPhase.FORWARD and fails_at_the_loss(event)
    return live + request if at_the_end or event.phase is RunPhase.BACKWARD else 0
