"""Tensor and pipeline parallelism, tried by real processes, emitted and verified."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.children import TINY_JOB, read_trials, succeed, write_job


@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (1, 2), (2, 2)])
def test_split_model_is_tried_planned_and_verified(tmp_path: Path, tensor: int, pipeline: int) -> None:
    settings = (
        *("--set", f"cluster.gpus_per_node={tensor * pipeline}", "--set", f"search.tensor_parallel_size={tensor}"),
        *("--set", f"search.pipeline_parallel_size={pipeline}", "--set", "search.micro_batch_size=2"),
        *("--set", "search.zero_stage=[0, 1]", "--max-trials", "1"),
    )
    folder = tmp_path / "plan"
    succeed("plan", write_job(tmp_path, TINY_JOB), "--out", folder, "--json", *settings)
    (trial,) = read_trials(folder)
    assert trial["outcome"]["type"] == "Measured"
    assert len(trial["outcome"]["ranks"]) == tensor * pipeline
    layout = json.loads((folder / "task.json").read_text())["candidate"]["layout"]
    assert (layout["tensor_parallel_size"], layout["pipeline_parallel_size"]) == (tensor, pipeline)
    verified = succeed("verify", folder, "--steps", "4", "--json").document
    losses = [row for row in verified["rows"] if row["name"].startswith("loss")]
    assert len(losses) == 3 and all(row["passed"] for row in losses)
