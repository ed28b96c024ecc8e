"""With one data-parallel rank, one ZeRO stage is tried for all; listed stages are all tried."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from planner.app.draft import Draft, draft_plan, search_problem
from tests.unit.jobfile.jobs import job_of

JOB = """\
model: {name: tiny-llama-cpu}
training: {seq_len: 128, global_batch_size: 16}
cluster: {gpu: cpu, gpus_per_node: 2, memory_gib: 2}
search: {micro_batch_size: [2, 4], activation_checkpointing: [none, full], precision: fp32}
"""


def _draft(folder: Path, *overrides: str) -> Draft:
    return draft_plan(job_of(folder, JOB, *overrides))


def test_each_layout_on_one_data_parallel_rank_is_tried_with_one_stage(tmp_path: Path) -> None:
    draft = _draft(tmp_path)
    tried = search_problem(draft, seed=1, machine="m").columns
    alone = tried.data_parallel_size == 1
    names = [name for name in tried.__dataclass_fields__ if name != "zero_stage"]
    rest = np.stack([np.asarray(getattr(tried, name)[alone], dtype=np.int64) for name in names], axis=1)
    assert len(rest) and len(np.unique(rest, axis=0)) == len(rest)
    every = draft.columns.data_parallel_size == 1
    assert len(np.unique(draft.columns.zero_stage[every])) > 1
    assert (tried.data_parallel_size == 2).sum() == (draft.columns.data_parallel_size == 2).sum()


def test_the_one_that_is_tried_is_the_models_first(tmp_path: Path) -> None:
    draft = _draft(tmp_path, "search.tensor_parallel_size=2", "search.micro_batch_size=2")
    rows = [int(row) for row in draft.order]
    tried = np.flatnonzero(draft.worth_trying()).tolist()
    for row in tried:
        twins = [
            other
            for other in rows
            if draft.columns.checkpointed_layers[other] == draft.columns.checkpointed_layers[row]
        ]
        assert rows.index(row) == min(map(rows.index, twins))


def test_listed_stages_are_all_tried(tmp_path: Path) -> None:
    draft = _draft(tmp_path, "search.zero_stage=[0,1,2,3]")
    assert draft.worth_trying().all()
