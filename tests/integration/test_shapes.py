"""Models of every shape: estimated, searched and tried for real on the CPU; what does not apply to one is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.rundir import RunDir
from planner.spec.trial import Measured
from tests.integration.commands import ROOT, finish, start
from tests.integration.running import Planner, planner_fixture

planner = planner_fixture
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
SHAPES: dict[str, tuple[int, dict[str, Any]]] = {
    "encoder": (16, {**SMALL, "model_type": "bert", "vocab_size": 128, "max_position_embeddings": 64}),
    "encoder-decoder": (
        16,
        {
            "model_type": "t5",
            "d_model": 32,
            "d_kv": 16,
            "d_ff": 64,
            "num_layers": 2,
            "num_heads": 2,
            "vocab_size": 128,
            "decoder_start_token_id": 0,
        },
    ),
    "vision": (5, {**SMALL, "model_type": "vit", "image_size": 16, "patch_size": 8}),
    "mixture": (
        16,
        {
            **SMALL,
            "model_type": "mixtral",
            "vocab_size": 128,
            "num_key_value_heads": 2,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
        },
    ),
    "decoder": (
        16,
        {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 128, "n_positions": 64},
    ),
}
SPLIT = ("mixture", "decoder")
JOB = """\
model: {{name: tiny, config: {config}}}
training: {{seq_len: {seq_len}, global_batch_size: 4}}
cluster: {{gpu: cpu, nodes: 1, gpus_per_node: 2, memory_gib: 2}}
search: {{zero_stage: {zero}, {tensor}micro_batch_size: 2, activation_checkpointing: [full], precision: fp32}}
trials: {{mode: real, max_trials: 1, steps: 1, timeout: 60s}}
"""


def _job(folder: Path, shape: str) -> str:
    seq_len, config = SHAPES[shape]
    tensor = "tensor_parallel_size: 2, " if shape in SPLIT else ""
    text = JOB.format(config=json.dumps(config), seq_len=seq_len, tensor=tensor, zero=1 if tensor else 2)
    (folder / "job.yaml").write_text(text)
    return str(folder / "job.yaml")


@pytest.mark.parametrize("shape", SHAPES)
def test_shape_is_searched_and_says_which_axes_apply(planner: Planner, tmp_path: Path, shape: str) -> None:
    job = _job(tmp_path, shape)
    words = ("plan", job, "--dry-run", "--json", "--set", "search={precision: fp32}")
    outline = json.loads(planner(*words).out)["outline"]
    left_out = {axis for axis, _ in outline["left_out_axes"]}
    splits = {"tensor_parallel_size", "pipeline_parallel_size"}
    assert (left_out & splits) == (set() if shape in SPLIT else splits)
    assert all(reason for _, reason in outline["left_out_axes"])
    assert outline["num_candidates"] > 4


@pytest.mark.parametrize("shape", SHAPES)
def test_shape_is_tried_for_real(tmp_path: Path, shape: str) -> None:
    words = ["plan", _job(tmp_path, shape), "--out", str(tmp_path / "out"), "--no-validate"]
    code, _, err = finish(start(words))
    assert code == 0, err
    (trial,) = RunDir.open(tmp_path / "out").read_trials()
    assert isinstance(trial.outcome, Measured)
    assert trial.outcome.ranks[0].sequences_per_step == 4
    assert all(loss > 0 for loss in trial.outcome.ranks[0].losses)


@pytest.mark.parametrize("model", ["bert-large", "t5-base", "vit-large", "mixtral-8x7b", "deepseek-v3", "gemma-2-9b"])
def test_shape_is_estimated(planner: Planner, model: str) -> None:
    seq_len = "197" if model.startswith("vit") else "512"
    run = planner("estimate", "--model", model, "--gpu", "h200", "--seq-len", seq_len, "--zero-stage", "3", "--json")
    result = json.loads(run.out)
    assert result["feasible"] and result["step_time_s"] > 0
    memory = result["memory"]
    assert sum(memory["breakdown"].values()) == memory["device_used_bytes"] > 0


@pytest.mark.parametrize(
    ("example", "learns"), [("vision-factory", "small-vision"), ("two-tower-factory", "two-tower")]
)
def test_factory_example_is_planned_with_real_trials_and_its_script_runs(
    tmp_path: Path, example: str, learns: str
) -> None:
    words = ["plan", str(ROOT / "configs" / "jobs" / f"{example}.yaml"), "--out", str(tmp_path / "out"), "--json"]
    code, out, err = finish(start([*words, "--max-trials", "2", "--set", "trials.timeout=90s"]))
    assert code == 0, err
    document = json.loads(out)
    trials = RunDir.open(tmp_path / "out").read_trials()
    assert trials and all(isinstance(trial.outcome, Measured) for trial in trials)
    assert [step["passed"] for step in document["plan"]["validation"]] == [True, True, True]
    assert document["outline"]["job_name"] == learns
    left_out = dict(document["outline"]["left_out_axes"])
    assert "runs whole on each data-parallel rank" in left_out["tensor_parallel_size"]
    code, out, err = finish(start(["verify", str(tmp_path / "out"), "--steps", "3", "--json"]))
    rows = {row["name"]: row for row in json.loads(out)["rows"]}
    assert rows["loss_of_step_1"]["passed"] and rows["sequences_per_step"]["passed"], err
