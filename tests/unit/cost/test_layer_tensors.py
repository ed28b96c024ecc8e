"""Bytes a layer saves, against what autograd's saved-tensor hooks counted on small models.

The expected figures were measured: transformers 5.24, torch 2.13 on CPU, batch 2 x 128 tokens, four layers minus two,
unique storages that are not parameters, per token. Dropout off.
"""

from __future__ import annotations

from typing import Any

import pytest

from planner.cost.activations import _scores
from planner.cost.architecture import architecture_of
from planner.cost.axes import axes_of
from planner.cost.profile import DEEPSPEED
from planner.spec import ModelSpec
from tests.unit.cost.samples import cluster, columns, inputs, small_model, training

EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
QWEN_EXPERTS = {"head_dim": 32, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
NO_DROPOUT = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
GPT2 = {"n_embd": 256, "n_layer": 4, "n_head": 8, "n_positions": 512, "tie_word_embeddings": True, **NO_DROPOUT}
BERT = {
    "intermediate_size": 1024,
    "attention_probs_dropout_prob": 0.0,
    "hidden_dropout_prob": 0.0,
    "tie_word_embeddings": True,
}


def _saved_bytes_per_token(model: ModelSpec, *, precision: str, attention: str) -> float:
    architecture = architecture_of(model, profile=DEEPSPEED)
    element = 4 if precision == "fp32" else 2
    layer = architecture.layer
    whole = (layer.elements + layer.split_elements) * element + layer.bytes + layer.split_bytes
    rows = columns(precision=precision, attention=attention, micro_batch_size=2)
    axes = axes_of(rows, model=model, training=training(seq_len=128), cluster=cluster())
    return float(whole + _scores(axes, inputs=inputs(model, seq_len=128))[0])


@pytest.mark.parametrize(
    ("model_type", "changes", "precision", "attention", "measured"),
    [
        ("llama", {}, "bf16", "sdpa", 11304),
        ("llama", {}, "fp32", "sdpa", 20520),
        ("llama", {}, "bf16", "eager", 17928),
        ("llama", {}, "fp32", "eager", 25608),
        ("qwen3", {"head_dim": 32}, "bf16", "sdpa", 13656),
        ("mixtral", EXPERTS, "bf16", "sdpa", 19084),
        ("mixtral", EXPERTS, "fp32", "eager", 41068),
        ("qwen3_moe", QWEN_EXPERTS, "bf16", "sdpa", 12220),
        ("gemma", {"head_dim": 32}, "bf16", "sdpa", 12336),
        ("gpt2", GPT2, "bf16", "sdpa", 14376),
        ("gpt2", GPT2, "bf16", "eager", 16392),
        ("bert", BERT, "bf16", "sdpa", 8232),
        ("bert", BERT, "fp32", "eager", 20496),
    ],
)
def test_layer_saved_bytes_match_what_autograd_keeps(
    model_type: str, changes: dict[str, Any], precision: str, attention: str, measured: int
) -> None:
    model = small_model(model_type, **changes)
    assert _saved_bytes_per_token(model, precision=precision, attention=attention) == pytest.approx(measured, rel=0.006)
