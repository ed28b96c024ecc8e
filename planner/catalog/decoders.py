"""Counts the parameters of decoder language models from their Hugging Face configs, exactly.

Owns one function per family. Counts follow transformers 5 (`modeling_<type>.py`); a test holds every shipped model
against transformers itself on the meta device. Symbols: h hidden, n heads, k key-value heads, d head size,
f feed-forward width, v vocabulary.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from planner.catalog.config_reader import ConfigReader
from planner.spec import ModelFamily, ModelSpec, ParameterCounts
from planner.spec._record import record

# What planner.runtime builds under tensor and pipeline parallelism.
SPLIT_BY_RUNTIME = ("gemma", "gpt2", "llama", "mistral", "mixtral", "phi3", "qwen2", "qwen3")


@record
class Shape:
    """The fields that nearly every decoder config has."""

    h: int
    num_layers: int
    n: int
    k: int
    d: int
    f: int
    v: int
    tied: bool


def read_shape(reader: ConfigReader, *, tied_default: bool, head_default: int | None = None) -> Shape:
    """The shape in Llama's field names. `head_default` stands in for an absent head_dim (else h / n)."""
    h = reader.positive("hidden_size", use="the width of the model")
    n = reader.positive("num_attention_heads", use="the attention heads of a layer")
    k = reader.positive("num_key_value_heads", use="the key-value heads of a layer", default=n)
    reader.divides(n, k, fields=("num_attention_heads", "num_key_value_heads"))
    return Shape(
        h=h,
        num_layers=reader.positive("num_hidden_layers", use="the number of decoder layers"),
        n=n,
        k=k,
        d=_head_size(reader, h=h, n=n, default=head_default),
        f=reader.positive("intermediate_size", use="the width of the feed-forward part"),
        v=reader.positive("vocab_size", use="the size of the vocabulary"),
        tied=reader.flag("tie_word_embeddings", use="whether head and embedding share weights", default=tied_default),
    )


def _head_size(reader: ConfigReader, *, h: int, n: int, default: int | None) -> int:
    if reader.config.get("head_dim") is not None:
        return reader.positive("head_dim", use="the size of one attention head")
    return default or reader.divides(h, n, fields=("hidden_size", "num_attention_heads"))


def llama(reader: ConfigReader, config_json: str) -> ModelSpec:
    """Llama, and Mistral and Qwen 2 and 3, which differ in biases, head norms and the sliding window.

    attention = q n·d·h + kv 2·k·d·h + o h·n·d (+ biases); MLP = gate, up and down 3·h·f; two RMS norms of h.
    """
    kind = reader.config["model_type"]
    shape = read_shape(reader, tied_default=False, head_default=128 if kind == "qwen3" else None)
    query_bias, output_bias = _attention_biases(reader, kind)
    mlp_bias = kind == "llama" and reader.flag("mlp_bias", use="biases of the feed-forward part", default=False)
    counts = ParameterCounts(
        embedding=shape.v * shape.h,
        attention_per_layer=attention(shape, query_bias=query_bias, output_bias=output_bias),
        mlp_per_layer=3 * shape.h * shape.f + (2 * shape.f + shape.h if mlp_bias else 0),
        norm_per_layer=2 * shape.h + (2 * shape.d if kind == "qwen3" else 0),  # qwen3: norms of query and key heads
        final_norm=shape.h,
        head=0 if shape.tied else shape.v * shape.h,
    )
    spec = decoder(reader, config_json, shape=shape, counts=counts)
    return replace(spec, linear_bias=query_bias or mlp_bias, sliding_window=_sliding_window(reader, kind))


def _attention_biases(reader: ConfigReader, kind: str) -> tuple[bool, bool]:
    """Biases of query, key and value; bias of the output."""
    if kind == "qwen2":
        return True, False
    if kind == "mistral":
        return False, False
    bias = reader.flag("attention_bias", use="biases of the attention's matrices", default=False)
    return bias, bias


def _sliding_window(reader: ConfigReader, kind: str) -> int:
    """The window that every layer uses; 0 where some or all layers attend to everything."""
    if kind == "mistral":
        # transformers' own default where the field is absent; null means full attention
        absent = 4096 if "sliding_window" not in reader.config else 0
        return reader.count("sliding_window", use="the window of attention", default=absent)
    return 0  # qwen: use_sliding_window only slides the upper layers; llama: none


def attention(shape: Shape, *, query_bias: bool = False, output_bias: bool = False) -> int:
    """Grouped-query attention: q n·d·h, k and v k·d·h each, o h·n·d, and their biases."""
    matrices = 2 * shape.h * shape.n * shape.d + 2 * shape.h * shape.k * shape.d
    return matrices + (shape.n + 2 * shape.k) * shape.d * query_bias + shape.h * output_bias


