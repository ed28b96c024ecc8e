"""The reference trainer as torchrun starts it: token data, logs, a report, and going on after being killed."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from planner.runtime.schedule import learning_rate_fraction
from planner.spec import DataSpec, TrialTask
from planner.spec.codec import from_plain, to_plain
from planner.spec.trainer import TrainerReport
from tests.distributed.layouts import GLOBAL_BATCH_SIZE, ROOT, SEQ_LEN, make_task

STEPS = 24
INTERVAL = 3


def write_plan(folder: Path, task: TrialTask) -> None:
    """`task.json` and `ds_config.json` as the planner leaves them."""
    (folder / "ds_config.json").write_text(task.ds_config_json)
    (folder / "task.json").write_text(json.dumps(to_plain(dataclasses.replace(task, ds_config_json=""))))


def token_task(folder: Path) -> TrialTask:
    """Two data-parallel ranks reading a token file of 16-bit ids."""
    generator = np.random.default_rng(0)
    (folder / "tokens.bin").write_bytes((generator.random(SEQ_LEN * 40 + 5) ** 2 * 128).astype("<u2").tobytes())
    task = make_task("llama", data=2, zero=2, steps=STEPS)
    training = dataclasses.replace(
        task.training,
        steps=STEPS,
        data=DataSpec(path=str(folder / "tokens.bin"), token_bytes=2),
        checkpoint_dir=str(folder / "checkpoints"),
        checkpoint_interval_steps=INTERVAL,
    )
    return dataclasses.replace(task, training=training)


def start_trainer(folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "planner.runtime.train", "--task", "task.json", "--deepspeed-config", "ds_config.json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*command, *options],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def losses_of(log: str) -> dict[int, float]:
    """Loss by step, as logged."""
    return {int(step): float(loss) for step, loss in re.findall(r"^step (\d+)/\d+  loss ([\d.]+)", log, re.MULTILINE)}


def kill_after_checkpoint(trainer: subprocess.Popen[str]) -> str:
    """Wait for the first checkpoint and one more step, then end every process at once; gives the log so far."""
    assert trainer.stdout is not None
    lines = []
    for line in trainer.stdout:
        lines.append(line)
        if line.startswith("step 4/"):
            break
    # Keep: the ranks by their ids, since torchrun puts each into a session of its own, where they would train on.
    launcher = psutil.Process(trainer.pid)
    for process in (*launcher.children(recursive=True), launcher):
        process.kill()
    trainer.wait()
    return "".join(lines)


@pytest.mark.timeout(280)
def test_trainer_killed_and_resumed_continues_loss_curve_and_reports(tmp_path: Path) -> None:
    write_plan(tmp_path, token_task(tmp_path))
    whole = start_trainer(tmp_path, "--no-checkpoint", "--report", "whole.json")
    log, _ = whole.communicate()
    assert whole.returncode == 0, log
    assert not (tmp_path / "checkpoints").exists()
    report = from_plain(TrainerReport, json.loads((tmp_path / "whole.json").read_text()))
    assert [rank.rank for rank in report.ranks] == [0, 1]
    assert report.losses == report.ranks[1].losses
    assert {rank.sequences_per_step for rank in report.ranks} == {GLOBAL_BATCH_SIZE}
    assert report.steps_done == STEPS == len(report.losses)
    assert min(rank.device_used_bytes for rank in report.ranks) > 0
    assert losses_of(log) == {i + 1: pytest.approx(loss, abs=1e-4) for i, loss in enumerate(report.losses)}

    killed_log = kill_after_checkpoint(start_trainer(tmp_path))
    assert losses_of(killed_log)[4] == pytest.approx(report.losses[3], abs=1e-4)

    anew = start_trainer(tmp_path)
    log, _ = anew.communicate()
    assert anew.returncode != 0
    assert "already holds checkpoints of a training" in log

    config = json.loads((tmp_path / "ds_config.json").read_text())
    config["optimizer"]["params"]["lr"] = 0.125  # a checkpoint overrules it, and the trainer says so
    (tmp_path / "ds_config.json").write_text(json.dumps(config))
    resumed = start_trainer(tmp_path, "--resume", "--report", "resumed.json")
    log, _ = resumed.communicate()
    assert resumed.returncode == 0, log
    assert "note: optimizer.lr 0.125 of the job is ignored: a resumed run keeps the checkpoint's 2.0" in log
    rates = re.findall(r"^step \d+/\d+  loss [\d.]+  lr ([\d.e+-]+)", log, re.MULTILINE)
    expected = 2.0 * learning_rate_fraction(STEPS - 1, token_task(tmp_path).training)  # the last step's own
    assert float(rates[-1]) == pytest.approx(expected, rel=1e-3)
    continued = from_plain(TrainerReport, json.loads((tmp_path / "resumed.json").read_text()))
    first = continued.resumed_from_step  # later than the first checkpoint when the kill came late
    assert first in range(INTERVAL, STEPS, INTERVAL)
    assert continued.losses == pytest.approx(report.losses[first:], rel=1e-6)
