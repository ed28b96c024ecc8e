"""DeepSpeed's own verdict on a config, from the child program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from planner.emit import render_ds_config_text
from planner.spec import OptimizerName
from tests.unit.emit.samples import DEEPSPEED_VERSION, make_candidate, make_job


def run_child(config: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "planner.runtime.parse_config", "--config", str(config), *arguments]
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def verdict(config: Path, data_parallel_size: int) -> dict[str, Any]:
    done = run_child(config, "--data-parallel-size", str(data_parallel_size))
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)  # nothing but the document on standard output
    return result


def test_emitted_config_parses_for_its_own_world_and_for_no_other(tmp_path: Path) -> None:
    config = tmp_path / "a config.json"
    job, candidate = make_job(optimizer=OptimizerName.SGD), make_candidate(data=64, stage=3, micro=2, accumulation=4)
    config.write_text(render_ds_config_text(candidate, job=job, deepspeed_version=DEEPSPEED_VERSION))
    parsed = verdict(config, 64)
    assert parsed["ok"] is True, parsed
    assert (parsed["train_batch_size"], parsed["zero_stage"]) == (2 * 4 * 64, 3)
    refused = verdict(config, 32)
    assert refused["ok"] is False and "train_batch_size" in refused["error"]


def test_config_that_deepspeed_does_not_take_is_told_with_its_words(tmp_path: Path) -> None:
    config = tmp_path / "ds_config.json"
    config.write_text('{"train_batch_size": 8, "zero_optimization": {"stage": 1, "no_such_key": 1}}')
    refused = verdict(config, 8)
    assert refused["ok"] is False and "no_such_key" in refused["error"]


def test_child_that_takes_too_long_ends_itself(tmp_path: Path) -> None:
    config = tmp_path / "ds_config.json"
    config.write_text("{}")
    assert run_child(config, "--data-parallel-size", "1", "--time-limit-s", "0.01").returncode == 124
