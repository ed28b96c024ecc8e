"""Several jobs and candidate clusters in one call, a mixed cluster that really runs, site defaults, deadlines."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from planner.rundir import RunDir
from tests.integration.commands import ROOT
from tests.integration.ports import free_port
from tests.integration.running import Planner, planner_fixture

planner = planner_fixture
BY_MODEL = ("--trials", "none", "--no-validate")
TINY = """\
model: {name: tiny-llama-cpu}
training: {seq_len: 64, global_batch_size: 32, steps: 4, seed: 7}
search: {precision: fp32, micro_batch_size: 2, activation_checkpointing: none, zero_stage: 0, tensor_parallel_size: 1}
"""
LARGE = """\
model: {name: llama-3.1-8b}
training: {seq_len: 4096, global_batch_size: 128, total_tokens: 10B}
search: {activation_checkpointing: [none, full], micro_batch_size: [1, 2]}
"""
GROUPS = """\
cluster:
  inter_node_link: loopback
  groups:
    - {gpu: cpu, nodes: 1, gpus_per_node: 1, memory_gib: 2}
    - gpu:
        name: slow-cpu
        device: cpu
        memory: {nominal_gib: 4, usable_gib: 2, kind: computed, source: a test}
        bandwidth: {gb_per_s: 5, kind: computed, source: a test}
        peak: {fp32_tflops: 0.02, fp16_tflops: 0, bf16_tflops: 0.02, kind: computed, source: a test}
        intra_node_link: loopback
        inter_node_link: loopback
      nodes: 1
      gpus_per_node: 1
