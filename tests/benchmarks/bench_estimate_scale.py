"""The whole space at once: Llama-3.1-405B on 225 cluster sizes, from the command to the plan, and the model alone.

    python -m tests.benchmarks.bench_estimate_scale [--runs 3]

Prints, of the best of a few runs: seconds from a cold start and of processor time, memory, legal candidates; then
candidates per second of enumerating, of pricing on one core, and whether the price of a candidate depends on how many
there are or on how many GPUs they use; and the seconds of one cold `planner estimate`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from planner.cost import REFERENCE_TRAINER, estimate_columns
from planner.jobfile import load_job, resolve_job
from planner.resources import find_data_dir
from planner.space import enumerate_candidates
from planner.spec import JobSpec
from planner.spec._record import record
from planner.spec.columns import CandidateColumns

JOB = find_data_dir("configs") / "jobs" / "llama-3.1-405b-scale.yaml"
PLANNER = (sys.executable, "-m", "planner")
ONE = ("estimate", "--model", "llama-3.1-8b", "--gpu", "h100", "--seq-len", "4096", "--json")


@record
class Run:
    """One run of a command as a child: wall and processor seconds, its largest resident memory, what it printed."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    output: str


def run_cold(arguments: tuple[str, ...]) -> Run:
    """Start `planner` with these arguments in a process of its own.

    Memory is read from the process while it runs: what the system keeps of ended children counts what their parent held
    when it started them, too.
    """
    start, peak_bytes = time.perf_counter(), 0
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen([*PLANNER, *arguments], stdout=output, stderr=subprocess.DEVNULL, text=True)
        while True:
            ended, status, usage = os.wait4(process.pid, os.WNOHANG)
            if ended:
                break
            peak_bytes = max(peak_bytes, _high_water_bytes(process.pid))
            time.sleep(0.01)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        printed = output.read()
    cpu_s = usage.ru_utime + usage.ru_stime
    return Run(wall_s=time.perf_counter() - start, cpu_s=cpu_s, peak_bytes=peak_bytes, output=printed)


def _high_water_bytes(pid: int) -> int:
    """The most memory a process was resident with so far; 0 for one that has ended."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def plan_at_scale(folder: Path) -> Run:
    """The scale job, planned from nothing into `folder`."""
    return run_cold(("plan", str(JOB), "--trials", "none", "--no-validate", "--json", "--out", str(folder / "plan")))


def _seconds(job: JobSpec, columns: CandidateColumns) -> float:
    start = time.perf_counter()
    estimate_columns(columns, model=job.model, training=job.training, cluster=job.cluster, profile=REFERENCE_TRAINER)
    return time.perf_counter() - start


def _print_rates(runs: int) -> None:
    job = resolve_job(load_job(JOB))
    spaces = [(time.perf_counter(), enumerate_candidates(job), time.perf_counter()) for _ in range(runs)]
    space, enumerating_s = spaces[0][1], min(end - start for start, _, end in spaces)
    print(f"enumerating      {len(space.columns) / enumerating_s:14,.0f} legal candidates/s")
    rows = np.arange(len(space.columns), dtype=np.int64)
    for share in (0.1, 0.5, 1.0):
        part = space.columns.take(rows[: int(share * len(rows))])
        best = min(_seconds(job, part) for _ in range(runs))
        print(f"pricing {len(part):8,} {len(part) / best:14,.0f} candidates/s on one core")
    few = enumerate_candidates(replace(job, node_counts=()), nodes=(8,)).columns
    alike = few.take(np.resize(np.arange(len(few), dtype=np.int64), 100_000))
    best = min(_seconds(job, alike) for _ in range(runs))
    print(f"pricing  100,000 {100_000 / best:14,.0f} candidates/s of 64 GPUs")


def _main() -> None:
    parser = argparse.ArgumentParser(description="Pricing the whole space of a 405B model.")
    parser.add_argument("--runs", type=int, default=3, help="take the best of so many")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    with tempfile.TemporaryDirectory() as folder:
        runs = [plan_at_scale(Path(folder, str(index))) for index in range(options.runs)]
    best = min(runs, key=lambda run: run.wall_s)
    count = json.loads(best.output)["num_candidates"]
    print(f"planner plan     {best.wall_s:6.2f} s, {best.cpu_s:.2f} s of processor, {best.peak_bytes / 2**20:,.0f} MiB")
    print(f"                 {count:,} legal candidates, {count / best.wall_s:,.0f} a second from a cold start")
    _print_rates(options.runs)
    one = min((run_cold(ONE) for _ in range(options.runs)), key=lambda run: run.wall_s)
    print(f"planner estimate {one.wall_s:6.2f} s, {one.cpu_s:.2f} s of processor, one configuration")


if __name__ == "__main__":
    _main()
