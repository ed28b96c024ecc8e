"""What an out-of-memory trial proves about candidates that were not tried.

Only two facts are used, because only they hold whatever the allocator does, and only while nobody else uses the device:

1. *A larger micro-batch needs more.* Two candidates with the same layout, ZeRO stage, precision, checkpointing,
   attention, offload and tuning, both accumulating or both not: they hold the same model, gradient and optimizer
   states, and of every activation, logit and temporary tensor the one with the larger micro-batch holds at least as
   much. With a pipeline, a stage keeps up to min(stages left, accumulation steps) micro-batches; at a constant global
   batch that number times the micro-batch size does not fall as the micro-batch grows. Accumulating candidates are kept
   apart from those with a single micro-batch: the engine keeps gradient buffers for accumulation that the latter do not
   need.
2. *Building does not see the batch.* When memory ends while the model or the engine is built, no activation exists yet:
   every micro-batch size and every checkpointing with the same layout, ZeRO stage, precision, offload and
   accumulation class ends the same way.

Not used: that full checkpointing needs less than none. It holds for activations, but recomputation has buffers of its
own, and on small models the logits set the peak whatever is checkpointed.
"""

from __future__ import annotations

import numpy as np

from planner.search.history import Ended, Observation
from planner.spec.columns import BoolColumn, CandidateColumns
from planner.spec.kinds import Phase

_STATES = (
    "nodes",
    "data_parallel_size",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "sequence_parallel_size",
    "expert_parallel_size",
    "virtual_pipeline_size",
    "tensor_sequence_parallel",
    "zero_stage",
    "precision",
    "offload_optimizer",
    "offload_param",
    "tuning",
)
_ACTIVATIONS = ("checkpointed_layers", "attention")


def proven_out_of_memory(columns: CandidateColumns, observations: tuple[Observation, ...]) -> BoolColumn:
    """Candidates that need at least as much memory as one that ran out (which is marked too)."""
    proven = np.zeros(len(columns), dtype=np.bool_)
    for seen in observations:
        if seen.ended is Ended.OUT_OF_MEMORY:
            proven |= _implied(columns, seen)
    return proven


def _implied(columns: CandidateColumns, seen: Observation) -> BoolColumn:
    accumulates: BoolColumn = columns.gradient_accumulation_steps > 1
    same: BoolColumn = (accumulates == accumulates[seen.row]) & _equal(columns, _STATES, seen.row)
    if seen.phase in (Phase.BUILD_MODEL, Phase.BUILD_ENGINE):
        return same
    larger: BoolColumn = columns.micro_batch_size >= columns.micro_batch_size[seen.row]
    same &= larger & _equal(columns, _ACTIVATIONS, seen.row)
    return same


def _equal(columns: CandidateColumns, names: tuple[str, ...], row: int) -> BoolColumn:
    equal: BoolColumn = np.ones(len(columns), dtype=np.bool_)
    for name in names:
        column = getattr(columns, name)
        equal = equal & (column == column[row])
    return equal
