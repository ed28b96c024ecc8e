"""Counts the parameters of decoder language models with experts from their Hugging Face configs, exactly.

Owns one function per family with routed experts. Shapes and attention are `decoders`'; symbols as there, E experts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from planner.catalog.config_reader import ConfigReader
from planner.catalog.decoders import Shape, attention, decoder, read_shape
from planner.spec import ModelSpec, ParameterCounts


def mixtral(reader: ConfigReader, config_json: str) -> ModelSpec:
    """Mixtral: Llama's attention; every layer has a router h·E and E experts of 3·h·f."""
    shape = read_shape(reader, tied_default=False)
    num_experts = reader.positive("num_local_experts", use="the experts of a layer")
    counts = ParameterCounts(
        embedding=shape.v * shape.h,
        attention_per_layer=attention(shape),
        router_per_layer=shape.h * num_experts,
        expert=3 * shape.h * shape.f,
        norm_per_layer=2 * shape.h,
        final_norm=shape.h,
        head=0 if shape.tied else shape.v * shape.h,
    )
    return replace(
        decoder(reader, config_json, shape=shape, counts=counts),
        sliding_window=reader.count("sliding_window", use="the window of attention"),
        num_experts=num_experts,
        num_experts_per_token=_experts_per_token(reader, num_experts),
        expert_ffn_hidden_size=shape.f,
        num_dense_layers=0,
    )


def _experts_per_token(reader: ConfigReader, num_experts: int) -> int:
    chosen = reader.positive("num_experts_per_tok", use="the experts that each token visits")
    if chosen > num_experts:
        raise reader.refuse(
            f"num_experts_per_tok {chosen} is more than the {num_experts} experts of a layer",
            why="a token visits each expert at most once",
            fix="correct num_experts_per_tok or the number of experts in the model's config",
        )
    return chosen


def qwen3_moe(reader: ConfigReader, config_json: str) -> ModelSpec:
    """Qwen3-MoE: Qwen3's attention with head norms; sparse layers have a router and experts of their own width."""
    shape = read_shape(reader, tied_default=False)
    bias = reader.flag("attention_bias", use="biases of the attention's matrices", default=False)
    num_experts = reader.positive("num_experts", use="the experts of a layer")
    expert_f = reader.positive("moe_intermediate_size", use="the width of one expert")
    counts = ParameterCounts(
        embedding=shape.v * shape.h,
        attention_per_layer=attention(shape, query_bias=bias, output_bias=bias),
        mlp_per_layer=3 * shape.h * shape.f,
        router_per_layer=shape.h * num_experts,
        expert=3 * shape.h * expert_f,
        norm_per_layer=2 * shape.h + 2 * shape.d,
        final_norm=shape.h,
        head=0 if shape.tied else shape.v * shape.h,
    )
    return replace(
        decoder(reader, config_json, shape=shape, counts=counts),
        linear_bias=bias,
        num_experts=num_experts,
        num_experts_per_token=_experts_per_token(reader, num_experts),
        expert_ffn_hidden_size=expert_f,
        num_dense_layers=_dense_layers_of_qwen3(reader, shape.num_layers),
    )


def _dense_layers_of_qwen3(reader: ConfigReader, num_layers: int) -> int:
    step = reader.positive("decoder_sparse_step", use="every how many layers one is sparse", default=1)
    dense = reader.config.get("mlp_only_layers") or []
    if not isinstance(dense, list) or any(isinstance(i, bool) or not isinstance(i, int) for i in dense):
        raise reader.refuse("mlp_only_layers is not a list of layer numbers", why="they are dense", fix="correct it")
    return sum(1 for layer in range(num_layers) if layer in dense or (layer + 1) % step)


def deepseek_v3(reader: ConfigReader, config_json: str) -> ModelSpec:
    """DeepSeek-V3 and R1: multi-head latent attention, a few dense layers, then routed and shared experts.

    attention = q_a h·rq + norm rq + q_b rq·n·(dn+dr) + kv_a h·(rkv+dr) + norm rkv + kv_b rkv·n·(dn+dv) + o n·dv·h
    (DeepSeek-V2, arXiv 2405.04434, section 2.1). The multi-token-prediction module is not part of the count.
    """
    shape = read_shape(reader, tied_default=False)
    num_experts = reader.positive("n_routed_experts", use="the routed experts of a layer")
    num_shared = reader.count("n_shared_experts", use="the experts that every token visits")
    expert_f = reader.positive("moe_intermediate_size", use="the width of one expert")
    num_dense = reader.count("first_k_dense_replace", use="how many of the first layers are dense")
    latent = _latent_attention(reader, shape)
    counts = ParameterCounts(
        embedding=shape.v * shape.h,
        attention_per_layer=latent.pop("count"),
        mlp_per_layer=3 * shape.h * shape.f,
        router_per_layer=shape.h * num_experts,
        expert=3 * shape.h * expert_f,
        shared_experts_per_layer=3 * shape.h * expert_f * num_shared,
        norm_per_layer=2 * shape.h,
        final_norm=shape.h,
        head=0 if shape.tied else shape.v * shape.h,
    )
    return replace(
        decoder(reader, config_json, shape=shape, counts=counts),
        num_experts=num_experts,
        num_experts_per_token=_experts_per_token(reader, num_experts),
        num_shared_experts=num_shared,
        expert_ffn_hidden_size=expert_f,
        num_dense_layers=min(num_dense, shape.num_layers),
        **latent,
    )


def _latent_attention(reader: ConfigReader, shape: Shape) -> dict[str, Any]:
    """The fields of ModelSpec that say multi-head latent attention, and its parameters as `count`."""
    rkv = reader.positive("kv_lora_rank", use="the width of the compressed keys and values")
    rq = reader.count("q_lora_rank", use="the width of the compressed queries; null: not compressed")
    dn = reader.positive("qk_nope_head_dim", use="the part of a query head without positions")
    dr = reader.positive("qk_rope_head_dim", use="the part of a query head with positions")
    dv = reader.positive("v_head_dim", use="the size of a value head")
    query = shape.h * rq + rq + rq * shape.n * (dn + dr) if rq else shape.h * shape.n * (dn + dr)
    key_value = shape.h * (rkv + dr) + rkv + rkv * shape.n * (dn + dv)
    return {
        "count": query + key_value + shape.n * dv * shape.h,
        "kv_lora_rank": rkv,
        "q_lora_rank": rq,
        "head_size": dn + dr,
        "qk_head_size": dn + dr,
        "v_head_size": dv,
    }
