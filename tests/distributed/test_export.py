"""Weights out of every layout and into every other: what is exported loads in transformers and computes the same, and
a training that starts from it starts with the loss that transformers computes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors import safe_open

from planner.runtime.data import SyntheticTokens
from planner.spec import RunSpec, TrialTask
from tests.distributed.layouts import EXPORTED, GLOBAL_BATCH_SIZE, SEQ_LEN, make_task, run_layouts

# name: model, layout it is exported from, layout it is started in
LAYOUTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama-zero3": ("llama", {"data": 2, "zero": 3}, {"tensor": 2}),
    "llama-tensor": ("llama", {"tensor": 2, "zero": 1}, {"pipeline": 2}),
    "llama-pipeline": ("llama", {"pipeline": 2}, {"data": 2, "zero": 3}),
    "tied-pipeline": ("llama-tied", {"pipeline": 2}, {"tensor": 2}),
    "phi3-tensor": ("phi3", {"tensor": 2}, {"data": 1}),
    "gpt2-tensor": ("gpt2", {"tensor": 2}, {"pipeline": 2}),
    "moe-tensor": ("qwen3_moe", {"tensor": 2}, {"data": 2, "zero": 2}),
    "lora-tensor": ("llama", {"tensor": 2, "lora_rank": 2}, {"data": 2, "zero": 1}),
}
SAME_TRAINING = ("llama-zero3", "llama-tensor", "llama-pipeline")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each model after two steps, as a folder of safetensors."""
    folder = tmp_path_factory.mktemp("export")
    tasks = {
        name: make_task(model, steps=2, checkpoint_dir=str(folder / name / EXPORTED), **layout)
        for name, (model, layout, _start) in LAYOUTS.items()
    }
    results = run_layouts(tasks, folder / "runs")
    assert not [rank for ranks in results.values() for rank in ranks if "error" in rank], results
    return {name: folder / name / EXPORTED / "model" for name in LAYOUTS}


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    found = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    return found


def transformers_loss(folder: Path, task: TrialTask) -> float:
    """The mean loss over the first step's samples."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    source = SyntheticTokens(seed=task.training.seed, seq_len=SEQ_LEN, vocab_size=task.model.vocab_size)
    tokens = torch.stack([source.tokens(index) for index in range(GLOBAL_BATCH_SIZE)])
    with torch.no_grad():
        return float(model(input_ids=tokens, labels=tokens).loss)


def test_export_same_training_in_three_layouts_gives_the_same_files(exported: dict[str, Path]) -> None:
    first, *others = (tensors_of(exported[name]) for name in SAME_TRAINING)
    for other in others:
        assert other.keys() == first.keys()
        for name, tensor in first.items():
            assert torch.allclose(other[name], tensor, atol=1e-5), name
    assert (exported["llama-pipeline"] / "model.safetensors.index.json").is_file()


def test_export_loads_in_transformers_with_no_weight_missing_or_left(exported: dict[str, Path]) -> None:
    for name, folder in exported.items():
        _model, report = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
        assert not report["missing_keys"] and not report["unexpected_keys"], (name, report)


def test_training_from_exported_weights_begins_with_transformers_loss(
    exported: dict[str, Path], tmp_path: Path
) -> None:
    tasks = {}
    for name, (model, _layout, start) in LAYOUTS.items():
        task = make_task(model, steps=1, **start)
        training = dataclasses.replace(task.training, run=RunSpec(pretrained=str(exported[name])))
        tasks[name] = dataclasses.replace(task, training=training)
    results = run_layouts(tasks, tmp_path)
    for name, ranks in results.items():
        assert "error" not in ranks[0], (name, ranks)
        assert ranks[0]["losses"][0] == pytest.approx(transformers_loss(exported[name], tasks[name]), abs=2e-5), name


def test_training_from_weights_of_another_model_is_refused_by_name(exported: dict[str, Path], tmp_path: Path) -> None:
    task = make_task("gpt2", steps=1)
    training = dataclasses.replace(task.training, run=RunSpec(pretrained=str(exported["llama-zero3"])))
    results = run_layouts({"wrong": dataclasses.replace(task, training=training)}, tmp_path)
    assert "has no weights for transformer.wte.weight" in json.dumps(results)
