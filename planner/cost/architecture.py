"""What one layer keeps for its backward pass, counted from the tensors that autograd really saves.

Owns the per-token coefficients of a model under a runtime profile (scalars, computed once per call). Leaves degrees of
parallelism, checkpointing and batch sizes to `activations`.

Notation: h hidden size, a query width (heads x head size), g key/value width, f feed-forward size, V vocabulary,
e bytes of an element. Counts were read in transformers 5.24 (`modeling_llama`, `_gpt2`, `_bert`, `_mixtral`,
`integrations/moe.py`, `loss/loss_utils.py`) and agree with the H200 rows within 0.5 %.
"""

from __future__ import annotations

import json

from planner.cost.profile import RuntimeProfile
from planner.spec._record import record
from planner.spec.kinds import ModelFamily
from planner.spec.model import ModelSpec

# Query and key are normalised per head in these: one more RMSNorm over a + g.
_QUERY_KEY_NORM = frozenset({"qwen3", "qwen3_moe", "gemma3", "gemma3_text", "olmo2", "olmoe"})
# Activations that Hugging Face writes in Python, each step saved by autograd (activations.py).
PYTHON_GELU = frozenset({"gelu_new", "gelu_fast", "gelu_python", "gelu_python_tanh", "quick_gelu"})


@record
class Saved:
    """Bytes per token = (elements x e + bytes) of what every tensor-parallel rank keeps whole, plus the same of what
    they split."""

    elements: float = 0.0
    bytes: float = 0.0
    split_elements: float = 0.0
    split_bytes: float = 0.0

    def __add__(self, other: Saved) -> Saved:
        return Saved(
            elements=self.elements + other.elements,
            bytes=self.bytes + other.bytes,
            split_elements=self.split_elements + other.split_elements,
            split_bytes=self.split_bytes + other.split_bytes,
        )


def scaled(saved: Saved, factor: float) -> Saved:
    """`factor` times the same tensors."""
    return Saved(
        elements=saved.elements * factor,
        bytes=saved.bytes * factor,
        split_elements=saved.split_elements * factor,
        split_bytes=saved.split_bytes * factor,
    )


@record
class Architecture:
    """Per-token coefficients of one model. `score_*`: eager attention, per token and key position, times heads."""

    layer: Saved  # an average layer: dense and mixture-of-experts ones mixed as the model mixes them
    selective: Saved  # the same under the per-operator policy
    checkpoint: Saved  # what a checkpointed layer keeps: its input
    eager: Saved  # added by eager attention beside the scores (repeated key/value heads)
    working: Saved  # gradients alive together inside one layer's backward
    outside: Saved  # embedding and final norm, prediction-head transform
    score_elements: float
    score_bytes: float
    score_heads: float
    loss_bytes: float  # per token and vocabulary entry at the loss's peak, 16-bit logits
    loss_bytes_fp32: float
    head_grad_elements: float  # per token and vocabulary entry while the head's own backward runs
    vocab: float
    hidden: float
    layers: float
    encoder_layers: float


def architecture_of(model: ModelSpec, *, profile: RuntimeProfile) -> Architecture:
    """Count what `model` saves per token under `profile`. A traced module has zero coefficients here."""
    hidden = float(model.hidden_size)
    attention = _attention(model, profile=profile)
    moe_share = model.num_moe_layers / model.num_layers if model.num_layers else 0.0
    mlp = scaled(_dense_mlp(model, profile=profile), 1.0 - moe_share) + scaled(_moe(model, profile=profile), moe_share)
    norms = scaled(_norm(model, profile=profile), 2.0)
    layer = attention + mlp + norms + _dropouts(model)
    upcast = model.family is ModelFamily.DECODER
    loss_16, loss_32 = _loss_bytes(upcast=upcast, profile=profile)
    return Architecture(
        layer=layer,
        selective=_selective(model, moe_share=moe_share),
        checkpoint=Saved(elements=hidden),
        eager=Saved(split_elements=2.0 * (_query_width(model) - _kv_width(model))),
        working=_working(model, moe_share=moe_share, profile=profile),
        outside=_outside(model, profile=profile),
        score_elements=1.0,
        score_bytes=1.0 if model.attention_dropout_fraction > 0 else 0.0,
        score_heads=float(model.num_heads),
        loss_bytes=loss_16,
        loss_bytes_fp32=loss_32,
        head_grad_elements=2.0,
        vocab=float(model.vocab_size) if model.family is not ModelFamily.MODULE else 0.0,
        hidden=hidden,
        layers=float(model.num_layers),
        encoder_layers=float(model.num_encoder_layers),
    )


