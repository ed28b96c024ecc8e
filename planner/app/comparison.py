"""What a run showed beside what its plan promised, and how far the two may differ. Pure."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median

from planner.app.requests import VerifyRow
from planner.spec import DeviceKind, JobSpec, Plan, Precision, Promise, Provenance
from planner.spec.trainer import TrainerReport

# Of a promise that was measured. A GPU's steps repeat to a few percent. Processes share a CPU with whatever else runs:
# on two busy cores the steps of one run differ by a factor of two to three. So there the fastest step is compared (what
# others do only slows steps down), in proportion to how many processes want each core, and a moment's wait is forgiven.
# A tolerance beyond the cap would promise nothing: what only such a one could excuse is not comparable instead.
TIME_TOLERANCE = {DeviceKind.CUDA: 0.10, DeviceKind.CPU: 1.0}
MAX_TIME_TOLERANCE = 3.0
CROWDED = (
    2.0  # processes for each core: twice what the trainer's own ranks want, so that others take every second slice
)
WAITING_S = {DeviceKind.CUDA: 0.0, DeviceKind.CPU: 0.05}
MEMORY_TOLERANCE = {DeviceKind.CUDA: 0.05, DeviceKind.CPU: 0.25}
COMPUTED_TOLERANCE = 0.50  # of a promise that was only computed: the model's own error, see planner/cost/README.md
# On top of the share: on CPU memory is that of a whole process, whose arenas and stacks come and go by some MiB.
PROCESS_BYTES = {DeviceKind.CUDA: 0, DeviceKind.CPU: 32 << 20}
LOSS_TOLERANCE = {Precision.FP32: 1e-3, Precision.BF16: 2e-2, Precision.FP16: 2e-2, Precision.FP8: 5e-2}


def compare(plan: Plan, job: JobSpec, report: TrainerReport, *, load_per_core: float) -> tuple[VerifyRow, ...]:
    """Each promised figure beside what was seen. More time or memory than promised fails; less does not. A step that
    took too long on a CPU that others crowded is not comparable: neither passed nor broken.

    `load_per_core`: processes that wanted to run while the trainer did, for each core of the machine.
    """
    promise, device = plan.promise, job.cluster.gpu.device
    steps_s = [max(times) for times in zip(*(rank.step_times_s for rank in report.ranks))]
    step_time_s = median(steps_s) if device is DeviceKind.CUDA else min(steps_s)
    used_bytes = max(max(rank.device_used_bytes, rank.peak_reserved_bytes) for rank in report.ranks)
    crowding = max(1.0, load_per_core) if device is DeviceKind.CPU else 1.0
    time_tolerance, memory_tolerance = _tolerances(promise, device, crowding=crowding)
    sequences = report.ranks[0].sequences_per_step
    losses = zip(promise.first_losses, report.losses)
    loss_tolerance = LOSS_TOLERANCE[plan.candidate.precision]
    return (
        _row("sequences_per_step", job.training.global_batch_size, sequences, 0.0),
        _time_row(promise.step_time_s, step_time_s, time_tolerance, crowding=crowding),
        _row("device_memory_bytes", promise.device_used_bytes, used_bytes, memory_tolerance, only_above=True),
        *(_row(f"loss_of_step_{step}", *pair, loss_tolerance) for step, pair in enumerate(losses, start=1)),
    )


def _tolerances(promise: Promise, device: DeviceKind, *, crowding: float) -> tuple[float, float]:
    """How much longer than promised a step may take, and how much more memory it may use, as shares."""
    time = TIME_TOLERANCE[device] if promise.step_time_kind is Provenance.MEASURED else COMPUTED_TOLERANCE
    memory = MEMORY_TOLERANCE[device] if promise.memory_kind is Provenance.MEASURED else COMPUTED_TOLERANCE
    time = (1.0 + time) * crowding - 1.0 + WAITING_S[device] / promise.step_time_s
    return time, memory + PROCESS_BYTES[device] / promise.device_used_bytes


def _time_row(promised_s: float, seen_s: float, tolerance: float, *, crowding: float) -> VerifyRow:
    """`tolerance`: what the machine's load and a moment's wait would have to be given, however much."""
    row = _row("step_time_s", promised_s, seen_s, min(tolerance, MAX_TIME_TOLERANCE), only_above=True)
    if row.passed or not math.isfinite(seen_s):
        return row
    if crowding > CROWDED:
        return replace(row, not_comparable=f"{crowding:.1f} processes wanted each core")
    if seen_s - promised_s <= tolerance * promised_s:
        return replace(row, not_comparable="the step is shorter than a moment's wait for a core")
    return row


def _row(name: str, promised: float, seen: float, tolerance: float, *, only_above: bool = False) -> VerifyRow:
    off = seen - promised if only_above else abs(seen - promised)
    passed = math.isfinite(seen) and off <= tolerance * abs(promised)
    return VerifyRow(name=name, promised=float(promised), seen=float(seen), tolerance_fraction=tolerance, passed=passed)
