"""The tensors that one transformer layer saves for its backward pass, counted one by one.

Owns the counts. They were read in transformers 5.24 (`modeling_llama`, `_gpt2`, `_bert`, `_mixtral`, `_phi3`, `_gemma`,
`_deepseek_v3`, `_t5`, `integrations/moe.py`) and compared with what autograd really saves (saved-tensor hooks on XX
Notation: h hidden size, a query width (heads x head size), g key/value width, f feed-forward size, e bytes of an
element.
"""

from __future__ import annotations

import json
from typing import Any

from planner.cost.profile import RuntimeProfile
from planner.spec._record import record
from planner.spec.kinds import ModelFamily
from planner.spec.model import ModelSpec

# Query and key are normalised per head in these: one more RMSNorm over a + g.
_QUERY_KEY_NORM = frozenset({"qwen3", "qwen3_moe", "gemma3", "gemma3_text", "olmo2", "olmoe"})
# RMSNorm multiplies in fp32 (1 + weight) before going back to 16 bit: one more fp32 tensor.
_NORM_SCALES_IN_FP32 = frozenset({"gemma", "gemma2", "gemma3", "gemma3_text"})
# Scores and logits are capped with a tanh; attention's and the MLP's outputs are normalised before they are added.
_CAPPED = frozenset({"gemma2"})
# Query, key and value are slices of one product, and the value slice keeps all of it alive.
_FUSED_QUERY_KEY_VALUE = frozenset({"phi3"})
_FUSED_PRODUCTS = frozenset({"phi3", "gpt2"})
# Eager attention takes the softmax in the training precision in these; elsewhere in fp32, and casts.
_SOFTMAX_IN_16_BIT = frozenset({"gpt2", "bert", "t5"})
# The router works on an fp32 copy of its input.
_ROUTER_IN_FP32 = frozenset({"deepseek_v3"})
# Activations that Hugging Face writes in Python, each step saved by autograd (activations.py).
PYTHON_GELU = frozenset({"gelu_new", "gelu_fast", "gelu_python", "gelu_python_tanh", "quick_gelu"})
_USUAL_ACTIVATION = {"gpt2": "gelu_new", "t5": "relu"}


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


def query_width(model: ModelSpec) -> float:
    """Elements of all query heads of a token."""
    return float(model.num_heads * (model.qk_head_size or model.head_size))


def key_value_width(model: ModelSpec) -> float:
    """Elements of all key heads of a token; latent attention decompresses keys to every head."""
    if model.kv_lora_rank:
        return query_width(model)
    return float(model.num_kv_heads * model.head_size)


def _value_width(model: ModelSpec) -> float:
    return float(model.num_heads * (model.v_head_size or model.head_size))


def _config(model: ModelSpec) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(model.config_json) if model.config_json else {}
    return found


def activation_name(model: ModelSpec) -> str:
    """The MLP's activation as the config names it, or as the family usually has it. T5 says `gated-gelu` for GELU
    written in Python (configuration_t5.py)."""
    config = _config(model)
    projection = str(config.get("feed_forward_proj") or "")
    if projection:
        return "gelu_new" if projection == "gated-gelu" else projection.removeprefix("gated-")
    keys = ("hidden_act", "activation_function", "hidden_activation", "dense_act_fn")
    return next((str(config[key]) for key in keys if config.get(key)), _USUAL_ACTIVATION.get(model.model_type, ""))


def caps_scores(model: ModelSpec) -> bool:
    """Whether attention's scores go through a tanh, which only eager attention can do (Gemma 2)."""
    usual = 50.0 if model.model_type in _CAPPED else None
    return bool(_config(model).get("attn_logit_softcapping", usual))


def caps_logits(model: ModelSpec) -> bool:
    """Whether the logits go through a tanh, whose output stays for backward (Gemma 2)."""
    usual = 30.0 if model.model_type in _CAPPED else None
    return bool(_config(model).get("final_logit_softcapping", usual))


def attentions_per_layer(model: ModelSpec) -> float:
    """1; an encoder-decoder's decoder layers attend to the encoder too: the mean over both stacks."""
    if model.family is not ModelFamily.ENCODER_DECODER:
        return 1.0
    return 1.0 + model.num_layers / max(model.num_layers + model.num_encoder_layers, 1)


def softmax_upcasts(model: ModelSpec) -> bool:
    """Whether eager attention keeps its softmax in fp32 beside a 16-bit copy."""
    return model.model_type not in _SOFTMAX_IN_16_BIT


def modules_with_weights(model: ModelSpec) -> float:
    """Leaf modules of one layer that hold weights, as Hugging Face builds them: what ZeRO-3's hooks are around.

    Query, key, value, output (GPT-2, Phi-3: one for query, key and value), the MLP's matrices (Phi-3: gate and up in
    one), the norms; experts: all gates and ups in one tensor, all downs in another, and the router.
    """
    fused = has_fused_products(model)
    attention = 2.0 if fused else 4.0
    mlp = 3.0 if model.num_experts or (model.gated_mlp and not fused) else 2.0
    per_head_norms = 2.0 if model.model_type in _QUERY_KEY_NORM else 0.0
    return attention + mlp + norms_per_layer(model) + per_head_norms


