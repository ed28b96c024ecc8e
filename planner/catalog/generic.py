"""The generic decoder: a config that gives shapes but no `model_type`, for estimates without a named model.

Counted like Llama when the MLP is gated, else like GPT-2 (LayerNorm, plain MLP) without learned positions and biases.
What is left out: feed-forward 4 x hidden, vocabulary 51,200, key-value heads = heads. Whether the MLP is gated follows
from `gated_mlp` or `hidden_act`, else from the shape (`_is_gated`). The runtime cannot build it: it is never planned.
"""

from __future__ import annotations

from dataclasses import replace

from planner.catalog import decoders
from planner.catalog.config_reader import ConfigReader
from planner.spec import ModelSpec, ParameterCounts

MODEL_TYPE = "generic"
USUAL_VOCAB_SIZE = 51_200

# The glossary's names and GPT-2's, for the same fields.
_OTHER_NAMES = {
    "hidden_size": ("n_embd", "d_model", "hidden_dim"),
    "num_hidden_layers": ("num_layers", "n_layer"),
    "num_attention_heads": ("num_heads", "n_head"),
    "num_key_value_heads": ("num_kv_heads",),
    "intermediate_size": ("ffn_hidden_size", "n_inner"),
    "head_dim": ("head_size",),
    "num_experts_per_tok": ("num_experts_per_token", "top_k"),
    "num_local_experts": ("num_experts",),
    "hidden_act": ("activation_function", "hidden_activation"),
}


def decoder(reader: ConfigReader, config_json: str) -> ModelSpec:
    """A decoder of the given shape; with experts, every layer has them."""
    renamed = _with_usual_names(reader)
    shape = decoders.read_shape(renamed, tied_default=False)
    gated = _is_gated(renamed, shape)
    num_experts = renamed.count("num_local_experts", use="the experts of a layer")
    mlp = (3 if gated else 2) * shape.h * shape.f
    norm = shape.h if gated else 2 * shape.h  # LayerNorm has a bias
    counts = ParameterCounts(
        embedding=shape.v * shape.h,
        attention_per_layer=decoders.attention(shape),
        mlp_per_layer=0 if num_experts else mlp,
        router_per_layer=shape.h * num_experts,
        expert=mlp if num_experts else 0,
        norm_per_layer=2 * norm,
        final_norm=norm,
        head=0 if shape.tied else shape.v * shape.h,
    )
    spec = replace(
        decoders.decoder(renamed, config_json, shape=shape, counts=counts),
        gated_mlp=gated,
        rms_norm=gated,
        tensor_parallel_refusal="",  # an estimate may ask for any split
        pipeline_parallel_refusal="",
    )
    if not num_experts:
        return spec
    chosen = renamed.positive("num_experts_per_tok", use="the experts that each token visits", default=1)
    return replace(
        spec,
        num_experts=num_experts,
        num_experts_per_token=min(chosen, num_experts),
        expert_ffn_hidden_size=shape.f,
        num_dense_layers=0,
    )


# Activations of plain MLPs; the others that Hugging Face names (silu, swish, …) stand in gated ones.
_PLAIN_ACTIVATIONS = ("gelu", "relu", "quick_gelu", "tanh")
_GATED_ACTIVATIONS = ("geglu", "reglu")


def _is_gated(reader: ConfigReader, shape: decoders.Shape) -> bool:
    """Whether the feed-forward part has a gate.

    Said by `gated_mlp`, or by the activation. Else by the shape: 4 x hidden is the plain MLP of GPT, OPT and BLOOM;
    other widths (8/3, 3.5 x hidden) were chosen to pay for a third matrix; grouped key-value heads and experts came
    with gated MLPs. Of the published models only Llama-3.2-1B (4 x hidden, gated) has to say so.
    """
    activation = reader.word("hidden_act", use="the activation of the feed-forward part", default="").lower()
    by_shape = shape.f != 4 * shape.h or shape.k < shape.n or bool(reader.config.get("num_local_experts"))
    by_name = activation.startswith(_GATED_ACTIVATIONS) or not activation.startswith(_PLAIN_ACTIVATIONS)
    default = by_name if activation else by_shape
    return reader.flag("gated_mlp", use="whether the feed-forward part has a gate", default=default)


def _with_usual_names(reader: ConfigReader) -> ConfigReader:
    config = dict(reader.config)
    for usual, others in _OTHER_NAMES.items():
        for other in others:
            if usual not in config and other in config:
                config[usual] = config[other]
    hidden = config.get("hidden_size")
    if config.get("intermediate_size") is None and isinstance(hidden, int):
        config["intermediate_size"] = 4 * hidden
    if config.get("vocab_size") is None:
        config["vocab_size"] = USUAL_VOCAB_SIZE
    return ConfigReader(config, name=reader.name)
