"""What is read out of a log, what is concluded from it, and what would help: records only.

`None` stands for what the log does not say; nothing is filled in.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from planner.diagnose.causes import Cause
from planner.spec._record import record


class EventKind(StrEnum):
    """What kind of failure a line reports."""

    DEVICE_ALLOCATOR = "device-allocator"  # the framework's caching allocator, mostly with figures
    DEVICE_ERROR = "device-error"  # the driver's bare "out of memory"
    LIBRARY_ALLOCATION = "library-allocation"  # cuBLAS, cuDNN, NCCL could not get their own buffers
    MASKED = "masked"  # an error that usually hides an out-of-memory
    NONSENSE_SIZE = "nonsense-size"  # a size no device ever had
    SINGLE_LIMIT = "single-limit"  # the runtime says that one buffer may not be this large
    PINNED_HOST = "pinned-host"
    HOST_ALLOCATOR = "host-allocator"
    SHARED_MEMORY = "shared-memory"
    KERNEL_KILL = "kernel-kill"  # the kernel's out-of-memory killer, host or cgroup
    KILLED = "killed"  # signal 9, exit 137: nobody says why
    COLLECTIVE = "collective"  # time-outs and lost peers
    OTHER_FAILURE = "other-failure"


class RunPhase(StrEnum):
    """Where in a run something happened; the names of `spec.Phase` where they mean the same."""

    UNKNOWN = "unknown"
    START = "start"  # contexts, process groups
    BUILD_MODEL = "build_model"
    BUILD_ENGINE = "build_engine"
    DATA = "data"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER_STEP = "optimizer_step"
    EVALUATION = "evaluation"
    CHECKPOINT_SAVE = "checkpoint_save"
    CHECKPOINT_LOAD = "checkpoint_load"


@record
class ProcessMemory:
    """A process on a device (or, in a kernel's table, on the host) and what it holds."""

    pid: int
    memory_bytes: int | None
    gpu: int | None = None
    name: str = ""


@record
class Figures:
    """The numbers of one message, in bytes. `unallocated`: reserved by the framework, idle. `in_use`: all memory of
    this process, context included. `limit`: what this process may have. `private_pools`: of CUDA graphs, live."""

    requested: int | None = None
    total: int | None = None
    free: int | None = None
    allocated: int | None = None
    unallocated: int | None = None
    in_use: int | None = None
    limit: int | None = None
    private_pools: int | None = None

    @property
    def reserved(self) -> int | None:
        """Live and idle memory of the framework's allocator."""
        if self.allocated is None or self.unallocated is None:
            return self.allocated
        return self.allocated + self.unallocated


@record
class Frame:
    """One line of a traceback. `code`: the source line below it, where one is printed."""

    file: str
    line: int
    function: str
    code: str = ""


@record
class MemoryEvent:
    """One failure as the log reports it. `count`: how often the same was reported (repeated tracebacks, launchers)."""

    kind: EventKind
    text: str
    backend: str = ""  # cuda, hip, xpu, npu, mps, cuda-async, host, …
    figures: Figures = Figures()
    others: tuple[ProcessMemory, ...] = ()
    rank: int | None = None
    gpu: int | None = None
    pid: int | None = None
    exit_code: int | None = None
    phase: RunPhase = RunPhase.UNKNOWN
    file: str = ""
    line: int | None = None
    function: str = ""
    frames: tuple[Frame, ...] = ()  # innermost last
    environment_variable: str = ""  # the allocator setting's name in this version's hint
    source: str = ""
    log_line: int = 0
    count: int = 1


@record
class SeriesPoint:
    """One reading of memory at one step."""

    step: float
    value_bytes: float


@record
class Series:
    """One memory counter of one rank over the run. `step` counts in the log's own unit, or samples."""

    name: str
    rank: int | None
    is_host: bool
    points: tuple[SeriesPoint, ...]
    has_steps: bool = True  # False: `step` is a place in the log


@record
class HostUse:
    """DeepSpeed's `CPU Virtual Memory` line: used bytes and the share of the node they are."""

    used_bytes: int
    used_fraction: float

    @property
    def total_bytes(self) -> int | None:
        """The host's memory, from the bytes used and their share."""
        return round(self.used_bytes / self.used_fraction) if self.used_fraction > 0 else None


@record
class RunSettings:
    """What the log says of how the run was started; 0 or "" where it does not."""

    micro_batch_size: int = 0
    gradient_accumulation_steps: int = 0
    world_size: int = 0
    zero_stage: int | None = None
    seq_len: int = 0
    num_parameters: int = 0
    nominal_bytes: int = 0  # of the device, by its label
    device_name: str = ""
    visible_devices: str = ""
    checkpoints_activations: bool = False
    offload_optimizer: bool = False
    offload_param: bool = False


class Hint(StrEnum):
    """What people, notes and log lines say about the circumstances."""

    WSL = "wsl"
    WINDOWS = "windows"
    MIG = "mig"
    CONTAINER = "container"
    RESUMES = "resumes"
    SCRATCH_FITS = "scratch-fits"
    SAVES = "saves"
    EVALUATES = "evaluates"
    GROWS = "grows"
    SMALLER_BATCH_RUNS = "smaller-batch-runs"
    COLOCATED = "colocated"
    ZOMBIE = "zombie"
    OFFLOADS = "offloads"
    PAGED_OPTIMIZER = "paged-optimizer"
    TIME_LIMIT = "time-limit"
    MULTI_RANK = "multi-rank"
    ATTENTION = "attention"
    LOADS_MODEL = "loads-model"
    DEVICE_IDLE = "device-idle"
    VARIABLE_SHAPES = "variable-shapes"
    SHARED_DEVICE = "shared-device"


@record
class HintSeen:
    """A hint and the words that gave it."""

    hint: Hint
    text: str
    from_user: bool  # said in a note, not found in the log


@record
class LogFacts:
    """All that was read. `num_lines` and `num_bytes` are of everything that was scanned."""

    events: tuple[MemoryEvent, ...] = ()
    series: tuple[Series, ...] = ()
    processes: tuple[ProcessMemory, ...] = ()  # from nvidia-smi and the like
    host_processes: tuple[ProcessMemory, ...] = ()  # from the kernel's table
    device_use: tuple[tuple[int, int], ...] = ()  # (used, total) by device, from nvidia-smi and the like
    host_use: tuple[HostUse, ...] = ()  # first and last
    hints: tuple[HintSeen, ...] = ()
    settings: RunSettings = RunSettings()
    ranks: tuple[int, ...] = ()
    num_lines: int = 0
    num_bytes: int = 0
    notes: tuple[str, ...] = ()

    def has(self, *hints: Hint) -> bool:
        """Whether any of these was seen."""
        return any(seen.hint in hints for seen in self.hints)


@record
class Verdict:
    """`confidence` in 0..1. `also`: causes that contribute. `event`: index of the one it is about, None for none."""

    cause: Cause
    confidence: float
    evidence: tuple[str, ...]
    event: int | None = None
    also: tuple[Cause, ...] = ()
    grows: str = ""  # for capacity: what fills the device, and with what it grows


@record
class KnownTensor:
    """A tensor the model makes, and what its size grows with."""

    name: str
    size_bytes: int
    grows: str
    is_quadratic: bool = False


@record
class ModelView:
    """What the cost model says of the run as configured, where plan, model or config are given. Bytes of one rank.

    `high_bytes`: what the run may need at most; `one_sequence_high_bytes`: the same with a micro-batch of 1.
    `scale`: by how much the log's live memory exceeds the computed one, 1 where it does not.
    """

    usable_bytes: int
    nominal_bytes: int
    allocated_bytes: int
    high_bytes: int
    states_bytes: int
    activations_bytes: int
    one_sequence_high_bytes: int
    host_bytes: int
    host_usable_bytes: int
    micro_batch_size: int
    world_size: int
    num_parameters: int
    tensors: tuple[KnownTensor, ...] = ()
    assumptions: tuple[str, ...] = ()


@record
class Fix:
    """One thing to do. `change`: DeepSpeed keys as they stand in its config; beside them `env`, `trainer_args` (Hugging
    Face's), `run` (model or script settings), `code` and `host` (done by hand). `frees_bytes`, `slows_fraction`,
    `fits`: None where nothing is known to compute them from; `slows_fraction` below 0 is a gain."""

    change: dict[str, Any]
    why: str
    frees_bytes: int | None = None
    slows_fraction: float | None = None
    fits: bool | None = None
    host_bytes: int | None = None  # host memory of a node afterwards
    basis: str = ""  # log | computed: where `frees_bytes` comes from
