"""A training that really runs out of memory in the middle: the supervisor ends its ranks and goes on from the last
checkpoint with the next fallback, on the loss curve of an undisturbed run."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from planner.spec import BatchSplit, RunSpec, TrialTask
from planner.spec.codec import from_plain, to_plain
from planner.spec.supervision import RankExit
from planner.supervise.attempt import StopFlag
from planner.supervise.loop import Ports, Supervision, Supervisor, read_state
from planner.supervise.nodes import Alone
from tests.distributed.layouts import ROOT
from tests.distributed.tasks import make_task, tiny_llama

STEPS = 80
INTERVAL = 2
TRAIN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "planner.runtime.train")
FILES = ("--task", "task.json", "--deepspeed-config", "ds_config.json")
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": "65536",  # tensors are asked of the kernel each time, so that its limit is felt
}


def task_with(micro_batch_size: int, folder: Path) -> TrialTask:
    """Two ranks, eight sequences a step, in micro-batches of this size."""
    task = make_task(tiny_llama(), data_parallel_size=2, zero_stage=1, global_batch_size=8, steps=STEPS)
    accumulation = 4 // micro_batch_size
    config = json.loads(task.ds_config_json) | {
        "train_micro_batch_size_per_gpu": micro_batch_size,
        "gradient_accumulation_steps": accumulation,
    }
    batch = BatchSplit(
        micro_batch_size=micro_batch_size, gradient_accumulation_steps=accumulation, data_parallel_size=2
    )
    training = dataclasses.replace(
        task.training,
        seq_len=128,
        steps=STEPS,
        checkpoint_dir=str(folder / "checkpoints"),
        checkpoint_interval_steps=INTERVAL,
        run=RunSpec(keep_checkpoints=2),
    )
    return dataclasses.replace(
        task,
        training=training,
        candidate=dataclasses.replace(task.candidate, batch=batch),
        ds_config_json=json.dumps(config),
    )


def write_files(folder: Path, task: TrialTask) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ds_config.json").write_text(task.ds_config_json)
    (folder / "task.json").write_text(json.dumps(to_plain(dataclasses.replace(task, ds_config_json=""))))


def losses_of(log: str) -> dict[int, float]:
    found = re.findall(rf"^step (\d+)/{STEPS}  loss ([\d.]+)", log, re.MULTILINE)
    return {int(step): float(loss) for step, loss in found}


def take_the_memory_away(folder: Path, *, after: str) -> None:
    """Once the run has come so far, its first rank may hold no more than it holds, as if others had taken the rest."""
    log = folder / "logs" / "run-0001" / "output.log"
    while not (log.is_file() and after in log.read_text()):
        time.sleep(0.01)
    for process in psutil.Process().children(recursive=True):
        if "planner.runtime.train" in process.cmdline() and process.environ().get("RANK") == "0":
            resource.prlimit(process.pid, resource.RLIMIT_DATA, (1 << 20, resource.RLIM_INFINITY))


@pytest.mark.timeout(280)
def test_run_out_of_memory_goes_on_with_the_fallback_on_the_same_loss_curve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, task_with(4, tmp_path))
    write_files(tmp_path / "fallbacks/1", task_with(2, tmp_path))
    whole = subprocess.run(
        [sys.executable, *TRAIN, *FILES, "--no-checkpoint"], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    supervision = Supervision(
        plan_dir=tmp_path,
        command=(sys.executable, *TRAIN, *FILES),
        fallbacks=("fallbacks/1",),
        checkpoint_dir=str(tmp_path / "checkpoints"),
        environment=ENVIRONMENT,
    )
    said: list[str] = []
    ports = Ports(diagnose=lambda _folder: "capacity", say=said.append, pause=lambda _seconds: None)
    thief = threading.Thread(target=take_the_memory_away, args=(tmp_path,), kwargs={"after": "step 5/"}, daemon=True)
    thief.start()
    exit_code = Supervisor(supervision, Alone(), ports, StopFlag()).run()
    assert exit_code == 0, said
    attempts = read_state(tmp_path).attempts
    assert [(attempt.level, attempt.end) for attempt in attempts] == [(0, "out-of-memory"), (1, "done")]
    word = from_plain(RankExit, json.loads((tmp_path / "logs/run-0001/rank-00000.json").read_text()))
    assert word.failure is not None and "memory" in f"{word.failure.exception}{word.failure.message}".lower()
    assert word.steps_done >= 5

    first, second = (losses_of((tmp_path / f"logs/run-000{n}/output.log").read_text()) for n in (1, 2))
    resumed_after = min(second) - 1
    assert resumed_after >= 4 and resumed_after % INTERVAL == 0 and max(second) == STEPS
    assert f"from the checkpoint after step {resumed_after}" in said[-1]
    undisturbed = losses_of(whole.stdout)
    assert {**first, **second} == pytest.approx(undisturbed, abs=2e-4)  # as printed, with four places
    assert len(list((tmp_path / "checkpoints").glob("global_step*"))) == 2
