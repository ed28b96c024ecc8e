"""A training on a GPU that runs out of its memory: the supervisor carries it to its end, on the same loss curve.

Run on one H200, two to four minutes:

    python3 -m pytest -m gpu -s tests/gpu/test_supervisor_gpu.py

With MESHPLAN_TEST_OUT set to a folder, the logs are kept there.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(590)]

ROOT = Path(__file__).parents[2]
STEPS = 8
LLAMA = {  # 160 million parameters
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
}
HOG = """
import sys, torch
free, total = torch.cuda.mem_get_info(0)
held = torch.empty(int(free * 0.9), dtype=torch.uint8, device="cuda")
print("holding", flush=True)
sys.stdin.read()
"""


def keep(name: str, text: str) -> None:
    """Leave something behind for whoever runs this on a machine that goes away."""
    print(text)
    folder = os.environ.get("MESHPLAN_TEST_OUT")
    if folder:
        (Path(folder) / name).write_text(text)


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHON": sys.executable, **more}


@pytest.fixture(scope="module", name="plan")
def plan_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan for this GPU with a large micro-batch, chosen without trials."""
    folder = tmp_path_factory.mktemp("supervised")
    (folder / "config.json").write_text(json.dumps(LLAMA))
    job: dict[str, Any] = {
        "model": {"config": "config.json"},
        "training": {
            "seq_len": 1024,
            "global_batch_size": 32,
            "steps": STEPS,
            "checkpoint": {"folder": "checkpoints", "interval": 2, "in_background": True},
        },
        "cluster": {"gpu": "auto", "nodes": 1, "gpus_per_node": 1},
        "search": {
            "zero_stage": [1],
            "micro_batch_size": [32],
            "activation_checkpointing": ["none"],
            "precision": "bf16",
        },
        "trials": {"mode": "none"},
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    command = [sys.executable, "-m", "planner", "plan", str(folder / "job.yaml"), "--out", str(folder / "plan")]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "plan"


def launch(plan: Path, *options: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(plan / "launch.sh"), *options]
    return subprocess.run(command, env=environment(**more), capture_output=True, text=True, check=False)


def change_tasks(plan: Path, **changes: Any) -> None:
    """In the plan's task and in every fallback's; `promise` is laid over what is there."""
    for path in (plan / "task.json", *plan.glob("fallbacks/*/task.json")):
        task = json.loads(path.read_text())
        promise = task["promise"] | changes.get("promise", {})
        path.write_text(json.dumps(task | changes | {"promise": promise}))


def losses_of(log: str) -> dict[int, float]:
    return {int(step): float(loss) for step, loss in re.findall(r"^step (\d+)/\d+  loss ([\d.]+)", log, re.MULTILINE)}


def test_run_out_of_gpu_memory_goes_on_with_a_fallback_on_the_same_loss_curve(plan: Path) -> None:
    report = plan / "whole.json"
    whole = launch(plan, "--no-checkpoint", "--report", str(report), MESHPLAN_SUPERVISE="off")
    assert whole.returncode == 0, whole.stdout + whole.stderr
    (rank,) = json.loads(report.read_text())["ranks"]
    change_tasks(plan, memory_limit_bytes=int(0.75 * rank["peak_reserved_bytes"]))

    done = launch(plan)
    keep("supervised.log", done.stdout + done.stderr)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    attempts = json.loads((plan / "supervisor.json").read_text())["attempts"]
    assert attempts[0]["level"] == 0 and attempts[0]["end"] == "out-of-memory"
    assert attempts[-1]["level"] >= 1 and attempts[-1]["end"] == "done"
    first = plan / "logs" / "run-0001"
    word = json.loads((first / "rank-00000.json").read_text())
    assert "out of memory" in word["failure"]["message"]
    assert (first / word["snapshot"]).stat().st_size > 0
    assert json.loads((first / "diagnosis.json").read_text())["cause"] not in ("not-oom", "unknown-not-capacity")
    assert losses_of(done.stdout) == pytest.approx(losses_of(whole.stdout), rel=0.01)
    assert (plan.parent / "checkpoints" / "latest").read_text() == f"global_step{STEPS}"

    more = launch(plan, "--resume", "--steps", "2")
    keep("resumed.log", more.stdout + more.stderr)
    assert more.returncode == 0, more.stdout + more.stderr
    assert "going on with fallback" in more.stderr and f"resumed after step {STEPS}" in more.stdout


def test_preflight_names_the_process_that_holds_the_memory(plan: Path) -> None:
    pytest.importorskip("pynvml")
    with subprocess.Popen([sys.executable, "-c", HOG], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as hog:
        assert hog.stdout is not None and hog.stdout.readline().strip() == "holding"
        change_tasks(plan, memory_limit_bytes=0, promise={"device_used_bytes": 60 << 30, "is_measured": True})
        try:
            refused = launch(plan, "--no-checkpoint", MESHPLAN_SUPERVISE="off")
        finally:
            hog.kill()
    keep("preflight.log", refused.stdout + refused.stderr)
    assert refused.returncode != 0
    assert "NotEnoughFreeMemory" in refused.stderr and "the plan needs 60.00 GiB" in refused.stderr
    # In a container NVML may give the process ids of the host, so the number itself is not held against ours.
    assert re.search(r"process \d+ \(.*\) holds \d+\.\d+ GiB", refused.stderr) or "no other process" in refused.stderr
