"""Counts the parameters of encoder, encoder-decoder and vision models from their Hugging Face configs, exactly.

The class named by `architectures` decides what sits on top of the stack. They run whole on each data-parallel rank.
"""

from __future__ import annotations

from dataclasses import replace

from planner.catalog.config_reader import ConfigReader
from planner.catalog.decoders import runtime_refusal
from planner.spec import ModelFamily, ModelSpec, ParameterCounts


def bert(reader: ConfigReader, config_json: str) -> ModelSpec:
    """BERT: four biased h·h matrices, MLP 2·h·f + f + h, two layer norms of 2h a layer; learned positions."""
    stack = _bert_like(reader, config_json, dropout_default=0.1)
    h, f = stack.hidden_size, stack.ffn_hidden_size
    v = reader.positive("vocab_size", use="the size of the vocabulary")
    positions = reader.positive("max_position_embeddings", use="the longest sequence; positions are learned")
    types = reader.positive("type_vocab_size", use="kinds of segment", default=2)
    counts = ParameterCounts(
        embedding=v * h,
        position_embedding=positions * h,
        attention_per_layer=4 * h * h + 4 * h,
        mlp_per_layer=2 * h * f + f + h,
        norm_per_layer=4 * h,
        other=types * h + 2 * h + _bert_top(reader, h=h, v=v),  # segments, norm of the embeddings, what is on top
    )
    return replace(
        stack,
        family=ModelFamily.ENCODER,
        vocab_size=v,
        max_seq_len=positions,
        tied_embeddings=True,
        counts=counts,
    )


def _bert_like(reader: ConfigReader, config_json: str, *, dropout_default: float) -> ModelSpec:
    """What BERT and ViT say of their stack alike; the parameters are still to be counted."""
    kind = str(reader.config["model_type"])
    h = reader.positive("hidden_size", use="the width of the model")
    n = reader.positive("num_attention_heads", use="the attention heads of a layer")
    num_layers = reader.positive("num_hidden_layers", use="the number of layers")
    refusal = runtime_refusal(kind)
    return ModelSpec(
        name=reader.name,
        family=ModelFamily.ENCODER,
        model_type=kind,
        config_json=config_json,
        num_layers=num_layers,
        hidden_size=h,
        num_heads=n,
        num_kv_heads=n,
        head_size=reader.divides(h, n, fields=("hidden_size", "num_attention_heads")),
        ffn_hidden_size=reader.positive("intermediate_size", use="the width of the feed-forward part"),
        linear_bias=True,
        attention_dropout_fraction=reader.fraction(
            "attention_probs_dropout_prob", use="dropout of attention", default=dropout_default
        ),
        hidden_dropout_fraction=reader.fraction(
            "hidden_dropout_prob", use="dropout of the residual", default=dropout_default
        ),
        num_dense_layers=num_layers,
        tensor_parallel_refusal=refusal,
        pipeline_parallel_refusal=refusal,
    )


def _bert_top(reader: ConfigReader, *, h: int, v: int) -> int:
    """Parameters above the stack: pooler h² + h; masked-language head h² + h, norm 2h and bias v; classes."""
    pooler, language_head = h * h + h, h * h + 3 * h + v
    tops = {
        "BertModel": pooler,
        "BertForMaskedLM": language_head,
        "BertForPreTraining": pooler + language_head + 2 * h + 2,
        "BertForSequenceClassification": pooler + (h + 1) * num_labels(reader),
        "BertForTokenClassification": (h + 1) * num_labels(reader),
    }
    return _top_of(reader, tops, default="BertForMaskedLM")


def _top_of(reader: ConfigReader, tops: dict[str, int], *, default: str) -> int:
    architecture = reader.architecture(default=default)
    if architecture not in tops:
        raise reader.refuse(
            f"the class {architecture!r} in architectures is not one whose parameters can be counted",
            why="what sits on top of the stack depends on the class",
            fix="use one of: " + ", ".join(tops),
        )
    return tops[architecture]


