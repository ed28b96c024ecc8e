"""Candidates that would run alike: one of them is tried for all. Pure.

With one data-parallel rank ZeRO has nobody to share states with: stages 1 to 3 keep the same bytes in other buffers and
send nothing. Of candidates that differ in nothing but the stage, the first in the model's order (what fits before what
does not, then the faster, then the smaller) stands for the others. A job that lists the stages wants each tried.
"""

from __future__ import annotations

import numpy as np

from planner.spec import JobSpec
from planner.spec.columns import BoolColumn, CandidateColumns, IntColumn


def stood_for(job: JobSpec, columns: CandidateColumns, *, order: IntColumn) -> BoolColumn:
    """Where another candidate stands for this one; nowhere in a job that lists ZeRO stages. `order`: best first."""
    by_another: BoolColumn = np.zeros(len(columns), dtype=np.bool_)
    if job.ranges.zero_stage is not None:
        return by_another
    rows = order[columns.data_parallel_size[order] == 1]
    if not len(rows):
        return by_another
    names = [name for name in columns.__dataclass_fields__ if name != "zero_stage"]
    rest = np.stack([np.asarray(getattr(columns, name)[rows], dtype=np.int64) for name in names], axis=1)
    _, first = np.unique(rest, axis=0, return_index=True)
    by_another[rows] = True
    by_another[rows[first]] = False
    return by_another
