"""Our counts are transformers' own, parameter for parameter, for every shipped model and for variants of the fields."""

from __future__ import annotations

import json
from typing import Any

import pytest

from planner.catalog import load_model, model_from_config
from planner.resources import find_data_dir
from planner.spec import ModelSpec

NAMES = sorted(path.stem for path in (find_data_dir("configs") / "models").glob("*.json"))


def _counted_by_transformers(spec: ModelSpec) -> int:
    import torch
    import transformers

    config = json.loads(spec.config_json)
    built = transformers.AutoConfig.for_model(**config)
    with torch.device("meta"):  # shapes without memory
        model = getattr(transformers, config["architectures"][0])(built)
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_num_parameters_equal_transformers_own(name: str) -> None:
    spec = load_model(name)
    assert spec.num_parameters == _counted_by_transformers(spec)


_SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
_LLAMA = {**_SMALL, "model_type": "llama", "architectures": ["LlamaForCausalLM"]}
_DEEPSEEK = {
    "model_type": "deepseek_v3",
    "architectures": ["DeepseekV3ForCausalLM"],
    "n_routed_experts": 4,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
}
_BERT = {**_SMALL, "model_type": "bert", "max_position_embeddings": 64}
_VIT = {**_SMALL, "model_type": "vit", "image_size": 32, "patch_size": 8}
_T5 = {"model_type": "t5", "vocab_size": 96, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
_QWEN3_MOE = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
}

VARIANTS: dict[str, dict[str, Any]] = {
    "llama-biases": {**_LLAMA, "attention_bias": True, "mlp_bias": True},
    "llama-head-size": {**_LLAMA, "head_dim": 16, "tie_word_embeddings": True},
    "llama-no-kv-heads": {key: value for key, value in _LLAMA.items() if key != "num_key_value_heads"},
    "qwen2": {**_SMALL, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]},
    "qwen3-default-head": {**_SMALL, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]},
    "qwen3-bias": {**_SMALL, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "attention_bias": True},
    "mistral-head-size": {**_SMALL, "model_type": "mistral", "architectures": ["MistralForCausalLM"], "head_dim": 16},
    "gemma": {**_SMALL, "model_type": "gemma", "architectures": ["GemmaForCausalLM"]},
    "gemma2": {**_SMALL, "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "head_dim": 16},
    "phi3": {**_SMALL, "model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "pad_token_id": 0},
    "mixtral": {
        **_SMALL,
        "model_type": "mixtral",
        "architectures": ["MixtralForCausalLM"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "qwen3-moe-mixed": {**_SMALL, **_QWEN3_MOE, "decoder_sparse_step": 2, "mlp_only_layers": [1]},
    "deepseek-compressed": {**_SMALL, **_DEEPSEEK, "q_lora_rank": 12},
    "deepseek-plain-queries": {**_SMALL, **_DEEPSEEK, "q_lora_rank": None},
    "gpt2-inner": {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": 96,
        "n_positions": 64,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_inner": 80,
    },
    "bert-model": {**_BERT, "architectures": ["BertModel"]},
    "bert-pretraining": {**_BERT, "architectures": ["BertForPreTraining"]},
    "bert-classes": {**_BERT, "architectures": ["BertForSequenceClassification"], "num_labels": 5},
    "bert-tokens": {**_BERT, "architectures": ["BertForTokenClassification"]},
    "vit-classes": {**_VIT, "architectures": ["ViTForImageClassification"], "num_labels": 7, "qkv_bias": False},
    "vit-model": {**_VIT, "architectures": ["ViTModel"]},
    "t5-gated-untied": {
        **_T5,
        "architectures": ["T5ForConditionalGeneration"],
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
        "num_decoder_layers": 3,
    },
}


@pytest.mark.parametrize("name", VARIANTS)
def test_num_parameters_of_a_variant_equal_transformers_own(name: str) -> None:
    spec = model_from_config(VARIANTS[name], name)
    assert spec.num_parameters == _counted_by_transformers(spec)
