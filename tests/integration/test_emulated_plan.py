"""A plan for a cluster that this machine is not, made with emulated trials, and said to be so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.children import QUICKSTART, planner, read_plan, succeed

CLUSTER = ("--set", "cluster.nodes=8", "--set", "cluster.gpus_per_node=4", "--set", "training.global_batch_size=64")
SPACE = (
    *("--set", "search.zero_stage=1", "--set", "search.tensor_parallel_size=2"),
    *("--set", "search.pipeline_parallel_size=4", "--set", "search.micro_batch_size=[1, 2]"),
    *("--set", "search.activation_checkpointing=none", "--set", "search.precision=fp32"),
)


def test_plan_for_more_ranks_than_there_are_is_emulated_and_says_so(tmp_path: Path) -> None:
    run = succeed(
        *("plan", QUICKSTART, "--trials", "auto", *CLUSTER, *SPACE, "--max-trials", "2", "--no-validate"),
        *("--out", tmp_path / "plan"),
    )
    assert "emulated trials: one process here stands in for single ranks of 32 x cpu" in run.err
    plan = read_plan(tmp_path / "plan")
    promise = plan["promise"]
    assert (promise["step_time_kind"], promise["memory_kind"]) == ("emulated", "emulated")
    assert promise["first_losses"] == []
    assert plan["runner_up"]["kind"] == "emulated"
    assert "(emulated)" in (tmp_path / "plan" / "report.md").read_text()
    trials = [json.loads(line) for line in (tmp_path / "plan" / "trials.jsonl").read_text().splitlines()]
    runs = [trial["outcome"] for trial in trials if trial["key"] == plan["key"]]  # two of a close race
    outcome = runs[0]
    assert outcome["kind"] == "emulated"
    assert [rank["rank"] for rank in outcome["ranks"]] == [0, 8, 24]  # first, second and last stage
    assert promise["step_time_s"] == pytest.approx(sum(sum(run["breakdown"].values()) for run in runs) / len(runs))
    assert all(
        f"[emulated rank {rank}]" in (tmp_path / "plan" / "logs" / trials[0]["log_name"]).read_text()
        for rank in (0, 8, 24)
    )


def test_real_trials_of_more_ranks_than_there_are_stay_refused(tmp_path: Path) -> None:
    run = planner("plan", QUICKSTART, "--trials", "real", *CLUSTER, *SPACE, "--out", tmp_path / "plan")
    assert run.exit_code == 4
    assert "auto, emulated or none" in run.err