def _query_width(model: ModelSpec) -> float:
    return float(model.num_heads * (model.qk_head_size or model.head_size))


def _kv_width(model: ModelSpec) -> float:
    return float(model.num_kv_heads * (model.qk_head_size or model.head_size))


def _value_width(model: ModelSpec) -> float:
    return float(model.num_heads * (model.v_head_size or model.head_size))


def _norm(model: ModelSpec, *, profile: RuntimeProfile) -> Saved:
    """RMSNorm in Hugging Face: fp32 copy 4h (autograd of pow and mul), normalised h, weighted h (the next product's
    input). LayerNorm and fused RMSNorm: input h, output h. Plus 4 or 8 bytes of statistics a token."""
    hidden = float(model.hidden_size)
    if model.rms_norm and profile.norm_saves_fp32_input and not profile.compiled:
        return Saved(elements=2.0 * hidden, bytes=4.0 * hidden + 4.0)
    return Saved(elements=2.0 * hidden, bytes=8.0)


def _attention(model: ModelSpec, *, profile: RuntimeProfile) -> Saved:
    """Query, key, value and output of the kernel, and its log-sum-exp (4 bytes a head): a + 2g + a elements.

    Per-head query/key norms add an fp32 copy and a normalised copy of a + g. Latent attention (DeepSeek-V2) adds the
    two compressed vectors with their norms.
    """
    query, kv, value = _query_width(model), _kv_width(model), _value_width(model)
    if model.kv_lora_rank:
        kv = query  # keys are decompressed to all heads
    keys_values = kv + (value if model.kv_lora_rank else kv)
    saved = Saved(split_elements=query + keys_values + value, split_bytes=4.0 * model.num_heads)
    if model.model_type in _QUERY_KEY_NORM:
        saved += Saved(split_elements=query + kv, split_bytes=4.0 * (query + kv))
    if model.kv_lora_rank:
        compressed = float(model.kv_lora_rank + model.q_lora_rank)
        saved += Saved(elements=2.0 * compressed, bytes=4.0 * compressed)
    return saved


def _activation_copies(model: ModelSpec, *, profile: RuntimeProfile) -> float:
    """Feed-forward tensors of f elements that one MLP keeps.

    Gated: gate, up, activation, product: 4 (fused SwiGLU: gate, up, product: 3). Plain: input and output: 2, ReLU 1;
    GELU written in Python: 5 (input, tanh, 1 + tanh, input / 2, product).
    """
    name = activation_name(model)
    if model.gated_mlp:
        if profile.fused_gated_activation or profile.compiled:
            return 3.0
        return 7.0 if name in PYTHON_GELU else 4.0
    if profile.fused_mlp_activation or profile.compiled:
        return 2.0
    if name in PYTHON_GELU:
        return 5.0
    return 1.0 if name == "relu" else 2.0


def activation_name(model: ModelSpec) -> str:
    config = json.loads(model.config_json) if model.config_json else {}
    keys = ("hidden_act", "activation_function", "hidden_activation", "dense_act_fn")
    return next((str(config[key]) for key in keys if config.get(key)), "")


def _dense_mlp(model: ModelSpec, *, profile: RuntimeProfile) -> Saved:
    return Saved(split_elements=_activation_copies(model, profile=profile) * model.ffn_hidden_size)


