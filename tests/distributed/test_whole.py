"""Models trained whole: the same losses under every ZeRO stage, data-parallel size and kind of checkpointing, and a
sentence where a layout asks for more."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from planner.spec import ModelFamily, ModelSpec, TracedModule, TrialTask
from tests.distributed.layouts import ADAMW, GLOBAL_BATCH_SIZE, make_task, run_layouts

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
CONFIGS: dict[ModelFamily, dict[str, Any]] = {
    ModelFamily.ENCODER: {**SMALL, **NO_DROPOUT, "model_type": "bert", "vocab_size": 128},
    ModelFamily.ENCODER_DECODER: {
        "model_type": "t5",
        "d_model": 32,
        "d_kv": 16,
        "d_ff": 64,
        "num_layers": 2,
        "num_heads": 2,
        "vocab_size": 128,
        "dropout_rate": 0.0,
        "decoder_start_token_id": 0,
    },
    ModelFamily.VISION: {**SMALL, **NO_DROPOUT, "model_type": "vit", "image_size": 16, "patch_size": 8},
    ModelFamily.DECODER: {**SMALL, "model_type": "gpt_neox", "vocab_size": 128, "bos_token_id": 1, "eos_token_id": 2},
}
TRACED = TracedModule(
    num_parameters=1,
    largest_parameter=1,
    saved_bytes_per_sample_fp32=1,
    fixed_saved_bytes=0,
    forward_flops_per_sample=1,
    tokens_per_sample=1,
)
PLAIN: dict[str, dict[str, Any]] = {"plain": {}}
ZERO = {"zero-1 data-2": {"zero": 1, "data": 2}, "zero-3 data-2": {"zero": 3, "data": 2}}
CHECKPOINTED = {
    "selective": {"checkpointing": "selective"},
    "zero-3 data-2 full": {"zero": 3, "data": 2, "checkpointing": "full"},
}


def with_model(task: TrialTask, model: ModelSpec) -> TrialTask:
    layout = dataclasses.replace(task.candidate.layout, stage_layers=())
    return dataclasses.replace(task, model=model, candidate=dataclasses.replace(task.candidate, layout=layout))


def transformers_model(family: ModelFamily) -> ModelSpec:
    config = CONFIGS[family]
    text = json.dumps(config)
    return ModelSpec(name="m", family=family, model_type=config["model_type"], config_json=text, vocab_size=128)


def factory_model(function: str) -> ModelSpec:
    factory = f"tests.distributed.factories:{function}"
    return ModelSpec(name="m", family=ModelFamily.MODULE, model_type="module", factory=factory, traced=TRACED)


def assert_alike(results: dict[str, list[dict[str, Any]]], model: str, *, tolerance: float) -> list[float]:
    """Every rank of every layout of a model has the losses of its plain run, which are returned."""
    reference: list[float] = results[f"{model} plain"][0]["losses"]
    wrong = {
        name: ranks
        for name, ranks in results.items()
        for rank in ranks
        if name.startswith(model)
        if rank.get("losses") != pytest.approx(reference, rel=tolerance)
        or set(rank["sequences"]) != {GLOBAL_BATCH_SIZE}
    }
    assert not wrong, f"expected {reference}"
    return reference


def tasks_of(
    name: str, model: ModelSpec, layouts: dict[str, dict[str, Any]], *, precision: str = "fp32"
) -> dict[str, TrialTask]:
    return {
        f"{name} {layout}": with_model(make_task("llama", optimizer=ADAMW, precision=precision, **axes), model)
        for layout, axes in layouts.items()
    }


def test_whole_transformers_models_every_layout_same_losses(tmp_path: Path) -> None:
    tasks: dict[str, TrialTask] = {}
    for family in CONFIGS:
        tasks |= tasks_of(f"<{family}>", transformers_model(family), {**PLAIN, **CHECKPOINTED})
    results = run_layouts(tasks, tmp_path)
    for family in CONFIGS:
        assert_alike(results, f"<{family}>", tolerance=1e-4)


def test_whole_factory_every_layout_same_losses_and_learns(tmp_path: Path) -> None:
    functions = ("regressor", "scored_regressor")
    tasks: dict[str, TrialTask] = {}
    for function in functions:
        tasks |= tasks_of(f"<{function}>", factory_model(function), {**PLAIN, **ZERO})
    tasks |= tasks_of("<bf16>", factory_model("regressor"), {**PLAIN, **ZERO}, precision="bf16")
    results = run_layouts(tasks, tmp_path)
    for function in functions:
        losses = assert_alike(results, f"<{function}>", tolerance=1e-4)
        assert losses[-1] < 0.95 * losses[0]
    assert_alike(results, "<bf16>", tolerance=1e-2)


def test_whole_model_impossible_layouts_refused_with_sentence(tmp_path: Path) -> None:
    bert, module = transformers_model(ModelFamily.ENCODER), factory_model("regressor")
    tasks = {
        "bert tensor": with_model(make_task("llama", tensor=2), bert),
        "module pipeline": with_model(make_task("llama", pipeline=2), module),
        "module checkpointing": with_model(make_task("llama", checkpointing="full"), module),
        "llama fp16 on cpu": make_task("llama", precision="fp16"),
        "llama heads": make_task("llama", tensor=4),
    }
    results = run_layouts(tasks, tmp_path)
    assert "cannot be split over tensor-parallel ranks" in results["bert tensor"][0]["error"]
    assert "cannot be split" in results["module pipeline"][0]["error"]
    assert "GradientCheckpointingLayer" in results["module checkpointing"][0]["error"]
    assert "fp16 cannot be trained on this cpu" in results["llama fp16 on cpu"][0]["error"]
    assert "2 KV heads cannot be split over 4" in " ".join(rank["error"] for rank in results["llama heads"])
