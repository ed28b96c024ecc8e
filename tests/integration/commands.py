"""The product as its users meet it: the command, run as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLANNER = (sys.executable, "-c", "import sys; from planner.cli import main; main(sys.argv[1:])")
LIMIT_S = 270  # against hangs

TINY_JOB = """\
model: {name: tiny-llama-cpu}
training: {seq_len: 32, global_batch_size: 4}
cluster: {gpu: cpu, nodes: 1, gpus_per_node: 1, memory_gib: 2}
search: {zero_stage: [0, 1], micro_batch_size: [1, 2, 4], activation_checkpointing: [none], precision: fp32}
trials: {mode: real, max_trials: 6, steps: 1, time_budget: 5m, timeout: 60s}
"""


def environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's, with one thread a process: tests share the machine."""
    return {**os.environ, "OMP_NUM_THREADS": "1", **(changes or {})}


def start(words: Sequence[str], *, changes: Mapping[str, str] | None = None, cwd: Path = ROOT) -> subprocess.Popen[str]:
    """Start `planner WORDS…`, its two outputs as pipes."""
    return subprocess.Popen(
        [*PLANNER, *words],
        cwd=cwd,
        env={**environment(changes), "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(child: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code and both outputs."""
    out, err = child.communicate(timeout=LIMIT_S)
    return child.returncode, out, err


def wait_for_line(child: subprocess.Popen[str], words: str) -> list[str]:
    """Read standard error up to the line that holds `words`; the lines read."""
    assert child.stderr is not None
    lines = []
    for line in child.stderr:
        lines.append(line)
        if words in line:
            return lines
    raise AssertionError(f"{words!r} never came: {''.join(lines)}")
