"""Activation bytes of one stage: all micro-batches in flight, one layer at work, and the logits.

Owns checkpointing, the split by tensor and sequence parallelism and eager attention's scores. The coefficients per
token are counted in `architecture`.
"""

from __future__ import annotations

import numpy as np

from planner.cost.architecture import Architecture, Saved
from planner.cost.axes import Axes
from planner.cost.parameters import StageShape
from planner.cost.profile import RuntimeProfile
from planner.spec._record import record
from planner.spec.columns import FULL_CHECKPOINTING, SELECTIVE_CHECKPOINTING, FloatColumn
from planner.spec.kinds import Runtime
from planner.spec.model import ModelSpec, TracedModule


@record
class Activations:
    """Bytes on one rank. `kept`: of all micro-batches in flight; `layer`: what recomputing or backing through one layer
    adds; `loss`: the logits' peak on the last stage; `head`: logits' gradient while the head runs backward."""

    kept: FloatColumn
    layer: FloatColumn
    loss: FloatColumn
    head: FloatColumn


def stage_activations(
    shape: StageShape, *, axes: Axes, model: ModelSpec, architecture: Architecture, profile: RuntimeProfile
) -> Activations:
    """Activation bytes of one stage.

    kept = tokens x in_flight x (plain layers x layer + checkpointed layers x input + outside + boundary).
    layer = tokens x (one layer's saved bytes, when any layer is checkpointed, + gradients at work).
    loss = tokens x vocabulary / split x bytes per logit.
    """
    if model.traced is not None:
        return _traced(model.traced, axes=axes)
    layers = shape.layers + shape.encoder_layers
    plain, checkpointed = _split_layers(axes, layers=layers)
    whole = _per_token(architecture.layer, axes=axes) + _scores(architecture, axes=axes, model=model)
    selective = _selective_bytes(architecture, axes=axes, whole=whole, profile=profile)
    is_selective = axes.checkpointed_layers == SELECTIVE_CHECKPOINTING
    stored = plain * np.where(is_selective, selective, whole)
    stored += checkpointed * _per_token(architecture.checkpoint, axes=axes)
    outside = _per_token(architecture.outside, axes=axes) * (shape.has_head | shape.has_embedding)
    hidden_bytes = _per_token(architecture.checkpoint, axes=axes)
    boundary = hidden_bytes * (~shape.has_head * 1.0 + ~shape.has_embedding * 1.0)
    recomputes = (checkpointed > 0) | is_selective
    working = _per_token(architecture.working, axes=axes) + np.where(axes.is_eager, 2.0, 0.0) * _scores(
        architecture, axes=axes, model=model
    )
    vocabulary = _logits(shape, axes=axes, architecture=architecture, profile=profile)
    loss_bytes = np.where(axes.is_fp32, architecture.loss_bytes_fp32, architecture.loss_bytes)
    return Activations(
        kept=axes.tokens * shape.in_flight * (stored + outside + boundary),
        layer=axes.tokens * (np.where(recomputes, whole, 0.0) + working),
        loss=vocabulary * loss_bytes,
        head=vocabulary * axes.element_bytes,
    )


def _split_layers(axes: Axes, *, layers: FloatColumn) -> tuple[FloatColumn, FloatColumn]:
    """How many layers of the stage keep everything, and how many only their input."""
    code = axes.checkpointed_layers
    asked = np.where(code == FULL_CHECKPOINTING, layers, np.maximum(code, 0.0))
    checkpointed = np.minimum(asked, layers)
    return layers - checkpointed, checkpointed


def _per_token(saved: Saved, *, axes: Axes) -> FloatColumn:
    """Bytes per token on one rank: whole tensors (split too under sequence-split tensor parallelism) and split ones."""
    whole = saved.elements * axes.element_bytes + saved.bytes
    split = saved.split_elements * axes.element_bytes + saved.split_bytes
    return whole / np.where(axes.sequence_split, axes.tensor, 1.0) + split / axes.tensor


def _scores(architecture: Architecture, *, axes: Axes, model: ModelSpec) -> FloatColumn:
    """Eager attention per token: softmax output in fp32 and its 16-bit copy (fp32: one tensor), dropout's mask, for
    every head and key position; repeated keys and values. Ulysses splits heads, not keys: positions are the whole
    sequence, heads / sequence-parallel size, tokens / sequence-parallel size."""
    copies = np.where(axes.is_fp32, 4.0, 4.0 + axes.element_bytes) + architecture.score_bytes
    keys = axes.tokens * axes.sequence / axes.micro_batch
    scores = architecture.score_heads * keys * copies / axes.tensor
    repeated = _per_token(architecture.eager, axes=axes)
    return np.where(axes.is_eager, scores + repeated, 0.0)


def _selective_bytes(
    architecture: Architecture, *, axes: Axes, whole: FloatColumn, profile: RuntimeProfile
) -> FloatColumn:
    """Bytes per token kept by a selectively checkpointed layer: never more than the whole layer.

    DeepSpeed and FSDP: torch's per-operator policy. Megatron: the attention core is recomputed, so the scores go and
    the rest stays.
    """
    if profile.runtime is Runtime.MEGATRON:
        return _per_token(architecture.layer, axes=axes)
    return np.minimum(_per_token(architecture.selective, axes=axes), whole)


def _logits(shape: StageShape, *, axes: Axes, architecture: Architecture, profile: RuntimeProfile) -> FloatColumn:
    """Logits on the rank, in elements: tokens x vocabulary, split over tensor parallelism where the loss is."""
    split = axes.tensor if profile.vocabulary_parallel else 1.0
    return axes.tokens * architecture.vocab / split * shape.has_head


def _traced(traced: TracedModule, *, axes: Axes) -> Activations:
    """A traced module: what tracing saw, scaled by the batch; full checkpointing is not known to apply to it."""
    kept = axes.micro_batch * traced.saved_bytes_per_sample_fp32 * axes.element_bytes / 4.0
    kept = kept + traced.fixed_saved_bytes
    nothing = np.zeros_like(kept)
    return Activations(kept=kept, layer=0.1 * kept, loss=nothing, head=nothing)
