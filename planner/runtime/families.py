"""What is particular to each family of causal language models that the runtime can cut into blocks and shards.

Owns the names and classes of transformers' parts (embedding, decoder layer, norm, head), how a layer is split over
tensor-parallel ranks, and how parameters start. Leaves assembling blocks to `blocks` and `building`. A model type not
listed here is trained whole, see `whole`.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from planner.errors import InputError
from planner.runtime.grid import TensorGroup
from planner.runtime.initialisation import FirstValues
from planner.runtime.lora import first_adapter_values
from planner.runtime.tensor_parallel import (
    RowParallelLinear,
    cut,
    enter_region,
    leave_region,
    shard_of,
    split_columns,
    sum_gradient_over,
)
from planner.spec._record import record


@record
class Family:
    """The parts of one model type. Names are those of transformers' state dict; `{}` is the layer's number."""

    config: Any
    layer_class: Callable[..., nn.Module]
    make_norm: Callable[[], nn.Module]
    rotary: nn.Module | None  # None: learned positions
    split_layer: Callable[[nn.Module, TensorGroup], None]
    embedding_name: str
    layer_name: str
    attention_name: str
    norm_name: str
    position_name: str = ""
    head_name: str = "lm_head"
    embedding_scale: float = 1.0
    embedding_dropout_fraction: float = 0.0
    norm_start: float = 1.0
    padding_token: int | None = None  # its embedding gets no gradient

    @property
    def tied(self) -> bool:
        """Whether the head is the embedding's matrix."""
        return bool(self.config.tie_word_embeddings)

    def first_values(self, name: str, shape: tuple[int, ...]) -> FirstValues:
        """How a parameter starts, as transformers starts it."""
        adapter = first_adapter_values(name, shape)
        if adapter is not None:
            return adapter
        if name.endswith("bias"):
            return FirstValues(mean=0.0)
        if len(shape) == 1:
            return FirstValues(mean=self.norm_start)
        deviation = float(self.config.initializer_range)
        if name.endswith("c_proj.weight"):  # GPT-2: residual projections start smaller the deeper the model
            deviation /= math.sqrt(2 * self.config.num_hidden_layers)
        return FirstValues(mean=0.0, deviation=deviation)

    def window_of(self, index: int) -> int:
        """Tokens that layer `index` can look back on, itself included; 0: all."""
        kinds = getattr(self.config, "layer_types", None)
        if kinds and kinds[index] != "sliding_attention":
            return 0
        return int(getattr(self.config, "sliding_window", None) or 0)


LLAMA_SHAPED = {
    # model_type: prefix of transformers' class names
    "llama": "Llama",
    "mistral": "Mistral",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "qwen3_moe": "Qwen3Moe",
    "mixtral": "Mixtral",
    "gemma": "Gemma",
    "phi3": "Phi3",
}
BLOCK_WISE_TYPES = (*LLAMA_SHAPED, "gpt2")


def family_of(config: Any) -> Family | None:
    """The family of a transformers config; None when the runtime does not know how to cut the model.

    Raises InputError for a setting that training block by block would silently leave out.
    """
    if config.model_type in LLAMA_SHAPED:
        return _llama_shaped(config)
    if config.model_type == "gpt2":
        return _gpt2(config)
    return None


def _llama_shaped(config: Any) -> Family:
    if getattr(config, "output_router_logits", False):
        raise InputError(
            "the model's config has output_router_logits: true",
            why="the reference trainer does not add the load-balancing loss of mixture-of-experts models",
            fix="set output_router_logits to false in the model's config.json",
        )
    module = importlib.import_module(f"transformers.models.{config.model_type}.modeling_{config.model_type}")
    prefix = LLAMA_SHAPED[config.model_type]
    is_gemma = config.model_type == "gemma"
    return Family(
        config=config,
        layer_class=getattr(module, f"{prefix}DecoderLayer"),
        make_norm=lambda: getattr(module, f"{prefix}RMSNorm")(config.hidden_size, eps=config.rms_norm_eps),
        rotary=getattr(module, f"{prefix}RotaryEmbedding")(config=config),
        split_layer=_split_llama_shaped,
        embedding_name="model.embed_tokens",
        layer_name="model.layers.{}",
        attention_name="self_attn",
        norm_name="model.norm",
        embedding_scale=config.hidden_size**0.5 if is_gemma else 1.0,
        embedding_dropout_fraction=float(getattr(config, "embd_pdrop", 0.0)) if config.model_type == "phi3" else 0.0,
        norm_start=0.0 if is_gemma else 1.0,  # Gemma's norm multiplies by 1 + weight
        padding_token=config.pad_token_id,
    )


def _gpt2(config: Any) -> Family:
    module = importlib.import_module("transformers.models.gpt2.modeling_gpt2")
    if config.add_cross_attention:
        raise InputError(
            "the GPT-2 config has add_cross_attention: true",
            why="the reference trainer runs decoders without an encoder",
            fix="set add_cross_attention to false in the model's config.json",
        )
    return Family(
        config=config,
        layer_class=module.GPT2Block,
        make_norm=lambda: nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon),
        rotary=None,
        split_layer=_split_gpt2,
        embedding_name="transformer.wte",
        layer_name="transformer.h.{}",
        attention_name="attn",
        norm_name="transformer.ln_f",
        position_name="transformer.wpe",
        embedding_dropout_fraction=config.embd_pdrop,
    )


