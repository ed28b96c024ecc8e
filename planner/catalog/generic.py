"""The generic decoder: a config that gives shapes but no `model_type`, for estimates without a named model.

Counted like Llama when the MLP is gated, else like GPT-2 without learned positions and biases. What is left out:
feed-forward 4 x hidden, vocabulary 51,200, key-value heads = heads. The runtime cannot build it, so it is never
planned.
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
}


def decoder(reader: ConfigReader, config_json: str) -> ModelSpec:
    """A decoder of the given shape; with experts, every layer has them."""
    renamed = _with_usual_names(reader)
    shape = decoders.read_shape(renamed, tied_default=False)
    gated = renamed.flag("gated_mlp", use="whether the feed-forward part has a gate", default=True)
    num_experts = renamed.count("num_local_experts", use="the experts of a layer")
    mlp = (3 if gated else 2) * shape.h * shape.f
    counts = ParameterCounts(
        embedding=shape.v * shape.h,
        attention_per_layer=decoders.attention(shape),
        mlp_per_layer=0 if num_experts else mlp,
        router_per_layer=shape.h * num_experts,
        expert=mlp if num_experts else 0,
        norm_per_layer=2 * shape.h,
        final_norm=shape.h,
        head=0 if shape.tied else shape.v * shape.h,
    )
    spec = replace(
        decoders.decoder(renamed, config_json, shape=shape, counts=counts),
        gated_mlp=gated,
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
