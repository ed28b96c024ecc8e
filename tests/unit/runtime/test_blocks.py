"""A model assembled from blocks computes what transformers' own model computes with the same weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from planner.catalog.decoders import SPLIT_BY_RUNTIME
from planner.errors import InputError
from planner.runtime.building import Assembly, BlockBuilder, PlainModel
from planner.runtime.families import BLOCK_WISE_TYPES, Family, family_of
from planner.runtime.grid import ALONE
from planner.runtime.initialisation import Placement
from planner.spec import ActivationCheckpointing
from tests.distributed.layouts import CONFIGS, LLAMA, NUM_LAYERS, SEQ_LEN

# One more of each kind that configs differ by.
VARIANTS = {
    **CONFIGS,
    "llama biased, scaled rotary": {
        **LLAMA,
        "attention_bias": True,
        "mlp_bias": True,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0},
    },
    "qwen2 window in upper layers": {
        **LLAMA,
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 4,
        "max_window_layers": 2,
    },
    "gpt2 scaled by layer": {**CONFIGS["gpt2"], "scale_attn_by_inverse_layer_idx": True, "n_inner": 48},
}


def make_config(name: str, attention: str) -> Any:
    settings = VARIANTS[name]
    config = transformers.CONFIG_MAPPING[settings["model_type"]].from_dict(settings)
    config._attn_implementation = attention
    config._experts_implementation = "eager"
    return config


def make_plain(family: Family) -> PlainModel:
    placement = Placement(
        seed=7,
        device=torch.device("cpu"),
        dtype=torch.float32,
        tensor_rank=0,
        first_values=family.first_values,
    )
    assembly = Assembly(
        family=family,
        placement=placement,
        checkpointing=ActivationCheckpointing(),
        keeps_rng=False,
        partition=None,
    )
    return PlainModel(BlockBuilder(assembly, ALONE), family)


def transformers_names(family: Family, plain: PlainModel) -> dict[str, torch.nn.Parameter]:
    """The container's parameters under transformers' names."""
    prefixes = {"embedding": family.embedding_name, "positions": family.position_name, "norm": family.norm_name}
    prefixes |= {f"layers.{i}.layer": family.layer_name.format(i) for i in range(NUM_LAYERS)}
    prefixes["head"] = family.head_name
    named = {}
    for name, parameter in plain.named_parameters(remove_duplicate=False):
        ours = max((prefix for prefix in prefixes if name.startswith(prefix + ".")), key=len)
        named[prefixes[ours] + name.removeprefix(ours)] = parameter
    return named


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", VARIANTS)
def test_plain_model_same_weights_same_loss_and_gradients_as_transformers(name: str, attention: str) -> None:
    config = make_config(name, attention)
    family = family_of(config)
    assert family is not None
    plain = make_plain(family).train()
    theirs = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention).train()
    ours_by_name = transformers_names(family, plain)
    theirs.load_state_dict({key: value.detach().clone() for key, value in ours_by_name.items()})
    tokens = torch.randint(0, config.vocab_size, (3, SEQ_LEN), generator=torch.Generator().manual_seed(1))

    loss = plain(tokens)
    loss.backward()
    expected = theirs(input_ids=tokens, labels=tokens, use_cache=False).loss
    expected.backward()

    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    for key, parameter in theirs.named_parameters():
        torch.testing.assert_close(ours_by_name[key].grad, parameter.grad, rtol=1e-4, atol=1e-6, msg=key)


def test_family_router_loss_requested_refused() -> None:
    config = make_config("mixtral", "sdpa")
    config.output_router_logits = True
    with pytest.raises(InputError, match="output_router_logits"):
        family_of(config)


def test_block_wise_types_are_what_the_catalog_says_is_split() -> None:
    assert set(SPLIT_BY_RUNTIME) == set(BLOCK_WISE_TYPES)


def test_family_unknown_type_is_none() -> None:
    assert family_of(transformers.CONFIG_MAPPING["bert"]()) is None