def has_fused_products(model: ModelSpec) -> bool:
    """Whether query, key and value are one product."""
    return model.model_type in _FUSED_PRODUCTS


def norms_per_layer(model: ModelSpec) -> float:
    """2, or as many as the norm weights say (Gemma-2 has 4, T5's decoder 3)."""
    width = model.hidden_size * (1 if model.rms_norm else 2)
    return float(max(model.counts.norm_per_layer // width, 2)) if width else 2.0


def norm_saved(model: ModelSpec, *, profile: RuntimeProfile) -> Saved:
    """RMSNorm in Hugging Face: fp32 copy 4h (autograd of pow and mul), normalised h, weighted h (the next product's
    input); T5's in 16 bit also keeps its input, 10 h in all, 12 h in fp32. LayerNorm and fused RMSNorm: input h, output
    h. Statistics: 4 or 8 bytes.
    """
    hidden = float(model.hidden_size)
    if not model.rms_norm or not profile.hugging_face_code or profile.compiled:
        return Saved(elements=2.0 * hidden, bytes=8.0)
    if model.model_type in _NORM_SCALES_IN_FP32:
        return Saved(elements=hidden, bytes=8.0 * hidden + 4.0)
    if model.model_type == "t5":
        return Saved(elements=hidden, bytes=8.0 * hidden + 4.0)
    return Saved(elements=2.0 * hidden, bytes=4.0 * hidden + 4.0)


def added_outputs(model: ModelSpec) -> Saved:
    """What norms after attention and MLP do not keep, to be taken off: their output is added, no product's input."""
    after = norms_per_layer(model) - 2.0 if model.model_type in _CAPPED else 0.0
    return Saved(elements=-after * model.hidden_size)


def eager_copies(model: ModelSpec) -> Saved:
    """What eager attention keeps beside its scores, less what only a kernel keeps.

    Key and value heads repeated for each query head, 2 (a - g); copies of slices instead of the whole fused product
    (latent attention: keys and values, Phi-3: query, key and value); no log-sum-exp.
    """
    query, key = query_width(model), key_value_width(model)
    saved = Saved(split_elements=2.0 * (query - key), split_bytes=-4.0 * model.num_heads)
    if model.kv_lora_rank:
        saved += Saved(split_elements=-2.0 / 3.0 * key)
    if model.model_type in _FUSED_QUERY_KEY_VALUE:
        saved += Saved(split_elements=-query - key)
    return saved


def attention_saved(model: ModelSpec) -> Saved:
    """Query, key, value and output of the kernel, and its log-sum-exp (4 bytes a head): a + 2g + a elements.

    Per-head query/key norms add an fp32 and a normalised copy of a + g. Latent attention (DeepSeek, arXiv 2405.04434)
    keeps decompressed keys and values in one product, and the compressed vectors with their norms.
    """
    query, key = query_width(model), key_value_width(model)
    saved = Saved(split_elements=2.0 * query + 2.0 * key, split_bytes=4.0 * model.num_heads)
    if model.kv_lora_rank:
        value, compressed = _value_width(model), float(model.kv_lora_rank + model.q_lora_rank)
        saved = Saved(split_elements=2.0 * query + 2.0 / 3.0 * key + 2.0 * value, split_bytes=4.0 * model.num_heads)
        saved += Saved(elements=2.0 * compressed, bytes=4.0 * compressed)
    if model.model_type in _QUERY_KEY_NORM:
        statistics = 4.0 * (model.num_heads + model.num_kv_heads)
        saved += Saved(split_elements=query + key, split_bytes=4.0 * (query + key) + statistics)
    if model.model_type in _FUSED_QUERY_KEY_VALUE:
        saved += Saved(split_elements=query + key)
    return saved


def frozen_saved(model: ModelSpec, *, moe_share: float, rank: int, profile: RuntimeProfile) -> Saved:
    """What a layer does not keep when only low-rank adapters of its attention train (`runtime/lora.py`), less what they
    keep themselves, to be taken off.

    A frozen product needs no input: the MLP's norm output h and its product f, of each routed copy h and f. A frozen
    RMSNorm needs no normalised copy. The adapters keep `rank` elements for each projection.
    """
    hidden = float(model.hidden_size)
    saved = Saved(elements=hidden - rank * (2.0 if has_fused_products(model) else 4.0))
    if model.rms_norm and profile.hugging_face_code and not profile.compiled:
        copy = Saved(bytes=4.0 * hidden) if model.model_type in _NORM_SCALES_IN_FP32 else Saved(elements=hidden)
        saved += scaled(copy, norms_per_layer(model))
        if model.model_type in _QUERY_KEY_NORM:
            saved += Saved(split_elements=query_width(model) + key_value_width(model))
    if activation_name(model) != "relu":  # which needs its own output
        saved += Saved(split_elements=(1.0 - moe_share) * model.ffn_hidden_size)
    routed = Saved(elements=hidden, split_elements=float(model.expert_ffn_hidden_size))
    shared = Saved(split_elements=float(model.expert_ffn_hidden_size * model.num_shared_experts))
    return saved + scaled(scaled(routed, float(model.num_experts_per_token)) + shared, moe_share)


def cross_attention_saved(model: ModelSpec) -> Saved:
    """An encoder-decoder's second attention: query, key, value, output."""
    return Saved(split_elements=4.0 * query_width(model), split_bytes=4.0 * model.num_heads)


def _activation_copies(model: ModelSpec, *, profile: RuntimeProfile) -> float:
    """Feed-forward tensors of f elements that one MLP keeps.

    Gated: gate, up, activation, product: 4 (fused or compiled: gate, up, product: 3). Plain: input and output: 2; ReLU
    1 (the output is the next product's input). GELU written in Python: 5 (input, tanh, 1 + tanh, input / 2, product).
    """
    name, fused = activation_name(model), profile.fused_activation or profile.compiled
    is_python = name in PYTHON_GELU and profile.hugging_face_code and not fused
    if model.gated_mlp:
        if fused:
            return 3.0
        return 7.0 if is_python else 4.0
    if is_python:
        return 5.0
    return 1.0 if name == "relu" else 2.0


def dense_mlp_saved(model: ModelSpec, *, profile: RuntimeProfile) -> Saved:
    """The dense MLP's tensors; without dropout between them T5's ReLU output is kept once."""
    copies = _activation_copies(model, profile=profile)
    if model.model_type != "t5" or not model.hidden_dropout_fraction:
        return Saved(split_elements=copies * model.ffn_hidden_size)
    if not model.gated_mlp:
        copies += 1.0  # the dropped output, the next product's input; of a gate's product only that is kept
    return Saved(split_elements=copies * model.ffn_hidden_size, split_bytes=float(model.ffn_hidden_size))


def experts_saved(model: ModelSpec, *, profile: RuntimeProfile) -> Saved:
    """k routed copies of a token, each: gathered input h, fused gate-up 2f, activation f, product f, output h; the
    router's fp32 probabilities; sort and unsort indexes (8 bytes each); shared experts as a dense MLP."""
    ffn = float(model.expert_ffn_hidden_size) * _activation_copies(model, profile=profile)
    copy = Saved(elements=2.0 * model.hidden_size, bytes=32.0, split_elements=ffn)
    router = Saved(bytes=8.0 * model.num_experts)
    if model.model_type in _ROUTER_IN_FP32:  # 4 h beside 16 bit, nothing in fp32
        router += Saved(elements=-2.0 * model.hidden_size, bytes=8.0 * model.hidden_size)
    shared = Saved(split_elements=ffn * model.num_shared_experts)
    return scaled(copy, float(model.num_experts_per_token)) + router + shared


def dropouts_saved(model: ModelSpec) -> Saved:
    """A residual dropout for each attention and the MLP, one mask byte an element each."""
    count = 1.0 + attentions_per_layer(model)
    return Saved(bytes=count * model.hidden_size if model.hidden_dropout_fraction > 0 else 0.0)


def kept_products(model: ModelSpec, *, moe_share: float) -> Saved:
    """Per-operator checkpointing: the layer's input, the outputs of its matrix products (query, key, value, projection,
    feed-forward in and out) and of attention stay; everything else is recomputed."""
    query, key = query_width(model), key_value_width(model)
    hidden, widths = float(model.hidden_size), 2.0 if model.gated_mlp else 1.0
    attention = Saved(elements=2.0 * hidden, split_elements=2.0 * query + 2.0 * key, split_bytes=4.0 * model.num_heads)
    if model.kv_lora_rank:  # down- and upward products; keys and values come from one
        decompressed = query + 2.0 / 3.0 * key + 2.0 * _value_width(model)
        compressed = 2.0 * hidden + model.kv_lora_rank + model.q_lora_rank
        attention = Saved(elements=compressed, split_elements=decompressed, split_bytes=4.0 * model.num_heads)
    dense = Saved(elements=hidden, split_elements=widths * model.ffn_hidden_size)
    routed = Saved(elements=hidden, split_elements=widths * model.expert_ffn_hidden_size)
    moe = scaled(routed, float(model.num_experts_per_token + model.num_shared_experts))
    second = scaled(cross_attention_saved(model) + Saved(elements=hidden), attentions_per_layer(model) - 1.0)
    return attention + second + scaled(dense, 1.0 - moe_share) + scaled(moe, moe_share)