"""


def _write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_clusters_of_a_job_are_planned_side_by_side_though_one_cannot_hold_it(planner: Planner, tmp_path: Path) -> None:
    clusters = "cluster: [{gpu: h100, nodes: 2}, {label: small, gpu: v100-16gb, gpus_per_node: 1}, {gpu: h200}]\n"
    job, out = _write(tmp_path, "job.yaml", LARGE + clusters), tmp_path / "out"
    run = planner("plan", job, "--out", str(out), *BY_MODEL, "--json")
    assert run.exit_code == 3
    document = json.loads(run.out)
    rows = {row["name"]: row for row in document["comparison"]}
    assert list(rows) == ["h100-2", "small", "h200"]
    assert rows["small"]["exit_code"] == 3 and rows["small"]["tokens_per_s"] == 0
    assert rows["h100-2"]["cost_per_hour"] == pytest.approx(16 * 12.29)
    assert (rows["h200"]["currency"], rows["h200"]["training_cost"]) == ("", 0.0)
    assert {path.parent.name for path in out.glob("*/plan.yaml")} == {"h100-2", "h200"}
    text = (out / "comparison.md").read_text()
    assert text.count("| h100-2 ") == 1 and "No price is known for: h200" in text and "exit code 3" in text


def test_dry_run_of_several_says_what_each_would_try_and_writes_nothing(planner: Planner, tmp_path: Path) -> None:
    one = _write(tmp_path, "one.yaml", LARGE + "cluster: {gpu: h100}\n")
    two = _write(tmp_path, "two.yaml", LARGE + "cluster: {gpu: h200}\n")
    run = planner("plan", one, two, "--out", str(tmp_path / "out"), "--trials", "none", "--dry-run")
    assert run.exit_code == 0, run
    last = run.out.splitlines()[-2:]
    assert [line.split()[0] for line in last] == ["one", "two"]
    assert not (tmp_path / "out").exists()


def test_site_defaults_are_said_and_can_be_left_out(
    planner: Planner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    _write(site, "defaults.yaml", "slurm: {partition: batch}\nprices: {h100: 2}\n")
    monkeypatch.setenv("MESHPLAN_SITE_CONFIGS", str(site))
    job = _write(tmp_path, "job.yaml", LARGE + "cluster: {gpu: h100}\nlaunch: {launcher: slurm}\n")
    with_them = planner("plan", job, "--out", str(tmp_path / "a"), *BY_MODEL)
    assert f"site defaults of {site}/defaults.yaml: prices.h100, slurm.partition" in with_them.err
    assert "#SBATCH --partition=batch" in (tmp_path / "a" / "launch" / "slurm.sbatch").read_text()
    assert "at 2 USD a GPU-hour (own figure)" in " ".join(with_them.out.split())
    without = planner("plan", job, "--out", str(tmp_path / "b"), *BY_MODEL, "--no-site-defaults")
    assert "site defaults" not in without.err and "12.29 USD" in without.out
    listed = json.loads(planner("list", "defaults", "--json").out)
    assert {one["key"]: (one["value"], one["folder"]) for one in listed}["slurm.partition"] == ("batch", "site")


def test_deadline_that_is_missed_ends_with_3_writes_nothing_and_says_what_would_do(
    planner: Planner, tmp_path: Path
) -> None:
    job = _write(tmp_path, "job.yaml", LARGE + "cluster: {gpu: h100, nodes: 2}\nobjective: {deadline: 5h}\n")
    run = planner("plan", job, "--out", str(tmp_path / "out"), *BY_MODEL)
    assert run.exit_code == 3
    assert "no plan trains 10.0 billion tokens within" in run.err and "such nodes" in run.err
    assert not (tmp_path / "out").exists()


def test_checkpoint_interval_that_is_left_to_the_plan_is_the_best_one(planner: Planner, tmp_path: Path) -> None:
    text = LARGE.replace("total_tokens: 10B", "total_tokens: 10B, checkpoint: {folder: kept, interval: auto}")
    job = _write(tmp_path, "job.yaml", text + "cluster: {gpu: h100, nodes: 2, mtbf_hours: 100}\n")
    run = planner("plan", job, "--out", str(tmp_path / "out"), *BY_MODEL, "--json")
    assert run.exit_code == 0, run
    best = json.loads(run.out)["forecast"]["checkpoint_interval_steps"]
    task = json.loads((tmp_path / "out" / "task.json").read_text())
    assert task["training"]["checkpoint_interval_steps"] == best > 1
    assert "interval: auto" in (tmp_path / "out" / "job.yaml").read_text().replace('"', "")


def _run(plan_dir: Path, *, nodes: int, report: Path) -> list[float]:
    """The losses of two steps, the emitted script started once a node, each node a process group of this machine."""
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "PYTHONPATH": str(ROOT)}
    command = ["bash", str(plan_dir / "launch.sh"), "--steps", "2", "--no-checkpoint"]
    started = [
        subprocess.Popen(
            [*command, *(["--report", str(report)] if node == 0 else [])],
            env={**environment, "NODE_RANK": str(node)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for node in range(nodes)
    ]
    try:
        assert [process.wait(timeout=300) for process in started] == [0] * nodes
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.wait()
    losses: list[float] = json.loads(report.read_text())["losses"]
    return losses


def test_pipeline_over_two_kinds_of_nodes_trains_as_one_process_does(planner: Planner, tmp_path: Path) -> None:
    mixed, alone = tmp_path / "mixed", tmp_path / "alone"
    run = planner("plan", _write(tmp_path, "mixed.yaml", TINY + GROUPS), "--out", str(mixed), "--no-validate")
    assert run.exit_code == 0, run
    assert "note: chosen: a pipeline over 1 x 1 x" in run.err
    layers = RunDir.open(mixed).read_plan().candidate.layout.stage_layers
    assert sorted(layers) == [1, 3]
    script = (mixed / "launch.sh").read_text()
    assert f"node {layers.index(3)} is cpu: stage {layers.index(3)} with 3 layers" in script
    assert f"node {layers.index(1)} is slow-cpu: stage {layers.index(1)} with 1 layers" in script
    single = _write(tmp_path, "one.yaml", TINY + "cluster: {gpu: cpu, gpus_per_node: 1, memory_gib: 2}\n")
    assert planner("plan", single, "--out", str(alone), *BY_MODEL).exit_code == 0
    over_groups = _run(mixed, nodes=2, report=tmp_path / "mixed.json")
    assert over_groups == pytest.approx(_run(alone, nodes=1, report=tmp_path / "alone.json"), rel=1e-5)


def test_plan_moved_to_a_mixed_cluster_uses_both_groups_and_stands_there(planner: Planner, tmp_path: Path) -> None:
    job = _write(tmp_path, "job.yaml", LARGE + "cluster: {gpu: h100, nodes: 2}\n")
    assert planner("plan", job, "--out", str(tmp_path / "old"), *BY_MODEL).exit_code == 0
    mixed = _write(tmp_path, "two.yaml", "name: two\ngroups: [{gpu: h100, nodes: 2}, {gpu: a100-80gb, nodes: 2}]\n")
    new = tmp_path / "new"
    moved = planner("replan", str(tmp_path / "old"), "--cluster", mixed, "--out", str(new), *BY_MODEL)
    assert moved.exit_code == 0, moved
    assert "chosen: a pipeline over" in moved.err
    plan = RunDir.open(new).read_plan()
    assert len(set(plan.candidate.layout.stage_layers)) > 1
    again = planner("replan", str(new), *BY_MODEL, "--json")
    assert again.exit_code == 0, again
    speed = f"{plan.promise.tokens_per_s / 1000:.0f} thousand tokens/s"
    assert speed in again.out and "it still runs" in again.out
