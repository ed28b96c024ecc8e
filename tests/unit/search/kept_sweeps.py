"""Sweeps that `tests/benchmarks/sweep_gpu.py` kept (tests/data/sweeps/*.jsonl), as search problems.

The prior is the cost model's of today for the job in the file; outcomes are those of the kept trials.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np

from planner.app.draft import estimate_space
from planner.app.refinement import priors_of
from planner.jobfile import load_job, resolve_job
from planner.spec import JobSpec, Measured, OutOfMemory, TrialRecord
from planner.spec.codec import from_plain
from planner.spec.columns import columns_of
from tests.unit.search.real_sweeps import Sweep

FOLDER = Path(__file__).parents[2] / "data" / "sweeps"


def load_kept_sweeps(folder: Path = FOLDER) -> tuple[Sweep, ...]:
    """The sweeps of a folder, parts of one job put together."""
    parts: dict[str, list[TrialRecord]] = defaultdict(list)
    names: dict[str, str] = {}
    for path in sorted(folder.glob("*.jsonl")):
        head, *lines = path.read_text(encoding="utf-8").splitlines()
        text = json.loads(head)["job"]
        names.setdefault(text, path.stem)
        parts[text] += [from_plain(TrialRecord, json.loads(line)) for line in lines]
    return tuple(sweep_of(names[text], job_of_text(text), tuple(trials)) for text, trials in parts.items())


def job_of_text(text: str) -> JobSpec:
    """The job as its text has it resolved."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.yaml"
        path.write_text(text, encoding="utf-8")
        return resolve_job(load_job(path, (), site_defaults=False), machine=None, traced=None)


def sweep_of(name: str, job: JobSpec, trials: tuple[TrialRecord, ...]) -> Sweep:
    """What ran has its speed and memory; what ran out of memory needed more than there is; anything else failed."""
    trials = tuple({trial.key: trial for trial in trials}.values())
    columns = columns_of(tuple(trial.candidate for trial in trials), gpus_per_node=job.cluster.gpus_per_node)
    usable = job.cluster.gpu.memory_usable_bytes
    return Sweep(
        name=name,
        columns=columns,
        priors=priors_of(estimate_space(job, columns)),
        usable_bytes=usable,
        tokens_per_s=np.array([_speed(trial) for trial in trials]),
        memory_bytes=np.array([_memory(trial, usable) for trial in trials]),
    )


def _speed(trial: TrialRecord) -> float:
    if isinstance(trial.outcome, Measured):
        return trial.outcome.tokens_per_s
    return 1.0 if isinstance(trial.outcome, OutOfMemory) else 0.0


def _memory(trial: TrialRecord, usable_bytes: int) -> float:
    if isinstance(trial.outcome, Measured):
        return float(max(trial.outcome.device_used_bytes, trial.outcome.peak_reserved_bytes))
    return usable_bytes * 1.1
