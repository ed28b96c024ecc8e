"""Emulated ranks beside real ones, layout by layout: memory and step time of both on one machine, kept as rows.

    python3 -m tests.validation.emulated_against_real --job configs/jobs/llama-3.1-8b-1-node.yaml --out rows.jsonl
    python3 -m tests.validation.emulated_against_real --table rows.jsonl

The first form runs, for every kind of layout that this machine can really run (ZeRO stage x tensor x pipeline size; of
each kind the candidate that the model ranks best), a real trial on all its devices and an emulated one on a single
device, and adds a line to the file the moment both ended; lines that are there are not measured again. The job's
cluster is overridden by this machine (`cluster.gpu=auto`); further `--set key=value` are laid over the job file.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from planner.app.draft import Draft, draft_plan
from planner.app.emulation import EmulatedEvaluator, Stage
from planner.app.jobs import read_job
from planner.app.progress import SilentProgress
from planner.app.requests import PlanRequest
from planner.app.trials import TrialEvaluator, open_pool
from planner.rundir import RunDir
from planner.spec import Candidate, JobSpec, Measured, Outcome
from planner.spec.codec import to_plain
from planner.trial import Machine, WarmPool

Row = dict[str, Any]
MEMORY_TOLERANCE, TIME_TOLERANCE = 0.03, 0.08  # what emulation is held to on several GPUs


def layouts_of(draft: Draft) -> list[Candidate]:
    """Of every kind of layout (ZeRO stage, tensor and pipeline size) the candidate the model ranks best."""
    fits, seen, chosen = draft.fitting(), set(), []
    for index in draft.order.tolist():
        candidate = draft.row(index).candidate
        layout = candidate.layout
        kind = (candidate.zero_stage, layout.tensor_parallel_size, layout.pipeline_parallel_size)
        if kind not in seen and fits[index] and not draft.screened[index]:
            seen.add(kind)
            chosen.append(candidate)
    return sorted(chosen, key=lambda one: (one.layout.pipeline_parallel_size, one.layout.tensor_parallel_size))


def figures(outcome: Outcome) -> Row:
    """What is compared of one trial; for one that was not measured, how it ended."""
    if not isinstance(outcome, Measured):
        return {"outcome": to_plain(outcome)}
    return {
        "step_time_s": outcome.step_time_s,
        "peak_allocated_bytes": max(rank.peak_allocated_bytes for rank in outcome.ranks),
        "peak_reserved_bytes": max(rank.peak_reserved_bytes for rank in outcome.ranks),
        "device_used_bytes": outcome.device_used_bytes,
    }


def measure(job: JobSpec, machine: Machine, *, pool: WarmPool, folder: Path, done: set[str]) -> Iterator[Row]:
    """One row per layout that `done` does not hold, real trial first."""
    run_dir = RunDir.create(folder, "emulated-against-real")
    real = TrialEvaluator(job, pool=pool, run_dir=run_dir, machine=machine, on_start=lambda *_: None)
    stage = Stage(job=job, machine=machine, gpu=job.cluster.gpu)
    emulated = EmulatedEvaluator(stage, pool=pool, run_dir=run_dir, on_start=lambda *_: None)
    draft = draft_plan(job)
    layouts = [one for one in layouts_of(draft) if one.key not in done]
    for number, candidate in enumerate(layouts):
        began_s = time.monotonic()
        row = {
            "key": candidate.key,
            "model": job.model.name,
            "device": machine.gpu_name or job.cluster.gpu.name,
            "world_size": job.cluster.world_size,
            "versions": dict(machine.versions),
            "real": figures(real.evaluate(2 * number, candidate)),
            "emulated": figures(emulated.evaluate(2 * number + 1, candidate)),
        }
        took_s = time.monotonic() - began_s
        print(f"{number + 1} of {len(layouts)}  {candidate.key}  {took_s:.0f} s", file=sys.stderr, flush=True)
        yield row


def table(rows: list[Row]) -> str:
    """The rows as Markdown, with emulated over real of memory and time."""
    lines = [
        "| model | devices | candidate | memory real | emulated | ratio | step real | emulated | ratio |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        real, emulated = row["real"], row["emulated"]
        head = f"| {row['model']} | {row['world_size']} x {row['device']} | `{row['key']}` |"
        if "outcome" in real or "outcome" in emulated:
            ends = [part.get("outcome", {}).get("type", "measured") for part in (real, emulated)]
            lines.append(f"{head} {ends[0]} | {ends[1]} | | | | |")
            continue
        memory, emulated_memory = real["peak_allocated_bytes"], emulated["peak_allocated_bytes"]
        step_s, emulated_s = real["step_time_s"], emulated["step_time_s"]
        lines.append(
            f"{head} {memory / 2**30:.2f} GiB | {emulated_memory / 2**30:.2f} GiB | {emulated_memory / memory:.3f} |"
            f" {step_s:.3f} s | {emulated_s:.3f} s | {emulated_s / step_s:.3f} |"
        )
    return "\n".join(lines) + "\n"


def read_rows(path: Path) -> list[Row]:
    """The rows kept in a file, none when there is none yet."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> None:
    """Measure, or print the table of what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", type=Path)
    parser.add_argument("--out", type=Path, default=Path("rows.jsonl"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--table", type=Path)
    words = parser.parse_args()
    if words.table is not None:
        print(table(read_rows(words.table)), end="")
        return
    with tempfile.TemporaryDirectory() as name:
        overrides = ("cluster={gpu: auto}", *words.set)
        request = PlanRequest(job_path=words.job, out_dir=Path(name) / "plan", overrides=overrides)
        job, machine = read_job(request, console=SilentProgress())
        done = {row["key"] for row in read_rows(words.out)}
        with open_pool(job.cluster.gpu.device, job=job) as pool, words.out.open("a") as rows:
            for row in measure(job, machine, pool=pool, folder=Path(name) / "trials", done=done):
                rows.write(json.dumps(row) + "\n")
                rows.flush()
    print(table(read_rows(words.out)), end="")


if __name__ == "__main__":
    main()
