"""Small job files for tests."""

from __future__ import annotations

from pathlib import Path

from planner.jobfile import load_job, resolve_job
from planner.spec import JobSpec

MINIMAL = """\
model: {name: tiny-llama-cpu}
training: {seq_len: 128, global_batch_size: 16}
cluster: {gpu: cpu}
"""


def write_job(folder: Path, text: str, name: str = "job.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def job_of(folder: Path, text: str, *overrides: str) -> JobSpec:
    return resolve_job(load_job(write_job(folder, text), tuple(overrides)))
