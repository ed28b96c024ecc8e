"""Runs every candidate of a small space on this machine and keeps what each showed, for the search to be replayed on.

    python -m tests.benchmarks.sweep_gpu --out sweep.jsonl [--job tests/benchmarks/sweep-h200.yaml] [--part 1/2]

On one H200 a candidate takes about ten seconds, a part of two about five and a half minutes. The first line of the
file is the job as it was resolved here, each further one a trial as the plan folder would keep it, without its log.
Nothing is screened: candidates that run out of memory are part of the truth. Parts split the space evenly.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from planner.app.jobs import read_job
from planner.app.progress import SilentProgress
from planner.app.requests import PlanRequest
from planner.app.trials import open_pool, trial_task
from planner.jobfile import dump_job
from planner.space import enumerate_candidates
from planner.spec import Candidate, JobSpec, Measured, Outcome, TrialRecord
from planner.spec.codec import to_plain
from planner.spec.columns import candidate_at
from planner.trial import Machine, WarmPool

JOB = Path(__file__).parent / "sweep-h200.yaml"


def candidates_of(job: JobSpec, *, part: int, parts: int) -> tuple[Candidate, ...]:
    """Every `parts`-th legal candidate in an order of its own, so that a sweep that is cut short is spread evenly."""
    columns = enumerate_candidates(job).columns
    rows = list(range(len(columns)))
    np.random.default_rng(0).shuffle(rows)
    layers = job.model.num_layers
    return tuple(candidate_at(columns, row, num_layers=layers) for row in rows[part - 1 :: parts])


def without_log(outcome: Outcome) -> Outcome:
    """The outcome without the tail of its log, which names folders of the machine that ran it."""
    return replace(outcome, log_tail="") if hasattr(outcome, "log_tail") else outcome


def sweep(job: JobSpec, machine: Machine, options: argparse.Namespace) -> int:
    """Run the part's candidates, each line written as its trial ends. The number that were run."""
    part, parts = (int(number) for number in options.part.split("/"))
    candidates = candidates_of(job, part=part, parts=parts)
    began_s = time.monotonic()
    with options.out.open("w", encoding="utf-8") as out, open_pool(job.cluster.gpu.device, job=job) as pool:
        out.write(json.dumps({"job": dump_job(job), "part": options.part}) + "\n")
        pool.wait_ready()
        for place, candidate in enumerate(candidates):
            if time.monotonic() - began_s > options.time_budget:
                print(f"the time is up after {place} of {len(candidates)}", file=sys.stderr)
                return place
            trial = _run(place * parts + part - 1, candidate, job=job, machine=machine, pool=pool, log=options.log)
            out.write(json.dumps(to_plain(trial), allow_nan=False) + "\n")
            out.flush()
            print(f"{place + 1:3} of {len(candidates)}  {_figures(trial)}", file=sys.stderr, flush=True)
    return len(candidates)


def _run(
    number: int, candidate: Candidate, *, job: JobSpec, machine: Machine, pool: WarmPool, log: Path
) -> TrialRecord:
    started_at_s, before_s = time.time(), time.monotonic()
    task = trial_task(candidate, job=job, machine=machine)
    outcome = pool.run(task, timeout_s=job.trials.timeout_s, log_path=log)
    return TrialRecord(
        number=number,
        key=candidate.key,
        candidate=candidate,
        outcome=without_log(outcome),
        started_at_s=started_at_s,
        duration_s=time.monotonic() - before_s,
        machine=machine.fingerprint,
    )


def _figures(trial: TrialRecord) -> str:
    if isinstance(trial.outcome, Measured):
        return f"{trial.key:44} {trial.outcome.tokens_per_s:10,.0f} tokens/s  {trial.duration_s:5.1f} s"
    return f"{trial.key:44} {type(trial.outcome).__name__:>19}  {trial.duration_s:5.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--job", type=Path, default=JOB)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", default="1/1")
    parser.add_argument("--time-budget", type=float, default=1e9, help="seconds")
    parser.add_argument("--log", type=Path, default=Path("sweep.log"), help="the log of the trial that ran last")
    options = parser.parse_args()
    request = PlanRequest(job_path=options.job, out_dir=options.out.parent, site_defaults=False)
    job, machine = read_job(request, console=SilentProgress())
    began_s = time.monotonic()
    number = sweep(job, machine, options)
    print(f"{number} candidates in {time.monotonic() - began_s:.0f} s: {options.out}")


if __name__ == "__main__":
    main()
