"""Drafts of small jobs, and trials of their candidates with chosen figures."""

from __future__ import annotations

from pathlib import Path

from planner.app.draft import Draft, draft_plan
from planner.search import SearchResult
from planner.spec import Candidate, Measured, Outcome, TrialRecord
from tests.unit.jobfile.jobs import job_of
from tests.unit.report.samples import make_measured

GIB = 1 << 30

# Two CPU ranks, twelve candidates that differ in little.
SMALL = """\
model: {name: tiny-llama-cpu}
training: {seq_len: 128, global_batch_size: 16}
cluster: {gpu: cpu, gpus_per_node: 2, memory_gib: 2}
search:
  zero_stage: [0, 1]
  tensor_parallel_size: 1
  pipeline_parallel_size: 1
  micro_batch_size: [2, 4, 8]
  activation_checkpointing: [none, full]
  precision: fp32
"""


def draft_of(folder: Path, *overrides: str, text: str = SMALL) -> Draft:
    """The draft of a job, priced and ranked."""
    return draft_plan(job_of(folder, text, *overrides))


def candidates_of(draft: Draft) -> tuple[Candidate, ...]:
    """Its candidates, best first by the model."""
    return tuple(draft.row(int(row)).candidate for row in draft.order)


def ran(step_time_s: float, *, used_bytes: int = GIB // 4) -> Measured:
    return make_measured(step_time_s=step_time_s, device_used_bytes=used_bytes)


def trial(number: int, candidate: Candidate, outcome: Outcome) -> TrialRecord:
    return TrialRecord(
        number=number,
        key=candidate.key,
        candidate=candidate,
        outcome=outcome,
        started_at_s=1.7e9,
        duration_s=1.0,
        machine="m",
    )


def result_of(*trials: TrialRecord, num_untried: int = 0) -> SearchResult:
    """What a search returns that has run these trials."""
    return SearchResult(
        trials=trials, choice=None, stopped_because="a test ended it", num_untried=num_untried, num_pruned=0
    )