def num_labels(reader: ConfigReader) -> int:
    """The classes of a classification head: num_labels, or the length of id2label, or transformers' 2."""
    names = reader.config.get("id2label")
    named = len(names) if isinstance(names, dict) else 2
    return reader.positive("num_labels", use="the classes of the head", default=max(named, 1))


def vit(reader: ConfigReader, config_json: str) -> ModelSpec:
    """ViT: BERT-like layers before the norm, patches by one convolution, learned positions and a class token."""
    stack = _bert_like(reader, config_json, dropout_default=0.0)
    h, f = stack.hidden_size, stack.ffn_hidden_size
    image = reader.positive("image_size", use="the side of an image in pixels", default=224)
    patch = reader.positive("patch_size", use="the side of a patch in pixels", default=16)
    channels = reader.positive("num_channels", use="the colours of a pixel", default=3)
    query_bias = reader.flag("qkv_bias", use="biases of query, key and value", default=True)
    num_patches = (image // patch) ** 2
    tops = {
        "ViTForImageClassification": (h + 1) * num_labels(reader),
        "ViTModel": h * h + h,  # the pooler
    }
    counts = ParameterCounts(
        position_embedding=(num_patches + 1) * h,
        attention_per_layer=4 * h * h + h + (3 * h if query_bias else 0),
        mlp_per_layer=2 * h * f + f + h,
        norm_per_layer=4 * h,
        final_norm=2 * h,
        other=h + channels * patch * patch * h + h + _top_of(reader, tops, default="ViTForImageClassification"),
    )
    return replace(
        stack, family=ModelFamily.VISION, max_seq_len=num_patches + 1, num_patches=num_patches, counts=counts
    )


def t5(reader: ConfigReader, config_json: str) -> ModelSpec:
    """T5: attention 4·h·(n·d) without biases, MLP 2·h·f (gated: 3·h·f), RMS norms of h; a decoder layer also attends
    to the encoder. Relative position biases (buckets x heads) sit in the first layer of each stack."""
    h = reader.positive("d_model", use="the width of the model")
    n = reader.positive("num_heads", use="the attention heads of a layer")
    d = reader.positive("d_kv", use="the size of one attention head")
    f = reader.positive("d_ff", use="the width of the feed-forward part")
    v = reader.positive("vocab_size", use="the size of the vocabulary")
    num_encoder_layers = reader.positive("num_layers", use="the number of encoder layers")
    num_layers = reader.positive("num_decoder_layers", use="decoder layers", default=num_encoder_layers)
    buckets = reader.positive("relative_attention_num_buckets", use="buckets of relative positions", default=32)
    gated = reader.word("feed_forward_proj", use="the feed-forward part", default="relu").startswith("gated")
    attention, mlp = 4 * h * n * d, (3 if gated else 2) * h * f
    counts = ParameterCounts(
        embedding=v * h,
        attention_per_layer=2 * attention,  # to itself and to the encoder
        mlp_per_layer=mlp,
        norm_per_layer=3 * h,
        final_norm=h,
        head=0,  # transformers 5 ties T5's head whatever the config says
        encoder=num_encoder_layers * (attention + mlp + 2 * h) + h + buckets * n,
        other=buckets * n,
    )
    refusal = runtime_refusal("t5")
    return ModelSpec(
        name=reader.name,
        family=ModelFamily.ENCODER_DECODER,
        model_type="t5",
        config_json=config_json,
        num_layers=num_layers,
        num_encoder_layers=num_encoder_layers,
        hidden_size=h,
        num_heads=n,
        num_kv_heads=n,
        head_size=d,
        ffn_hidden_size=f,
        vocab_size=v,
        gated_mlp=gated,
        rms_norm=True,
        tied_embeddings=True,
        attention_dropout_fraction=reader.fraction("dropout_rate", use="dropout of attention", default=0.1),
        hidden_dropout_fraction=reader.fraction("dropout_rate", use="dropout of the residual", default=0.1),
        num_dense_layers=num_layers,
        counts=counts,
        tensor_parallel_refusal=refusal,
        pipeline_parallel_refusal=refusal,
    )
