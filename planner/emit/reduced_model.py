"""A tiny model with the traits of a large one, made by shrinking its Hugging Face config.

Owns which fields of a config are sizes and what each becomes. Everything that is not a size (activation, norms, biases,
tying, rotary kind, dropout, windows) stays as it is, so that the same code paths run.
"""

from __future__ import annotations

import json
from typing import Any

from planner.catalog import model_from_config
from planner.spec import ModelSpec
from planner.spec._record import record

Config = dict[str, Any]

HEAD_SIZE = 16
VOCAB_SIZE = 128
LATENT_RANK = 16
ROTARY_HEAD_SIZE = 8
WINDOW = 16  # tokens; half of the reduced sequence

# Every spelling of a size among the families of the catalog.
_NAMES = {
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers"),
    "heads": ("num_attention_heads", "n_head", "num_heads"),
    "kv_heads": ("num_key_value_heads",),
    "head_size": ("head_dim", "d_kv"),
    "ffn": ("intermediate_size", "d_ff", "n_inner"),
    "expert_ffn": ("moe_intermediate_size", "shared_expert_intermediate_size"),
    "vocab": ("vocab_size",),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "experts_per_token": ("num_experts_per_tok",),
    "shared_experts": ("n_shared_experts",),
    "dense_layers": ("first_k_dense_replace",),
    "groups": ("n_group", "topk_group"),
    "latent": ("kv_lora_rank", "q_lora_rank"),
    "latent_head": ("qk_nope_head_dim", "v_head_dim"),
    "rotary_head": ("qk_rope_head_dim",),
}


@record
class SmallShape:
    """What the plan decides. `slides`: the real sequence is longer than the attention's window."""

    num_layers: int
    slides: bool


def reduce_model(model: ModelSpec, shape: SmallShape) -> ModelSpec:
    """The tiny model. A factory's model is returned as it is: what it is made of is not known here."""
    if model.factory:
        return model
    config: Config = json.loads(model.config_json)
    sizes = _sizes(model, shape)
    reduced = {key: _reduced(key, value, sizes) for key, value in config.items()}
    if model.head_size * model.num_heads != model.hidden_size and "d_kv" not in config:
        reduced["head_dim"] = HEAD_SIZE  # Keep: some families have a default that is not hidden / heads
    if shape.slides and isinstance(config.get("sliding_window"), int):
        reduced["sliding_window"] = WINDOW
    if "patch_size" in config:
        reduced["image_size"] = 2 * config["patch_size"]
    for rotary in ("rope_parameters", "rope_scaling"):
        if isinstance(config.get(rotary), dict):
            reduced[rotary] = _reduced_rotary(config[rotary])
    return model_from_config(_per_layer(reduced, model.num_layers, shape.num_layers), f"{model.name}-reduced")


def _sizes(model: ModelSpec, shape: SmallShape) -> dict[str, int]:
    """Role -> size. Heads keep their grouping: as many KV heads as two ranks can split, at most 4 heads each."""
    kv_heads = min(model.num_kv_heads or model.num_heads, 2)
    group = min(model.num_heads // max(model.num_kv_heads, 1), 4) if model.num_kv_heads else 1
    heads = kv_heads * group
    as_wide_as_heads = model.head_size * model.num_heads == model.hidden_size
    hidden = heads * HEAD_SIZE if as_wide_as_heads else max(heads * HEAD_SIZE // 2, 2 * HEAD_SIZE)
    experts = min(model.num_experts, 4)
    sizes = {
        "hidden": hidden,
        "layers": shape.num_layers,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_size": HEAD_SIZE,
        "ffn": 2 * hidden,
        "expert_ffn": hidden,
        "vocab": VOCAB_SIZE,
        "experts": experts,
        "experts_per_token": min(model.num_experts_per_token, 2, max(experts, 1)),
        "shared_experts": min(model.num_shared_experts, 1),
        "dense_layers": min(model.num_dense_layers, 1),
        "groups": 1,
        "latent": LATENT_RANK,
        "latent_head": HEAD_SIZE,
        "rotary_head": ROTARY_HEAD_SIZE,
    }
    return {name: sizes[role] for role, names in _NAMES.items() for name in names}


def _reduced(key: str, value: Any, sizes: dict[str, int]) -> Any:
    if isinstance(value, bool):
        return value
    if key in sizes and isinstance(value, int):
        return sizes[key]
    if key.endswith("_token_id"):
        return _inside(value, sizes["vocab_size"])
    return value


def _inside(token: Any, vocab_size: int) -> Any:
    """A token id, or a list of them, inside the small vocabulary: an embedding refuses a padding id beyond its end."""
    if isinstance(token, list):
        return [_inside(item, vocab_size) for item in token]
    return min(token, vocab_size - 1) if isinstance(token, int) else token


def _reduced_rotary(rotary: Config) -> Config:
    """Factors that are given per pair of a head's dimensions, cut to the small head."""
    return {
        key: value[: HEAD_SIZE // 2] if key in ("long_factor", "short_factor") and isinstance(value, list) else value
        for key, value in rotary.items()
    }


def _per_layer(config: Config, num_layers: int, small: int) -> Config:
    """Lists with an entry a layer, thinned out evenly; lists of layer numbers, cut to the layers that are left."""
    thinned = [index * num_layers // small for index in range(small)]
    result = dict(config)
    for key, value in config.items():
        if not isinstance(value, list):
            continue
        if key == "layer_types" or key.endswith("_layer_types"):
            result[key] = [value[index] for index in thinned if index < len(value)]
        elif key.endswith("_only_layers"):
            result[key] = [index for index in value if isinstance(index, int) and index < small]
    return result