def decoder(reader: ConfigReader, config_json: str, *, shape: Shape, counts: ParameterCounts) -> ModelSpec:
    """The record of a decoder with gated MLP and RMS norms; callers replace what differs."""
    kind = str(reader.config["model_type"])
    refusal = "" if kind in SPLIT_BY_RUNTIME else runtime_refusal(kind)
    return ModelSpec(
        name=reader.name,
        family=ModelFamily.DECODER,
        model_type=kind,
        config_json=config_json,
        num_layers=shape.num_layers,
        hidden_size=shape.h,
        num_heads=shape.n,
        num_kv_heads=shape.k,
        head_size=shape.d,
        ffn_hidden_size=shape.f,
        vocab_size=shape.v,
        gated_mlp=True,
        rms_norm=True,
        tied_embeddings=shape.tied,
        attention_dropout_fraction=reader.fraction("attention_dropout", use="dropout of attention"),
        num_dense_layers=shape.num_layers,
        counts=counts,
        tensor_parallel_refusal=refusal,
        pipeline_parallel_refusal=refusal,
    )


def runtime_refusal(kind: str) -> str:
    """Why a model type is run unsplit only."""
    return f"the runtime splits {', '.join(SPLIT_BY_RUNTIME)} models; {kind} runs whole on each data-parallel rank"


def gpt2(reader: ConfigReader, config_json: str) -> ModelSpec:
    """GPT-2: fused qkv 3h² + 3h, output h² + h, MLP 2·h·f + f + h, two layer norms of 2h, learned positions, tied."""
    h = reader.positive("n_embd", use="the width of the model")
    n = reader.positive("n_head", use="the attention heads of a layer")
    f = reader.positive("n_inner", use="the width of the feed-forward part", default=4 * h)
    shape = Shape(
        h=h,
        num_layers=reader.positive("n_layer", use="the number of decoder layers"),
        n=n,
        k=n,
        d=reader.divides(h, n, fields=("n_embd", "n_head")),
        f=f,
        v=reader.positive("vocab_size", use="the size of the vocabulary"),
        tied=reader.flag("tie_word_embeddings", use="whether head and embedding share weights", default=True),
    )
    positions = reader.positive("n_positions", use="the longest sequence; positions are learned")
    counts = ParameterCounts(
        embedding=shape.v * h,
        position_embedding=positions * h,
        attention_per_layer=4 * h * h + 4 * h,
        mlp_per_layer=2 * h * f + f + h,
        norm_per_layer=4 * h,
        final_norm=2 * h,
        head=0 if shape.tied else shape.v * h,
    )
    return replace(
        decoder(reader, config_json, shape=shape, counts=counts),
        max_seq_len=positions,
        gated_mlp=False,
        rms_norm=False,
        linear_bias=True,
        attention_dropout_fraction=reader.fraction("attn_pdrop", use="dropout of attention", default=0.1),
        hidden_dropout_fraction=reader.fraction("resid_pdrop", use="dropout of the residual", default=0.1),
    )


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


def gemma(reader: ConfigReader, config_json: str) -> ModelSpec:
    """Gemma 1 (two norms a layer) and 2 (four norms a layer, every other layer with a sliding window); tied head."""
    kind = reader.config["model_type"]
    shape = read_shape(reader, tied_default=True, head_default=256)
    bias = reader.flag("attention_bias", use="biases of the attention's matrices", default=False)
    counts = ParameterCounts(
        embedding=shape.v * shape.h,
        attention_per_layer=attention(shape, query_bias=bias, output_bias=bias),
        mlp_per_layer=3 * shape.h * shape.f,
        norm_per_layer=(4 if kind == "gemma2" else 2) * shape.h,
        final_norm=shape.h,
        head=0 if shape.tied else shape.v * shape.h,
    )
    return replace(decoder(reader, config_json, shape=shape, counts=counts), linear_bias=bias)


def phi3(reader: ConfigReader, config_json: str) -> ModelSpec:
    """Phi-3 and Phi-4: Llama with fused qkv and gate-up matrices, which changes no count."""
    shape = read_shape(reader, tied_default=False)
    counts = ParameterCounts(
        embedding=shape.v * shape.h,
        attention_per_layer=attention(shape),
        mlp_per_layer=3 * shape.h * shape.f,
        norm_per_layer=2 * shape.h,
        final_norm=shape.h,
        head=0 if shape.tied else shape.v * shape.h,
    )
    spec = decoder(reader, config_json, shape=shape, counts=counts)
    return replace(
        spec,
        sliding_window=reader.count("sliding_window", use="the window of attention"),
        hidden_dropout_fraction=reader.fraction("resid_pdrop", use="dropout of the residual"),
    )


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
