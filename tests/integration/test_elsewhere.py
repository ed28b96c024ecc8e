"""Jobs for machines that this one is not, and configurations priced without any."""

from __future__ import annotations

import json
from pathlib import Path

from tests.integration.children import QUICKSTART, ROOT, planner, read_plan, succeed, write_job

LLAMA_70B = ROOT / "configs" / "jobs" / "llama-3.1-70b-8x8-h100.yaml"
FAKE_SMI = """\
#!/bin/sh
case "$1" in *compute-apps*) ;; *) echo "0, GPU-aaaa, NVIDIA H200, 143771, 143156, 580.95";; esac
"""


def test_large_job_is_decided_by_the_model_in_three_seconds(tmp_path: Path) -> None:
    run = succeed("plan", LLAMA_70B, "--trials", "none", "--no-validate", "--out", tmp_path / "plan", "--json")
    assert run.cpu_s < 3.0
    plan = run.document["plan"]
    assert (plan["trial_number"], plan["promise"]["step_time_kind"]) == (-1, "computed")
    assert plan["promise"]["device_used_bytes"] <= 0.95 * plan["promise"]["usable_bytes"]
    layout = plan["candidate"]["layout"]
    sizes = (layout["data_parallel_size"], layout["tensor_parallel_size"], layout["pipeline_parallel_size"])
    assert sizes[0] * sizes[1] * sizes[2] == 64
    (start,) = run.document["next"]
    assert start == f"bash {tmp_path}/plan/launch.sh"
    assert "sbatch" in (tmp_path / "plan" / "launch.sh").read_text()


def test_large_job_with_auto_trials_says_which_could_not_run_and_validates_a_stand_in(tmp_path: Path) -> None:
    run = succeed("plan", LLAMA_70B, "--out", tmp_path / "plan")
    words = "none of the trials could run here, every number is the model's: the job is for 64 x h100-sxm-80gb"
    assert words in run.err
    plan = read_plan(tmp_path / "plan")
    assert words in plan["search"]["trials_note"]
    assert [(step["name"], step["passed"]) for step in plan["validation"]] == [
        *(("rules", True), ("parse", True), ("initialize", True))
    ]
    assert "stand-in" in plan["validation"][-1]["detail"]
    refused = planner("verify", tmp_path / "plan")
    assert refused.exit_code == 4
    assert "run planner verify on the target machine" in refused.err


def test_real_trials_that_cannot_be_had_end_with_4_and_write_nothing(tmp_path: Path) -> None:
    run = planner("plan", LLAMA_70B, "--trials", "real", "--out", tmp_path / "plan")
    assert run.exit_code == 4
    assert "the job is for 64 x h100-sxm-80gb; this machine has no GPU" in run.err
    assert not (tmp_path / "plan").exists()


def test_cpu_job_is_tried_on_the_cpu_of_a_machine_with_gpus(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(FAKE_SMI)
    program.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    run = planner("plan", QUICKSTART, "--dry-run", "--json", environment=environment)
    assert run.document["outline"]["mode"] == "real", run.err
    gpu_job = write_job(tmp_path, QUICKSTART.read_text().replace("gpu: cpu", "gpu: h200").replace("memory_gib", "#"))
    seen = planner("plan", gpu_job, "--dry-run", "--json", "--set", "cluster.gpus_per_node=1", environment=environment)
    assert seen.document["outline"]["device_name"] == "h200-sxm-141gb"


def test_missing_token_file_is_refused_before_any_trial(tmp_path: Path) -> None:
    job = write_job(tmp_path)
    run = planner("plan", job, "--out", tmp_path / "plan", "--set", "training.data.path=tokens.bin")
    assert run.exit_code == 2
    assert f"there is no token file {tmp_path}/tokens.bin" in run.err
    assert not (tmp_path / "plan").exists()


def test_estimate_streams_rows_in_order_with_malformed_ones_between(tmp_path: Path) -> None:
    row = {"model": "llama-3.1-8b", "gpu": "h100", "seq_len": 2048, "zero_stage": 3}
    lines = [json.dumps({**row, "micro_batch_size": size}) for size in (1, 2, 4)]
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes("\n".join([lines[0], "{", lines[1], '{"model": 5}', lines[2]]).encode() + b"\n\xff\n")
    run = succeed("estimate", "--from", rows)
    answers = [json.loads(line) for line in run.out.splitlines()]
    assert ["error" in answer for answer in answers] == [False, True, False, True, False, True]
    used = [answers[place]["memory"]["allocated_bytes"] for place in (0, 2, 4)]
    assert used == sorted(used)
    flags = ("--model", "llama-3.1-8b", "--gpu", "h100", "--seq-len", "2048", "--zero-stage", "3", "--json")
    assert succeed("estimate", *flags).document == answers[0]