def _enter_at(module: nn.Module, group: TensorGroup) -> None:
    """Make a module's activations (its first input; floating-point ones of an expert layer) enter a region."""

    def enter(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        entered = {name: value for name, value in kwargs.items() if name == "hidden_states"}
        changed = {name: enter_region(value, group) for name, value in entered.items()}
        inputs = tuple(enter_region(a, group) if torch.is_tensor(a) and a.is_floating_point() else a for a in args)
        return inputs, {**kwargs, **changed}

    module.register_forward_pre_hook(enter, with_kwargs=True)


def _leave_at(module: nn.Module, group: TensorGroup) -> None:
    module.register_forward_hook(lambda _module, _args, output: leave_region(output, group))


def _split_llama_shaped(layer: nn.Module, group: TensorGroup) -> None:
    attention = layer.self_attn
    _require_heads(attention.config, group)
    _enter_at(attention, group)
    if hasattr(attention, "qkv_proj"):
        _split_fused_attention(attention, group)
    else:
        for name in ("q_proj", "k_proj", "v_proj"):
            split_columns(getattr(attention, name), group=group, transposed=False)
    attention.o_proj = RowParallelLinear(attention.o_proj, group=group, transposed=False)
    if hasattr(layer.mlp, "experts"):
        _split_experts(layer.mlp.experts, group)
        return
    _enter_at(layer.mlp, group)
    if hasattr(layer.mlp, "gate_up_proj"):
        width = layer.mlp.gate_up_proj.weight.shape[0] // 2
        split_columns(layer.mlp.gate_up_proj, group=group, transposed=False, sections=(width, width))
    else:
        split_columns(layer.mlp.gate_proj, group=group, transposed=False)
        split_columns(layer.mlp.up_proj, group=group, transposed=False)
    layer.mlp.down_proj = RowParallelLinear(layer.mlp.down_proj, group=group, transposed=False)


def _require_heads(config: Any, group: TensorGroup) -> None:
    for what, count in (("heads", config.num_attention_heads), ("KV heads", config.num_key_value_heads)):
        if count % group.size:
            raise InputError(
                f"{count} {what} cannot be split over {group.size} tensor-parallel ranks",
                why="each rank computes whole attention heads",
                fix=f"choose a tensor-parallel size that divides {count}",
            )


def _split_fused_attention(attention: nn.Module, group: TensorGroup) -> None:
    """Phi-3: one matrix for q, k and v, taken apart in `forward` by the head counts of the layer's config."""
    config = attention.config
    width = attention.head_dim
    sections = tuple(width * n for n in (config.num_attention_heads, *2 * (config.num_key_value_heads,)))
    split_columns(attention.qkv_proj, group=group, transposed=False, sections=sections)
    local = type(config).from_dict(config.to_dict())
    local._attn_implementation = config._attn_implementation
    local.num_attention_heads = config.num_attention_heads // group.size
    local.num_key_value_heads = config.num_key_value_heads // group.size
    attention.config = local
    attention.num_key_value_heads = local.num_key_value_heads


def _split_experts(experts: nn.Module, group: TensorGroup) -> None:
    """Every expert's feed-forward columns are cut; the router stays whole and outside the region."""
    gate_up, down = tuple(experts.gate_up_proj.shape), tuple(experts.down_proj.shape)
    width = gate_up[1] // 2
    what = "an expert's feed-forward"
    cut(experts, "gate_up_proj", shard_of(gate_up, dim=1, sections=(width, width), group=group, what=what))
    cut(experts, "down_proj", shard_of(down, dim=2, sections=(width,), group=group, what=what))
    _enter_at(experts, group)
    _leave_at(experts, group)


def _split_gpt2(layer: nn.Module, group: TensorGroup) -> None:
    attention, mlp = layer.attn, layer.mlp
    hidden = attention.embed_dim
    if attention.num_heads % group.size:
        raise InputError(
            f"{attention.num_heads} heads cannot be split over {group.size} tensor-parallel ranks",
            why="each rank computes whole attention heads",
            fix=f"choose a tensor-parallel size that divides {attention.num_heads}",
        )
    _enter_at(attention, group)
    split_columns(attention.c_attn, group=group, transposed=True, sections=(hidden, hidden, hidden))
    attention.c_proj = RowParallelLinear(attention.c_proj, group=group, transposed=True)
    attention.split_size = hidden // group.size
    attention.num_heads //= group.size
    attention.c_attn.nf = 3 * attention.split_size  # Conv1D shapes its output by this
    _enter_at(mlp, group)
    split_columns(mlp.c_fc, group=group, transposed=True)
    mlp.c_fc.nf = mlp.c_fc.weight.shape[1]
    mlp.c_proj = RowParallelLinear(mlp.c_proj, group=group, transposed=True)


def complete_replicated_gradients(attention: nn.Module, group: TensorGroup) -> None:
    """Sum the gradients of parameters that are whole but used inside a region: per-head norms of queries and keys.

    Called once the layer's parameters are real.
    """
    for name in ("q_norm", "k_norm"):
        norm = getattr(attention, name, None)
        if norm is not None and group.size > 1 and norm.weight.requires_grad:
            sum_gradient_over(group, norm.weight)
