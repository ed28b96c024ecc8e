"""The benchmark against DeepSpeed's autotuner: its job can be planned, and its table says what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from planner.app.draft import draft_plan
from planner.jobfile import load_job, resolve_job
from planner.space import local_axes
from tests.benchmarks.bench_autotuner import KEPT, SEQ_LEN, autotuner_config, job_of, side_by_side


@pytest.mark.parametrize("model", SEQ_LEN)
def test_job_of_our_side_is_planned_with_its_local_axes(tmp_path: Path, model: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job_of(model)))
    job = resolve_job(load_job(path, ("cluster.gpu=h200-sxm-141gb",), site_defaults=False), machine=None, traced=None)
    draft = draft_plan(job)
    assert len(draft.columns) == 60 and draft.fitting().any()
    assert [axis.name for axis in local_axes(job)] == ["torch_compile", "cross_entropy", "allocator"]


def test_autotuner_is_given_what_it_does_not_tune() -> None:
    config = autotuner_config()
    assert "train_micro_batch_size_per_gpu" not in config and config["autotuning"]["fast"]
    assert "auto" not in json.dumps(config).replace("autotuning", "")


def test_table_holds_medians_spread_headroom_and_the_ratio() -> None:
    ours = {
        "side": "ours",
        "model": "llama1b3",
        "seq_len": 2048,
        "seconds": 108.6,
        "num_trials": 12,
        "setting": "tp1",
        "tokens_per_s": 54_000.0,
        "step_times_s": [1.0, 1.01, 0.99],
        "device_used_bytes": 90,
        "usable_bytes": 100,
        "losses": [1.0],
        "note": "",
    }
    kept = [json.loads((KEPT / "deepspeed-llama1b3.json").read_text()), ours]
    heading, first, second, ratio = side_by_side(kept)
    assert "headroom" in heading and "10.0%" in first and "1.5%" in first and "54,000" in first
    assert "45,000" in second and "543s" in second
    assert ratio.startswith("llama1b3: 1.20 times the tokens/s in 0.20 of the time")