def _moe(model: ModelSpec, *, profile: RuntimeProfile) -> Saved:
    """k routed copies of a token, each: gathered input h, fused gate-up 2f, activation f, product f, output h; the
    router's fp32 probabilities; sort and unsort indexes (8 bytes each); shared experts as a dense MLP."""
    routed = float(model.num_experts_per_token)
    ffn = float(model.expert_ffn_hidden_size)
    copies = _activation_copies(model, profile=profile)
    per_copy = Saved(elements=2.0 * model.hidden_size, bytes=32.0, split_elements=copies * ffn)
    router = Saved(bytes=8.0 * model.num_experts)
    return scaled(per_copy, routed) + router + Saved(split_elements=copies * ffn * model.num_shared_experts)


def _dropouts(model: ModelSpec) -> Saved:
    """Two residual dropouts a layer, one mask byte an element each."""
    return Saved(bytes=2.0 * model.hidden_size if model.hidden_dropout_fraction > 0 else 0.0)


def _selective(model: ModelSpec, *, moe_share: float) -> Saved:
    """Outputs of matrix products and of attention stay, with the layer's input: q, k, v, attention, o, MLP products."""
    query, kv, value = _query_width(model), _kv_width(model), _value_width(model)
    if model.kv_lora_rank:
        kv = query
    hidden = float(model.hidden_size)
    widths = 2.0 if model.gated_mlp else 1.0
    attention = Saved(elements=2.0 * hidden, split_elements=query + 2.0 * kv + value, split_bytes=4.0 * model.num_heads)
    dense = Saved(elements=hidden, split_elements=widths * model.ffn_hidden_size)
    routed = Saved(elements=hidden, split_elements=widths * model.expert_ffn_hidden_size)
    shared = scaled(routed, float(model.num_shared_experts))
    moe = scaled(routed, float(model.num_experts_per_token)) + shared
    return attention + scaled(dense, 1.0 - moe_share) + scaled(moe, moe_share)


def _working(model: ModelSpec, *, moe_share: float, profile: RuntimeProfile) -> Saved:
    """Gradients alive at once in the MLP's backward: of the product and of its two factors (3f), and the norm's fp32
    gradient chain (3 x 4h)."""
    dense = float(model.ffn_hidden_size)
    routed = float(model.expert_ffn_hidden_size * (model.num_experts_per_token + model.num_shared_experts))
    ffn = dense * (1.0 - moe_share) + routed * moe_share
    norm_bytes = 12.0 * model.hidden_size if model.rms_norm and profile.norm_saves_fp32_input else 0.0
    return Saved(elements=2.0 * model.hidden_size, bytes=norm_bytes, split_elements=3.0 * ffn)


def _outside(model: ModelSpec, *, profile: RuntimeProfile) -> Saved:
    """Final norm; token ids, labels and positions (about 50 bytes a token); embedding dropout; for a masked language
    model the prediction head's transform (dense output, activation, normalised: 3h) and the embedding's norm."""
    hidden = float(model.hidden_size)
    saved = _norm(model, profile=profile) + Saved(bytes=50.0)
    if model.hidden_dropout_fraction > 0:
        saved += Saved(bytes=hidden)
    if model.family is ModelFamily.ENCODER:
        saved += Saved(elements=3.0 * hidden)
    return saved


def _loss_bytes(*, upcast: bool, profile: RuntimeProfile) -> tuple[float, float]:
    """Bytes per logit at the loss's peak, for 16-bit and fp32 logits.

    Hugging Face's causal loss: log-softmax output, its gradient and the gradient of the fp32 logits, 4 bytes each (the
    16-bit logits and the upcast copy are gone by then): 12. Without the upcast the three are of the logits' own type:
    6. Megatron: fp32 softmax written in place and the 16-bit gradient: 6. Fused: logits and gradient share: 4.
    """
    if profile.fused_cross_entropy:
        return 4.0, 8.0
    if profile.fused_mlp_activation or profile.compiled:
        return 6.0, 8.0
    return (12.0, 12.0) if upcast else (6.0, 12.0)
