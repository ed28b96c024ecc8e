"""The causes a failed run can have: one table, with what decides each. `planner list causes` prints it.

Owns names and meanings. The arithmetic behind "decided by" is in the rules (`rules_device`, `rules_host`).
"""

from __future__ import annotations

from enum import StrEnum

from planner.spec._record import record


class Cause(StrEnum):
    """The words of `diagnose --json`; `unknown-not-capacity` is an answer too."""

    CAPACITY = "capacity"
    BATCH_TOO_LARGE = "batch-too-large"
    FRAGMENTATION = "fragmentation"
    OTHER_PROCESS = "other-process"
    LEAK = "leak"
    CHECKPOINT_SAVE_SPIKE = "checkpoint-save-spike"
    RESUME_SPIKE = "resume-spike"
    HOST_RAM = "host-ram"
    PINNED_HOST_MEMORY = "pinned-host-memory"
    NOMINAL_VS_USABLE = "nominal-vs-usable"
    PER_PROCESS_LIMIT = "per-process-limit"
    SINGLE_ALLOCATION_LIMIT = "single-allocation-limit"
    EVAL_ACCUMULATION = "eval-accumulation"
    RANK_PLACEMENT = "rank-placement"
    SHM_LIMIT = "shm-limit"
    NOT_OOM = "not-oom"
    UNKNOWN_NOT_CAPACITY = "unknown-not-capacity"


@record
class CauseEntry:
    """One row of the table: what it means, and what in a log decides for it."""

    cause: Cause
    meaning: str
    decided_by: str


CAUSES: tuple[CauseEntry, ...] = (
    CauseEntry(
        cause=Cause.CAPACITY,
        meaning="the device is really full of this job's own tensors: states, activations, or one tensor too large",
        decided_by="live tensors and the request exceed the device, and nothing else explains the shortage",
    ),
    CauseEntry(
        cause=Cause.BATCH_TOO_LARGE,
        meaning="activations of the micro-batch fill the device; the model itself fits",
        decided_by="an activation-sized request in forward or backward, a smaller batch that ran, or the priced model",
    ),
    CauseEntry(
        cause=Cause.FRAGMENTATION,
        meaning="enough memory is idle in the allocator's cache, but not in one piece",
        decided_by="reserved - allocated is a large share of the device and, with what is free, covers the request",
    ),
    CauseEntry(
        cause=Cause.OTHER_PROCESS,
        meaning="somebody else's memory on the device: another job, a zombie, a colocated inference engine",
        decided_by="total - free - this process's memory leaves more than a context explains, and it "
        "covers the request",
    ),
    CauseEntry(
        cause=Cause.LEAK,
        meaning="memory grows from step to step although shapes stay the same",
        decided_by="a steady slope of used memory over the steps in the log",
    ),
    CauseEntry(
        cause=Cause.CHECKPOINT_SAVE_SPIKE,
        meaning="training fits, gathering the state for a checkpoint does not",
        decided_by="the traceback or the last log lines are in saving a checkpoint",
    ),
    CauseEntry(
        cause=Cause.RESUME_SPIKE,
        meaning="training from scratch fits, the loaded checkpoint beside the live state does not",
        decided_by="the traceback or the last log lines are in loading a checkpoint to resume",
    ),
    CauseEntry(
        cause=Cause.HOST_RAM,
        meaning="the node's (or container's) main memory ran out and a process was killed or refused",
        decided_by="signal 9, the kernel's or a cgroup's killer, a refused allocation on the CPU",
    ),
    CauseEntry(
        cause=Cause.PINNED_HOST_MEMORY,
        meaning="page-locked host memory ran out; reported as a CUDA error although the device has room",
        decided_by="the failing call pins or maps host memory",
    ),
    CauseEntry(
        cause=Cause.NOMINAL_VS_USABLE,
        meaning="the plan counted on the label; the runtime exposes less",
        decided_by="the total in the message is well below the device's nominal memory, which would have sufficed",
    ),
    CauseEntry(
        cause=Cause.PER_PROCESS_LIMIT,
        meaning="a limit on this process refuses, not the device",
        decided_by="an allowed maximum below the total in the message, reached while the device has room",
    ),
    CauseEntry(
        cause=Cause.SINGLE_ALLOCATION_LIMIT,
        meaning="one allocation may not be this large, although the memory is there",
        decided_by="a request of gigabytes refused with more than that free",
    ),
    CauseEntry(
        cause=Cause.EVAL_ACCUMULATION,
        meaning="evaluation keeps outputs of all batches on the device",
        decided_by="the traceback or the last log lines are in evaluation or prediction",
    ),
    CauseEntry(
        cause=Cause.RANK_PLACEMENT,
        meaning="several ranks of this job use one device",
        decided_by="the same process ids on several devices, or several ranks failing on one",
    ),
    CauseEntry(
        cause=Cause.SHM_LIMIT,
        meaning="shared memory (/dev/shm) is full: data loader workers or NCCL could not exchange data",
        decided_by="bus errors, torch's shared-memory messages, NCCL's segment errors",
    ),
    CauseEntry(
        cause=Cause.NOT_OOM,
        meaning="the run did not fail for want of memory",
        decided_by="another failure came first, or no memory failure is in the log",
    ),
    CauseEntry(
        cause=Cause.UNKNOWN_NOT_CAPACITY,
        meaning="the counters contradict a shortage, or say too little to name a cause",
        decided_by="much more is free than was asked for, or nothing in the log can be read",
    ),
)
