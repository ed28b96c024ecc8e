"""Counts the parameters of decoder language models from their Hugging Face configs, exactly.

Owns one function per family without experts; those with experts are in `mixtures`. Counts follow transformers 5
(`modeling_<type>.py`); a test holds every shipped model against transformers itself on the meta device. Symbols:
h hidden, n heads, k key-value heads, d head size, f feed-forward width, v vocabulary.
"""

from __future__ import annotations

from dataclasses import replace

from planner.catalog.config_reader import ConfigReader
from planner.spec import ModelFamily, ModelSpec, ParameterCounts
from planner.spec._record import record

# What planner.runtime builds under tensor and pipeline parallelism.
SPLIT_BY_RUNTIME = ("gemma", "gpt2", "llama", "mistral", "mixtral", "phi3", "qwen2", "qwen3", "qwen3_moe")


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


# transformers takes an absent num_key_value_heads for "as many as heads" in these; elsewhere for a number of its own.
KV_HEADS_DEFAULT_TO_HEADS = ("deepseek_v3", "generic", "llama", "phi3")


def read_shape(reader: ConfigReader, *, tied_default: bool, head_default: int | None = None) -> Shape:
    """The shape in Llama's field names. `head_default` stands in for an absent head_dim (else h / n)."""
    reader.require_architecture(("ForCausalLM",))
    h = reader.positive("hidden_size", use="the width of the model")
    n = reader.positive("num_attention_heads", use="the attention heads of a layer")
    may_be_absent = "num_key_value_heads" in reader.config or reader.config["model_type"] in KV_HEADS_DEFAULT_TO_HEADS
    k = reader.positive(
        "num_key_value_heads", use="the key-value heads of a layer", default=n if may_be_absent else None
    )
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
    reader.require_architecture(("LMHeadModel",))
    if reader.flag("add_cross_attention", use="attention to another model's states", default=False):
        raise reader.refuse(
            "add_cross_attention is true",
            why="a decoder that attends to another model's states is not counted",
            fix="set it to false, or plan the whole model through `factory:`",
        )
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
