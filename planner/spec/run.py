"""How the reference trainer runs a training beyond its mathematics: what it evaluates, keeps, shows and watches.

Nothing here changes a step, so none of it is part of a job's hash.
"""

from __future__ import annotations

from planner.spec._record import record, require
from planner.spec.kinds import Phase

LOOPBACK = "127.0.0.1"


@record
class MemoryBudget:
    """In this phase a rank shall use at most this share of the usable memory; more is warned of."""

    phase: Phase
    usable_fraction: float

    def __post_init__(self) -> None:
        require(0 < self.usable_fraction <= 1, "a memory budget is a share of the usable memory")


@record
class RunSpec:
    """`eval_*`: mean loss over the first `eval_sequences` (0: all) of a held-out token file, every so many steps.

    `keep_checkpoints` 0: all. `pretrained`: folder of safetensors to start from. `metrics_port`: of local rank 0, the
    others follow; 0: no endpoint.
    """

    eval_path: str = ""
    eval_interval_steps: int = 0
    eval_sequences: int = 0
    keep_checkpoints: int = 0
    async_checkpoints: bool = False
    pretrained: str = ""
    tensorboard_dir: str = ""
    metrics_port: int = 0
    metrics_host: str = LOOPBACK
    memory_budgets: tuple[MemoryBudget, ...] = ()


@record
class RunPromise:
    """What the plan lets the run expect of its worst rank, for logs, preflight and metrics. Unknown figures are 0.

    `ideal_step_s`: model FLOPs of one step over the peak FLOP/s of all devices, so MFU = ideal_step_s / step time.
    """

    device_used_bytes: int = 0
    usable_bytes: int = 0
    step_time_s: float = 0.0
    ideal_step_s: float = 0.0
    is_measured: bool = False  # memory was seen in a real run of this configuration
