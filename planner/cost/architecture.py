"""What a model keeps for its backward pass, per token: the layers of a stack, the loss, and what surrounds them.

Owns the mix (dense and mixture-of-experts layers, encoder and decoder) and what checkpointing keeps. The tensors of one
layer are counted in `layer_tensors`; degrees of parallelism and batch sizes are `activations`' business.
"""

from __future__ import annotations

from planner.cost.layer_tensors import (
    Saved,
    added_outputs,
    attention_saved,
    attentions_per_layer,
    caps_logits,
    caps_scores,
    cross_attention_saved,
    dense_mlp_saved,
    dropouts_saved,
    eager_copies,
    experts_saved,
    frozen_saved,
    kept_products,
    key_value_width,
    norm_saved,
    norms_per_layer,
    query_width,
    scaled,
    softmax_upcasts,
)
from planner.cost.profile import RuntimeProfile
from planner.spec._record import record
from planner.spec.kinds import ModelFamily
from planner.spec.model import ModelSpec


@record
class Architecture:
    """Per-token coefficients of one model under one profile.

    `layer`: an average layer, mixed as the model mixes its kinds. `selective`: the same under the per-operator policy.
    `checkpoint`: what a checkpointed layer keeps, its input. `eager`: what eager attention keeps beside its scores.
    `repeated`: key and value heads repeated for each query head. `working`: gradients alive together inside one layer's
    backward. `outside`: final norm, embedding, ids, the transform of a masked language model's head. `loss_*`: bytes
    per logit at the loss's peak.
    """

    layer: Saved
    selective: Saved
    checkpoint: Saved
    eager: Saved
    repeated: Saved
    working: Saved
    outside: Saved
    softmax_upcasts: bool
    scores_are_capped: bool
    has_score_dropout: bool
    attentions: float  # of a layer
    loss_bytes: float
    loss_bytes_fp32: float
    loss_bytes_split: float  # where the vocabulary is split over tensor-parallel ranks


def architecture_of(model: ModelSpec, *, profile: RuntimeProfile, lora_rank: int = 0) -> Architecture:
    """Count what `model` saves per token under `profile`, all of it trained or only adapters of `lora_rank`. A traced
    module has zero coefficients here."""
    moe_share = model.num_moe_layers / model.num_layers if model.num_layers else 0.0
    loss, loss_fp32 = _loss_bytes(upcasts=model.family is ModelFamily.DECODER, profile=profile)
    if caps_logits(model):
        loss, loss_fp32 = loss + 2.0, loss_fp32 + 4.0
    layer = _average_layer(model, moe_share=moe_share, profile=profile)
    if lora_rank:
        layer += scaled(frozen_saved(model, moe_share=moe_share, rank=lora_rank, profile=profile), -1.0)
    return Architecture(
        layer=layer,
        selective=kept_products(model, moe_share=moe_share),
        checkpoint=Saved(elements=float(model.hidden_size)),
        eager=eager_copies(model),
        repeated=Saved(split_elements=2.0 * (query_width(model) - key_value_width(model))),
        working=_working(model, moe_share=moe_share),
        outside=_outside(model, profile=profile),
        softmax_upcasts=softmax_upcasts(model) and not profile.recomputes_attention_core,
        scores_are_capped=caps_scores(model),
        attentions=attentions_per_layer(model),
        has_score_dropout=model.attention_dropout_fraction > 0,
        loss_bytes=loss,
        loss_bytes_fp32=loss_fp32,
        loss_bytes_split=min(profile.split_loss_bytes, loss) if profile.split_loss_bytes else loss,
    )


def _average_layer(model: ModelSpec, *, moe_share: float, profile: RuntimeProfile) -> Saved:
    """Attention + MLP (dense and routed, as mixed) + norms + dropouts; an encoder-decoder's mean over both stacks."""
    attention = attention_saved(model)
    dense, routed = dense_mlp_saved(model, profile=profile), experts_saved(model, profile=profile)
    mlp = scaled(dense, 1.0 - moe_share) + scaled(routed, moe_share)
    norm = norm_saved(model, profile=profile)
    layer = attention + mlp + scaled(norm, norms_per_layer(model)) + added_outputs(model) + dropouts_saved(model)
    if model.family is not ModelFamily.ENCODER_DECODER:
        return layer
    decoder_share = model.num_layers / max(model.num_layers + model.num_encoder_layers, 1)
    encoder = attention + mlp + scaled(norm, 2.0) + dropouts_saved(model)  # dropouts: the mean of both stacks
    return scaled(layer + cross_attention_saved(model), decoder_share) + scaled(encoder, 1.0 - decoder_share)


def _working(model: ModelSpec, *, moe_share: float) -> Saved:
    """Gradients alive at once at a layer's peak, the activation's backward: of the product and of one factor (2f), of
    the residual stream and of the layer's output (2h). Counted with an allocation tracker on llama and gpt2 layers."""
    dense = float(model.ffn_hidden_size)
    routed = float(model.expert_ffn_hidden_size * (model.num_experts_per_token + model.num_shared_experts))
    ffn = dense * (1.0 - moe_share) + routed * moe_share
    return Saved(elements=2.0 * model.hidden_size, split_elements=2.0 * ffn)


def _outside(model: ModelSpec, *, profile: RuntimeProfile) -> Saved:
    """Final norm; token ids, labels and positions (about 50 bytes a token); embedding dropout; for a masked language
    model the prediction head's transform (dense output, activation, normalised: 3h) and the embedding's norm."""
    hidden = float(model.hidden_size)
    saved = norm_saved(model, profile=profile) + Saved(bytes=50.0)
    if model.hidden_dropout_fraction > 0:
        saved += Saved(bytes=hidden)
    if model.family is ModelFamily.ENCODER:
        saved += Saved(elements=3.0 * hidden)
    return saved


def _loss_bytes(*, upcasts: bool, profile: RuntimeProfile) -> tuple[float, float]:
    """Bytes per logit at the loss's peak, for 16-bit and for fp32 logits.

    Hugging Face's causal loss (loss_utils.py, `ForCausalLMLoss`): log-softmax output, its gradient and the gradient of
    the fp32 logits, 4 bytes each (the 16-bit logits and the upcast copy are gone by then): 12. Without the upcast, as
    in BERT and T5, the three are of the logits' own type: 6. Megatron: fp32 softmax written in place and the 16-bit
    gradient: 6; torch.compile likewise. Fused kernels share logits and gradient: 4.
    """
    if profile.loss_bytes:
        return profile.loss_bytes, profile.loss_bytes
    if profile.fused_cross_entropy:
        return 4.0, 8.0
    if profile.loss_in_place or (profile.compiled and profile.compiles_loss):
        return 6.0, 8.0
    return (12.0, 12.0) if upcasts else (6.0, 12.0)
