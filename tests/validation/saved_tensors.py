"""Bytes that one layer of a transformers model keeps for backward, counted by autograd's saved-tensor hooks on the CPU.

    python -m tests.validation.saved_tensors            every family, beside what the cost model says

Real layers of small models run forward; what each further layer adds is what a layer saves. Two kernels keep something
else on a GPU than on a CPU and are stood in for: fused attention (query, key, value, output, log-sum-exp and a mask in
the training precision: ATen's `scaled_dot_product_attention`) and dropout (a mask of one byte an element).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
import transformers
from torch import nn
from torch.nn import functional

from planner.catalog import model_from_config
from planner.cost.activations import _masks, _scores
from planner.cost.architecture import architecture_of
from planner.cost.axes import axes_of
from planner.cost.profile import DEEPSPEED
from planner.runtime.lora import PROJECTIONS, is_transposed
from planner.spec.kinds import ModelFamily
from tests.unit.cost.samples import cluster, columns, inputs, training

MICRO_BATCH, SEQ_LEN, VOCAB = 2, 64, 128

_DECODER: dict[str, Any] = {
    "hidden_size": 128,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 352,
    "vocab_size": VOCAB,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
}
_ENCODER: dict[str, Any] = {"hidden_size": 128, "num_attention_heads": 8, "intermediate_size": 512}
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_T5: dict[str, Any] = {"model_type": "t5", "d_model": 128, "d_kv": 16, "num_heads": 8, "d_ff": 512, "vocab_size": VOCAB}
_GPT2: dict[str, Any] = {"model_type": "gpt2", "n_embd": 128, "n_head": 8, "n_positions": 128, "vocab_size": VOCAB}
_LATENT: dict[str, Any] = {
    "num_key_value_heads": 8,
    "q_lora_rank": 48,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 0,
    "n_group": 2,
    "topk_group": 1,
}
_EXPERTS: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "head_dim": 16}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {**_DECODER, "model_type": "llama"},
    "qwen2": {**_DECODER, "model_type": "qwen2"},
    "qwen3": {**_DECODER, "model_type": "qwen3", "head_dim": 32},
    "mistral": {**_DECODER, "model_type": "mistral", "sliding_window": None},
    "mistral, window": {**_DECODER, "model_type": "mistral", "sliding_window": 16},
    "gemma": {**_DECODER, "model_type": "gemma", "head_dim": 16},
    "gemma2": {**_DECODER, "model_type": "gemma2", "head_dim": 16, "sliding_window": 16},
    "phi3": {**_DECODER, "model_type": "phi3"},
    "mixtral": {**_DECODER, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {**_DECODER, "model_type": "qwen3_moe", **_EXPERTS},
    "deepseek_v3": {**_DECODER, "model_type": "deepseek_v3", **_LATENT},
    "gpt2": {**_GPT2, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0},
    "gpt2, dropout": _GPT2,
    "bert": {**_ENCODER, "model_type": "bert", "vocab_size": VOCAB, "max_position_embeddings": 128, **_NO_DROPOUT},
    "bert, dropout": {**_ENCODER, "model_type": "bert", "vocab_size": VOCAB, "max_position_embeddings": 128},
    "t5": {**_T5, "dropout_rate": 0.0},
    "t5, dropout": _T5,
    "t5, gated": {**_T5, "feed_forward_proj": "gated-gelu"},
    "vit": {**_ENCODER, "model_type": "vit", "image_size": 64, "patch_size": 8, "num_labels": 10, **_NO_DROPOUT},
}
_LAYERS_KEY = {"gpt2": "n_layer", "t5": "num_layers"}
_CLASSES = {
    ModelFamily.DECODER: transformers.AutoModelForCausalLM,
    ModelFamily.ENCODER: transformers.AutoModelForMaskedLM,
    ModelFamily.ENCODER_DECODER: transformers.AutoModelForSeq2SeqLM,
    ModelFamily.VISION: transformers.AutoModelForImageClassification,
}


def traced_bytes(name: str, *, attention: str, dtype: torch.dtype, lora_rank: int = 0) -> float:
    """Per token of a micro-batch, what one more layer (of an encoder-decoder: one more of both kinds) saves. With a
    `lora_rank` only adapters of the attention's projections train."""
    tokens = MICRO_BATCH * _tokens(name)
    with _as_on_a_gpu():
        few, more = (
            _saved_bytes(name, _build(name, layers, attention, lora_rank=lora_rank).to(dtype), dtype=dtype)
            for layers in (2, 3)
        )
    return (more - few) / tokens


