"""What the analytic model says of a candidate."""

from __future__ import annotations

from planner.spec._record import record
from planner.spec.kinds import Provenance


@record
class MemoryBreakdown:
    """Bytes on the worst rank at its peak phase; the fields sum to the device memory in use."""

    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    buffers_bytes: int
    allocator_slack_bytes: int
    communication_bytes: int
    context_bytes: int


@record
class MemoryEstimate:
    """`low_bytes`..`high_bytes` bounds what the run cannot do without; `fits` compares the upper end."""

    allocated_bytes: int
    reserved_bytes: int
    device_used_bytes: int
    usable_bytes: int
    worst_stage: int
    breakdown: MemoryBreakdown
    low_bytes: int
    high_bytes: int
    host_bytes: int
    host_usable_bytes: int
    disk_bytes: int


@record
class TimeBreakdown:
    """Seconds of one optimizer step; the fields sum to the step time. Communication counts where it shows."""

    compute_s: float
    recompute_s: float
    tensor_parallel_s: float
    data_parallel_s: float
    pipeline_s: float  # sending activations between stages
    bubble_s: float
    optimizer_s: float
    offload_s: float
    host_s: float  # launch overhead that the device waits for


@record
class Estimate:
    memory: MemoryEstimate
    time: TimeBreakdown
    step_time_s: float
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    mfu_fraction: float
    fits: bool
    kind: Provenance


@record
class StageProfile:
    """One pipeline stage of a candidate. Seconds are of one micro-batch, collectives between tensor-parallel ranks and
    recomputation (in `backward_s`) included. `moments`: (name, what lives then); `peak` is the largest of them. The
    slack of a moment is 0: cached blocks count at the peak. `device`: the GPU it stands on, where stages stand on
    several kinds of them; "" elsewhere."""

    index: int
    layers: int
    in_flight: float
    forward_s: float
    backward_s: float
    peak: MemoryBreakdown
    moments: tuple[tuple[str, MemoryBreakdown], ...]
    device: str = ""
