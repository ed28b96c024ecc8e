"""Memory traffic of what is not a matrix product: norms, rotary embedding, activation, residuals, scores, loss.

Owns the bytes read and written per token. Leaves turning them into seconds to `compute`.
"""

from __future__ import annotations

import numpy as np

from planner.cost.axes import Axes
from planner.cost.layer_tensors import PYTHON_GELU, activation_name
from planner.cost.profile import RuntimeProfile
from planner.spec.columns import FloatColumn
from planner.spec.model import ModelSpec

# Reads and writes of each eager kernel of Hugging Face's code in 16 bit, bytes per element, forward.
_RMS_NORM = 36.0  # to fp32, square, mean, scale, to 16 bit, weight
_FUSED_NORM = 4.0  # one kernel, as every LayerNorm is
_RESIDUAL = 6.0
_DROPOUT = 5.0
_ROTARY, _FUSED_ROTARY = 18.0, 4.0  # two products, rotation, negation, sum
_GATE, _FUSED_GATE = 10.0, 6.0  # SiLU and product
_GELU = 4.0  # one kernel
_GELU_PYTHON = 34.0  # power, scale, sum, scale, tanh, one plus, half, product
_SCORES = 24.0  # scale, mask, softmax in fp32, cast, dropout
_SCORES_FUSED = 10.0  # Megatron's scale-mask-softmax in 16 bit, dropout
_ROUTED = 14.0  # gather, weight, unsort and sum of each routed copy
_CHUNKED_LOSS = 34.0  # per logit: as the whole loss, with scores and gradient written in place
_COMPILED_FRACTION = 0.45  # torch.compile fuses chains: about as many passes as there are products


def layer_traffic_bytes(axes: Axes, *, model: ModelSpec, profile: RuntimeProfile) -> FloatColumn:
    """Bytes read and written per token by one average layer's forward pass on one rank.

    whole = h (2 norms + 2 residuals + dropouts) + routed copies; split = rotary (a + g) + activation f; eager attention
    adds its passes over heads x keys. fp32 doubles.
    """
    hidden = float(model.hidden_size)
    moe_share = model.num_moe_layers / model.num_layers if model.num_layers else 0.0
    routed = float(model.num_experts_per_token)
    ffn = model.ffn_hidden_size * (1.0 - moe_share)
    ffn += moe_share * (routed + model.num_shared_experts) * model.expert_ffn_hidden_size
    eager_norm = model.rms_norm and profile.hugging_face_code
    norm = _RMS_NORM if eager_norm else _FUSED_NORM
    dropout = 2.0 * _DROPOUT if model.hidden_dropout_fraction > 0 else 0.0
    whole = hidden * (2.0 * norm + 2.0 * _RESIDUAL + dropout + moe_share * routed * _ROUTED)
    rotary = (_ROTARY if eager_norm else _FUSED_ROTARY) if model.rms_norm else 0.0
    heads = (model.num_heads + model.num_kv_heads) * model.head_size
    split = rotary * heads + _activation(model, profile=profile) * ffn
    if not eager_norm:
        split += profile.attention_copy_bytes * (model.num_heads + model.num_kv_heads) * 2.0 * model.head_size
    fused = _COMPILED_FRACTION if profile.compiled else 1.0
    per_token = whole / np.where(axes.sequence_split, axes.tensor, 1.0) + split / axes.tensor
    keys = axes.tokens * axes.sequence / axes.micro_batch
    passes = _SCORES_FUSED if profile.recomputes_attention_core else _SCORES
    scores = np.where(axes.is_eager, passes * model.num_heads * keys / axes.tensor, 0.0)
    return (per_token * fused + scores) * axes.element_bytes / 2.0


def _activation(model: ModelSpec, *, profile: RuntimeProfile) -> float:
    if profile.fused_activation:
        return _FUSED_GATE if model.gated_mlp else _GELU
    is_python = activation_name(model) in PYTHON_GELU and profile.hugging_face_code
    if model.gated_mlp:
        return _GATE + (_GELU_PYTHON - _GELU if is_python else 0.0)
    return _GELU_PYTHON if is_python else _GELU


def loss_traffic_bytes(axes: Axes, *, model: ModelSpec, profile: RuntimeProfile) -> FloatColumn:
    """Bytes of the loss, forward and backward: upcast, log-softmax, its gradient, downcast: about 36 per logit."""
    compiled = profile.compiled and profile.compiles_loss
    passes = 16.0 if compiled or profile.fused_cross_entropy or profile.loss_in_place else 36.0
    split = axes.tensor if profile.vocabulary_parallel else 1.0
    return axes.tokens * model.vocab_size / split * np.where(axes.chunked_loss, _CHUNKED_LOSS, passes)
