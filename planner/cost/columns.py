"""The answer for many candidates: an array for every field of `Estimate`.

Owns the result's shape and making one record of one row. Computes nothing.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.spec._record import record
from planner.spec.columns import BoolColumn, FloatColumn, IntColumn
from planner.spec.estimate import Estimate, MemoryBreakdown, MemoryEstimate, TimeBreakdown
from planner.spec.kinds import Provenance


@record
class EstimateColumns:
    """Arrays of one length, named as the fields of `Estimate`, `MemoryEstimate` and their breakdowns."""

    parameters_bytes: IntColumn
    gradients_bytes: IntColumn
    optimizer_bytes: IntColumn
    activations_bytes: IntColumn
    buffers_bytes: IntColumn
    allocator_slack_bytes: IntColumn
    communication_bytes: IntColumn
    context_bytes: IntColumn
    allocated_bytes: IntColumn
    reserved_bytes: IntColumn
    device_used_bytes: IntColumn
    worst_stage: IntColumn
    low_bytes: IntColumn
    high_bytes: IntColumn
    host_bytes: IntColumn
    disk_bytes: IntColumn
    compute_s: FloatColumn
    recompute_s: FloatColumn
    tensor_parallel_s: FloatColumn
    data_parallel_s: FloatColumn
    pipeline_s: FloatColumn
    bubble_s: FloatColumn
    optimizer_s: FloatColumn
    offload_s: FloatColumn
    host_s: FloatColumn
    step_time_s: FloatColumn
    tokens_per_s: FloatColumn
    tokens_per_s_per_gpu: FloatColumn
    mfu_fraction: FloatColumn
    fits: BoolColumn
    usable_bytes: int
    host_usable_bytes: int
    kind: Provenance

    def __len__(self) -> int:
        return len(self.allocated_bytes)

    def record_at(self, row: int) -> Estimate:
        """The estimate of one candidate."""
        memory = MemoryEstimate(
            allocated_bytes=int(self.allocated_bytes[row]),
            reserved_bytes=int(self.reserved_bytes[row]),
            device_used_bytes=int(self.device_used_bytes[row]),
            usable_bytes=self.usable_bytes,
            worst_stage=int(self.worst_stage[row]),
            breakdown=MemoryBreakdown(
                **{name: int(getattr(self, name)[row]) for name in MemoryBreakdown.__dataclass_fields__}
            ),
            low_bytes=int(self.low_bytes[row]),
            high_bytes=int(self.high_bytes[row]),
            host_bytes=int(self.host_bytes[row]),
            host_usable_bytes=self.host_usable_bytes,
            disk_bytes=int(self.disk_bytes[row]),
        )
        return Estimate(
            memory=memory,
            time=TimeBreakdown(
                **{name: float(getattr(self, name)[row]) for name in TimeBreakdown.__dataclass_fields__}
            ),
            step_time_s=float(self.step_time_s[row]),
            tokens_per_s=float(self.tokens_per_s[row]),
            tokens_per_s_per_gpu=float(self.tokens_per_s_per_gpu[row]),
            mfu_fraction=float(self.mfu_fraction[row]),
            fits=bool(self.fits[row]),
            kind=self.kind,
        )

    def take(self, rows: IntColumn | BoolColumn) -> EstimateColumns:
        """The rows named by an index array or kept by a mask, in that order."""
        kept = {name: getattr(self, name)[rows] for name in ARRAY_FIELDS}
        return replace(self, **kept)


ARRAY_FIELDS: tuple[str, ...] = tuple(
    name for name in EstimateColumns.__dataclass_fields__ if name not in ("usable_bytes", "host_usable_bytes", "kind")
)


def joined(chunks: list[EstimateColumns]) -> EstimateColumns:
    """Several results of one call as one, in order."""
    if len(chunks) == 1:
        return chunks[0]
    first = chunks[0]
    return EstimateColumns(
        usable_bytes=first.usable_bytes,
        host_usable_bytes=first.host_usable_bytes,
        kind=first.kind,
        **{name: np.concatenate([getattr(chunk, name) for chunk in chunks]) for name in ARRAY_FIELDS},
    )
