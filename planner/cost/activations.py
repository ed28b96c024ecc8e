"""Activation bytes of one stage: all micro-batches in flight, one layer at work, and the logits.

Owns checkpointing, the split by tensor and sequence parallelism and eager attention's scores. The coefficients per
token are counted in `architecture`.
"""

from __future__ import annotations

import numpy as np

from planner.cost.axes import Axes
from planner.cost.inputs import Inputs
from planner.cost.layer_tensors import Saved
from planner.cost.parameters import StageShape
from planner.spec._record import record
from planner.spec.columns import FULL_CHECKPOINTING, SELECTIVE_CHECKPOINTING, FloatColumn
from planner.spec.model import ModelSpec, TracedModule
from planner.spec.tuning import CHUNK_LOGITS, SMALLEST_CHUNK_TOKENS

# Per logit of one chunk of the chunked loss: 16-bit logits, fp32 scores in which all else is written, 16-bit gradient.
_CHUNK_LOSS_BYTES = 8.0


@record
class Activations:
    """Bytes on one rank. `kept`: of all micro-batches in flight; `layer`: what recomputing or backing through one layer
    adds; `loss`: the logits' peak on the last stage; `head`: logits' gradient while the head runs backward."""

    kept: FloatColumn
    layer: FloatColumn
    loss: FloatColumn
    head: FloatColumn


def stage_activations(shape: StageShape, *, axes: Axes, inputs: Inputs) -> Activations:
    """Activation bytes of one stage.

    kept = tokens x in_flight x (plain layers x layer + checkpointed layers x input + outside + boundary), where the
    boundary is what a pipeline holds between stages: received input and sent output. layer = tokens x (what recomputing
    one layer brings back + gradients at work). loss = logits x bytes per logit.
    """
    if inputs.model.traced is not None:
        return _traced(inputs.model.traced, axes=axes)
    architecture, layers = inputs.architecture, shape.layers + shape.encoder_layers
    plain, checkpointed = _split_layers(axes, layers=layers)
    scores = _scores(axes, inputs=inputs) + _masks(axes, inputs=inputs)
    whole = _per_token(architecture.layer, axes=axes) + scores + _gathered_inputs(axes, inputs=inputs)
    selective = _selective_bytes(axes, inputs=inputs, whole=whole)
    is_selective = axes.checkpointed_layers == SELECTIVE_CHECKPOINTING
    input_bytes = _per_token(architecture.checkpoint, axes=axes)
    stored = plain * np.where(is_selective, selective, whole) + checkpointed * input_bytes
    outside = _per_token(architecture.outside, axes=axes) * (shape.has_head | shape.has_embedding)
    boundary = input_bytes * (2.0 - shape.has_head - shape.has_embedding)
    recomputed = np.where(is_selective, whole - selective, np.where(checkpointed > 0, whole, 0.0))
    working = _per_token(architecture.working, axes=axes) + 2.0 * scores
    logits = _logits(shape, axes=axes, inputs=inputs)
    return Activations(
        kept=axes.tokens * shape.in_flight * (stored * _kept_factor(axes, inputs=inputs) + outside + boundary),
        layer=axes.tokens * (recomputed + working),
        loss=logits * _loss_bytes(axes, inputs=inputs) + _gradients_of_chunked_loss(shape, axes=axes, inputs=inputs),
        head=np.where(axes.chunked_loss, 0.0, logits * axes.element_bytes),
    )


