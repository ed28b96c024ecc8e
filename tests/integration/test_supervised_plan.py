"""From a job file to a training that its plan's own launch script carries through running out of memory."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.distributed.test_trainer import losses_of
from tests.integration.children import succeed
from tests.integration.commands import environment

STEPS = 6
MIB = 1 << 20


def make_plan(folder: Path) -> Path:
    """Two CPU ranks and a large micro-batch, the only candidate."""
    job: dict[str, Any] = {
        "model": {"name": "tiny-llama-cpu"},
        "training": {
            "seq_len": 128,
            "global_batch_size": 32,
            "steps": STEPS,
            "checkpoint": {"folder": "checkpoints", "interval": 2, "keep": 1},
        },
        "cluster": {"gpu": "cpu", "nodes": 1, "gpus_per_node": 2, "memory_gib": 2},
        "search": {
            "zero_stage": [1],
            "tensor_parallel_size": [1],
            "pipeline_parallel_size": [1],
            "micro_batch_size": [16],
            "activation_checkpointing": ["none"],
            "precision": "fp32",
        },
        "trials": {"mode": "none"},
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    succeed("plan", folder / "job.yaml", "--out", folder / "plan")
    return folder / "plan"


def launch(plan: Path, *options: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(plan / "launch.sh"), *options]
    return subprocess.run(command, env=environment(more), capture_output=True, text=True, check=False)


def limit_memory(plan: Path, limit_bytes: int) -> None:
    for path in (plan / "task.json", *plan.glob("fallbacks/*/task.json")):
        task = json.loads(path.read_text())
        path.write_text(json.dumps(task | {"memory_limit_bytes": limit_bytes}))


@pytest.mark.slow  # its twin in the default lane is tests/distributed/test_out_of_memory.py
@pytest.mark.timeout(900)
def test_launch_script_goes_down_the_plans_fallbacks_until_the_run_fits(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    fallbacks = yaml.safe_load((plan / "plan.yaml").read_text())["fallbacks"]
    assert [fallback["candidate"]["batch"]["micro_batch_size"] for fallback in fallbacks[:3]] == [8, 4, 1]
    for fallback in fallbacks:
        assert [step["passed"] for step in fallback["validation"]] == [True, True]
        config = json.loads((plan / fallback["folder"] / "ds_config.json").read_text())
        assert config["train_batch_size"] == 32

    whole = launch(plan, "--no-checkpoint", MESHPLAN_SUPERVISE="off")
    assert whole.returncode == 0, whole.stderr
    limit_memory(plan, 110 * MIB)
    done = launch(plan)
    attempts = json.loads((plan / "supervisor.json").read_text())["attempts"]
    assert done.returncode == 0, (attempts, done.stderr[-3000:])
    assert attempts[0]["end"] == "out-of-memory" and attempts[0]["level"] == 0
    assert attempts[-1]["end"] == "done" and attempts[-1]["level"] >= 1
    assert (plan / "logs" / "run-0001" / "diagnosis.json").is_file()
    assert losses_of(done.stdout) == pytest.approx(losses_of(whole.stdout), abs=2e-4)

    limit_memory(plan, 4 * MIB)
    hopeless = launch(plan, "--resume", "--steps", "2")
    assert hopeless.returncode == 3
    assert "ran out of memory and is not started again" in hopeless.stderr
