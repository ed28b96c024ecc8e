"""A module of the user's own, with its own batch and loss: traced, planned by real trials, launched, verified."""

from __future__ import annotations

from pathlib import Path

from tests.integration.children import planner, read_trials, succeed, write_job

MODULE = """\
import torch
from torch import nn


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8))

    def forward(self, features):
        return self.layers(features)


def make_batch(micro_batch_size, seq_len, generator):
    return {"features": torch.randn(micro_batch_size, 32, generator=generator)}


def loss(outputs, batch):
    return (outputs - batch["features"][:, :8]).square().mean()


def tower():
    return Tower(), make_batch, loss
"""
JOB = """\
model: {factory: "my_models:tower"}
training: {seq_len: 1, global_batch_size: 16, optimizer: {name: adamw, lr: 1.0e-2}, steps: 6}
cluster: {gpu: cpu, nodes: 1, gpus_per_node: 2, memory_gib: 2}
search: {zero_stage: [0, 2], micro_batch_size: [4, 8], activation_checkpointing: none, precision: fp32}
trials: {mode: real, max_trials: 2, time_budget: 100s, steps: 2, timeout: 60s}
"""


def test_own_module_is_planned_by_real_trials_and_its_script_finds_it(tmp_path: Path) -> None:
    project, folder = tmp_path / "a project", tmp_path / "plan"
    project.mkdir()
    (project / "my_models.py").write_text(MODULE)
    document = succeed("plan", write_job(project, JOB), "--out", folder, "--json").document
    assert {trial["outcome"]["type"] for trial in read_trials(folder)} == {"Measured"}
    left_out = dict(document["plan"]["search"]["left_out_axes"])
    assert {"tensor_parallel_size", "pipeline_parallel_size"} <= left_out.keys()
    succeed("emit", folder, "--out", tmp_path / "elsewhere")
    assert succeed("verify", tmp_path / "elsewhere", "--steps", "4", "--json").document["passed"]


def test_factory_that_cannot_be_made_is_refused_with_its_own_words(tmp_path: Path) -> None:
    (tmp_path / "my_models.py").write_text("def tower():\n    raise RuntimeError('no weights today')\n")
    run = planner("plan", write_job(tmp_path, JOB), "--out", tmp_path / "plan")
    assert run.exit_code == 2
    assert "'my_models:tower' could not be traced" in run.err
    assert "no weights today" in run.err