def chunk_tokens(axes: Axes, *, model: ModelSpec) -> FloatColumn:
    """Tokens whose logits exist at once: all, or the chunk of the trainer's chunked loss (`spec.tuning.chunk_of`)."""
    if not axes.chunked_loss.any():
        return axes.tokens
    local = np.maximum(model.vocab_size / axes.tensor, 1.0)
    chunk = np.maximum(CHUNK_LOGITS // local, SMALLEST_CHUNK_TOKENS)
    return np.where(axes.chunked_loss, np.minimum(axes.tokens, chunk), axes.tokens)


def _gradients_of_chunked_loss(shape: StageShape, *, axes: Axes, inputs: Inputs) -> FloatColumn:
    """What the chunked loss makes in its forward pass: gradients of the hidden states (e a token and channel) and of
    the head's matrix, summed in fp32 and then cast: (4 + e) V h / t."""
    if not axes.chunked_loss.any():
        return np.zeros(len(axes))
    model = inputs.model
    hidden = axes.tokens * model.hidden_size * axes.element_bytes
    trains = 0.0 if inputs.training.lora_rank else 1.0
    matrix = model.vocab_size * model.hidden_size / axes.tensor * (4.0 + axes.element_bytes) * trains
    return np.where(axes.chunked_loss, hidden + matrix, 0.0) * shape.has_head


def _gathered_inputs(axes: Axes, *, inputs: Inputs) -> FloatColumn | float:
    """Per token: the inputs of attention and MLP that sequence-split tensor parallelism gathered, where they are kept
    for backward instead of being gathered again: 2 h elements beside their split copies."""
    if not inputs.profile.keeps_gathered_inputs:
        return 0.0
    extra = 2.0 * inputs.model.hidden_size * axes.element_bytes * (1.0 - 1.0 / axes.tensor)
    return np.where(axes.sequence_split & (axes.pipeline == 1), extra, 0.0)


def _kept_factor(axes: Axes, *, inputs: Inputs) -> FloatColumn | float:
    """What a pipeline's micro-batches in flight hold, relative to what their layers save."""
    return np.where(axes.pipeline > 1, inputs.profile.pipeline_kept_factor, 1.0)


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


def _scores(axes: Axes, *, inputs: Inputs) -> FloatColumn:
    """Eager attention per token: the softmax output (in fp32 with a 16-bit copy, where the model upcasts), a cap's
    tanh and, with dropout, its mask and the dropped copy, for every head and key position; repeated keys and values.

    Ulysses splits heads: a rank sees every key of the sequence for its share of the heads.
    """
    architecture, model = inputs.architecture, inputs.model
    element = axes.element_bytes
    copies = np.where(axes.is_fp32, 4.0, 4.0 + element) if architecture.softmax_upcasts else element
    if architecture.has_score_dropout:
        copies = copies + 1.0 + (0.0 if architecture.softmax_upcasts else element)
    if architecture.scores_are_capped:
        copies = copies + element
    scores = architecture.attentions * model.num_heads * _keys(axes) * copies / axes.tensor
    return np.where(axes.is_eager, scores + _per_token(architecture.eager, axes=axes), 0.0)


def _masks(axes: Axes, *, inputs: Inputs) -> FloatColumn | float:
    """Per token: what SDPA keeps where it is given a mask, which rules out its flash kernel and grouped heads.

    A sliding window shorter than the sequence: a mask of keys in the training precision for every sample (torch turns
    the boolean one into it), keys and values repeated. T5's relative positions: heads x keys, once for all samples.
    """
    model, keys = inputs.model, _keys(axes)
    if model.model_type == "t5":
        biases = model.num_heads * keys * axes.element_bytes / axes.micro_batch
        return np.where(axes.is_sdpa, biases, 0.0)
    if not model.sliding_window or not inputs.profile.hugging_face_code:
        return 0.0
    masked = axes.is_sdpa & (keys > model.sliding_window)
    return np.where(masked, keys * axes.element_bytes + _per_token(inputs.architecture.repeated, axes=axes), 0.0)


def _keys(axes: Axes) -> FloatColumn:
    """Key positions of a sequence, on all ranks that share it."""
    return axes.tokens * axes.sequence / axes.micro_batch


def _selective_bytes(axes: Axes, *, inputs: Inputs, whole: FloatColumn) -> FloatColumn:
    """Bytes per token kept by a selectively checkpointed layer: never more than the whole layer.

    DeepSpeed and FSDP: torch's per-operator policy (eager attention's products keep the raw scores). Megatron: the
    attention core is recomputed, so the scores go and the rest stays.
    """
    if inputs.profile.recomputes_attention_core:
        return _per_token(inputs.architecture.layer, axes=axes)
    heads = inputs.model.num_heads * inputs.architecture.attentions / axes.tensor
    scores = np.where(axes.is_eager, heads * _keys(axes) * axes.element_bytes, 0.0)
    return np.minimum(_per_token(inputs.architecture.selective, axes=axes) + scores, whole)


def _logits(shape: StageShape, *, axes: Axes, inputs: Inputs) -> FloatColumn:
    """Logits on the rank, in elements: tokens x vocabulary, split over tensor parallelism where the loss is."""
    split = axes.tensor if inputs.profile.vocabulary_parallel else 1.0
    return chunk_tokens(axes, model=inputs.model) * inputs.model.vocab_size / split * shape.has_head


def _loss_bytes(axes: Axes, *, inputs: Inputs) -> FloatColumn:
    architecture = inputs.architecture
    splits = (axes.tensor > 1) & inputs.profile.vocabulary_parallel
    sixteen = np.where(splits, architecture.loss_bytes_split, architecture.loss_bytes)
    sixteen = np.where(axes.chunked_loss, _CHUNK_LOSS_BYTES, sixteen)
    return np.where(axes.is_fp32, np.where(axes.chunked_loss, _CHUNK_LOSS_BYTES, architecture.loss_bytes_fp32), sixteen)


def _traced(traced: TracedModule, *, axes: Axes) -> Activations:
    """A traced module: what tracing saw, scaled by the batch; full checkpointing is not known to apply to it."""
    kept = axes.micro_batch * traced.saved_bytes_per_sample_fp32 * axes.element_bytes / 4.0
    kept = kept + traced.fixed_saved_bytes
    nothing = np.zeros_like(kept)
    return Activations(kept=kept, layer=0.1 * kept, loss=nothing, head=nothing)