def estimated_bytes(name: str, *, attention: str, precision: str, lora_rank: int = 0) -> float:
    """The same by the cost model."""
    model = model_from_config(_with_layers(name, 4), name)
    rows = columns(precision=precision, attention=attention, micro_batch_size=MICRO_BATCH)
    axes = axes_of(rows, model=model, training=training(seq_len=_tokens(name)), cluster=cluster())
    shared = inputs(model, seq_len=_tokens(name))
    layer = architecture_of(model, profile=DEEPSPEED, lora_rank=lora_rank).layer
    element = 4.0 if precision == "fp32" else 2.0
    kept = (layer.elements + layer.split_elements) * element + layer.bytes + layer.split_bytes
    squares = np.asarray(_scores(axes, inputs=shared) + _masks(axes, inputs=shared))
    return float(kept + squares.ravel()[0]) * (2.0 if model.num_encoder_layers else 1.0)


def _tokens(name: str) -> int:
    config = CONFIGS[name]
    return (config["image_size"] // config["patch_size"]) ** 2 + 1 if "image_size" in config else SEQ_LEN


def _with_layers(name: str, layers: int) -> dict[str, Any]:
    config = CONFIGS[name]
    kind = config["model_type"]
    both = {"num_decoder_layers": layers} if kind == "t5" else {}
    return {**config, _LAYERS_KEY.get(kind, "num_hidden_layers"): layers, **both}


def _build(name: str, layers: int, attention: str, *, lora_rank: int) -> nn.Module:
    config = _with_layers(name, layers)
    torch.manual_seed(0)
    built = transformers.AutoConfig.for_model(**config)
    model = _CLASSES[_family(name)].from_config(built, attn_implementation=attention)
    if lora_rank:
        _adapt_attention(model, rank=lora_rank)
    trained: nn.Module = model.train()
    return trained


def _adapt_attention(model: nn.Module, *, rank: int) -> None:
    """As `runtime/lora.py` does, on real tensors of one rank."""
    model.requires_grad_(False)
    for path, module in list(model.named_modules()):
        if path.split(".")[-1] in PROJECTIONS and "attn" in path:
            width, inputs = module.weight.shape[::-1] if is_transposed(module) else module.weight.shape
            module.down, module.up = nn.Parameter(torch.zeros(rank, inputs)), nn.Parameter(torch.zeros(width, rank))
            module.register_forward_hook(_add_adapter)


def _add_adapter(module: Any, given: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
    return output + functional.linear(functional.linear(given[0], module.down), module.up)


def _family(name: str) -> ModelFamily:
    return model_from_config(_with_layers(name, 2), name).family


def _saved_bytes(name: str, model: nn.Module, *, dtype: torch.dtype) -> int:
    held = {tensor.untyped_storage()._cdata for tensor in [*model.parameters(), *model.buffers()]}
    saved: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in held:
            saved[storage._cdata] = storage  # Keep: holding it, so that its address is not used again
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept):
        model(**_batch(_family(name), CONFIGS[name], dtype=dtype))
    return sum(storage.nbytes() for storage in saved.values())


def _batch(family: ModelFamily, config: dict[str, Any], *, dtype: torch.dtype) -> dict[str, Any]:
    if family is ModelFamily.VISION:
        return {"pixel_values": torch.randn(MICRO_BATCH, 3, config["image_size"], config["image_size"], dtype=dtype)}
    ids = torch.randint(0, VOCAB, (MICRO_BATCH, SEQ_LEN))
    if family is ModelFamily.ENCODER:
        return {"input_ids": ids}
    decoder = {"decoder_input_ids": ids.clone()} if family is ModelFamily.ENCODER_DECODER else {}
    return {"input_ids": ids, "use_cache": False, **decoder}


class _FusedAttention(torch.autograd.Function):
    """Keeps what the fused kernels keep; its values do not matter."""

    @staticmethod
    def forward(
        context: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        rows = (*query.shape[:-1], value.shape[-1])
        output = torch.zeros(rows[0], rows[2], rows[1], rows[3], dtype=query.dtype).transpose(1, 2)
        statistics = torch.zeros(query.shape[:-1], dtype=torch.float32)
        kept = [] if mask is None else [mask.to(query.dtype).contiguous() if mask.dtype is torch.bool else mask]
        context.save_for_backward(query, key, value, output, statistics, *kept)
        return output


def _attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None, **_: Any
) -> torch.Tensor:
    found: torch.Tensor = _FusedAttention.apply(query, key, value, attn_mask)
    return found


def _dropout(values: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    return torch.native_dropout(values, p, True)[0] if training and p > 0 else values


@contextmanager
def _as_on_a_gpu() -> Iterator[None]:
    with (
        mock.patch.object(functional, "scaled_dot_product_attention", _attention),
        mock.patch.object(functional, "dropout", _dropout),
    ):
        yield


def _main() -> None:
    for name in CONFIGS:
        for attention in ("sdpa", "eager"):
            for precision, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
                if attention == "sdpa" and CONFIGS[name]["model_type"] == "gemma2":
                    continue
                seen = traced_bytes(name, attention=attention, dtype=dtype)
                said = estimated_bytes(name, attention=attention, precision=precision)
                print(
                    f"{name:16} {attention:6} {precision} seen {seen:8.0f} estimated {said:8.0f} {said / seen - 1:+.2%}"
                )


if __name__ == "__main__":
    _main()
