"""The product as a user runs it: the console script in a child process, and plan folders read back from the disk."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "configs" / "jobs" / "quickstart.yaml"
LIMIT_S = 240  # of one command, on two cores that do other things too

# Two ranks of a tiny Llama, one thread each: a trial takes a second or two.
TINY_JOB = """\
model: {name: tiny-llama-cpu}
training: {seq_len: 64, global_batch_size: 8, optimizer: {name: adamw, lr: 1.0e-3}, steps: 4}
cluster: {gpu: cpu, nodes: 1, gpus_per_node: 2, memory_gib: 2}
search:
  zero_stage: [0, 1, 2]
  tensor_parallel_size: 1
  pipeline_parallel_size: 1
  micro_batch_size: [1, 2, 4]
  activation_checkpointing: none
  precision: fp32
trials: {mode: real, max_trials: 9, time_budget: 120s, steps: 2, timeout: 60s}
"""


@dataclass(frozen=True)
class Run:
    exit_code: int
    out: str
    err: str
    cpu_s: float

    @property
    def document(self) -> Any:
        """Standard output as the one JSON document that `--json` promises."""
        assert self.out.count("\n") == 1, self.out
        return json.loads(self.out)


def planner(*arguments: str | Path, folder: Path | None = None, environment: dict[str, str] | None = None) -> Run:
    """Run `planner` with these arguments to its end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command(*arguments),
        cwd=folder or ROOT,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(exit_code=done.returncode, out=done.stdout, err=done.stderr, cpu_s=cpu_s)


def succeed(*arguments: str | Path, folder: Path | None = None) -> Run:
    """Run `planner`, which has to end with 0."""
    run = planner(*arguments, folder=folder)
    assert run.exit_code == 0, f"{run.out}\n{run.err}"
    return run


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "planner", *map(str, arguments)]


def write_job(folder: Path, text: str = TINY_JOB) -> Path:
    path = folder / "job.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def read_trials(plan_dir: Path) -> list[dict[str, Any]]:
    """The whole lines of trials.jsonl."""
    text = (plan_dir / "trials.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def read_plan(plan_dir: Path) -> Any:
    return yaml.safe_load((plan_dir / "plan.yaml").read_text(encoding="utf-8"))


def processes_that_mention(text: str) -> list[str]:
    """The command lines, or working folders, of other processes in which `text` stands."""
    found = []
    for process in psutil.process_iter():
        try:
            words = " ".join([*process.cmdline(), process.cwd()])
        except (psutil.Error, OSError):
            continue
        if text in words and process.pid != os.getpid():
            found.append(words)
    return found
