"""Activation bytes of a layer against what autograd keeps of real transformers layers, family by family."""

from __future__ import annotations

import pytest
import torch

from tests.validation.saved_tensors import CONFIGS, estimated_bytes, traced_bytes

WITHIN = 0.015  # small layers: the indexes of a router are a hundredth of them
_CASES = [
    (name, attention, "bf16")
    for name in CONFIGS
    for attention in ("sdpa", "eager")
    if (name, attention) != ("gemma2", "sdpa")  # transformers has none
]
_FP32 = [(name, attention, "fp32") for name in ("llama", "deepseek_v3", "t5") for attention in ("sdpa", "eager")]


@pytest.mark.parametrize(("name", "attention", "precision"), [*_CASES, *_FP32])
def test_layer_saves_what_autograd_keeps(name: str, attention: str, precision: str) -> None:
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    seen = traced_bytes(name, attention=attention, dtype=dtype)
    assert estimated_bytes(name, attention=attention, precision=precision) == pytest.approx(seen, rel=WITHIN)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma", "phi3", "mixtral", "gpt2"])
def test_layer_with_adapters_keeps_no_inputs_of_what_is_frozen(name: str) -> None:
    seen = traced_bytes(name, attention="sdpa", dtype=torch.bfloat16, lora_rank=4)
    said = estimated_bytes(name, attention="sdpa", precision="bf16", lora_rank=4)
    assert said == pytest.approx(seen, rel=WITHIN)
    assert said < 0.95 * estimated_bytes(name, attention="sdpa", precision="bf16")


def test_gemma2_asked_for_sdpa_is_priced_as_the_eager_attention_it_runs() -> None:
    asked, run = (estimated_bytes("gemma2", attention=attention, precision="bf16") for attention in ("sdpa", "eager"))
    assert asked == run
