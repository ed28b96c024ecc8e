"""What a trial is asked to do and how it can end. Expected ends are values, each kept with the tail of its log."""

from __future__ import annotations

from typing import TypeAlias

from planner.spec._record import record
from planner.spec.candidate import Candidate
from planner.spec.estimate import TimeBreakdown
from planner.spec.job import TrainingSpec
from planner.spec.kinds import DeviceKind, Phase, Provenance
from planner.spec.model import ModelSpec
from planner.spec.run import RunPromise
from planner.spec.script import ScriptCall
from planner.spec.traffic import EmulationReport


@record
class TrialTask:
    """All that the runtime needs to run one candidate: the same for a trial, a validation and the reference trainer.

    `ds_config_json` is the very text of the `ds_config.json` that would ship.
    `memory_limit_bytes` caps one rank (0: none): the allocator's share on CUDA, the process's data segment on CPU.
    `hopeless_step_s`: a trial whose steps take longer is stopped early (0: never).
    `emulated_rank`: one process stands in for this rank of the layout, its peers are made up; None: all ranks run.
    """

    model: ModelSpec
    training: TrainingSpec
    candidate: Candidate
    device: DeviceKind
    ds_config_json: str
    steps: int
    warmup_steps: int = 1
    memory_limit_bytes: int = 0
    check_checkpoint: bool = False  # save and load a checkpoint once after the steps
    emulated_rank: int | None = None
    hopeless_step_s: float = 0.0
    profile_dir: str = ""  # run some more steps and write a profile of them there; "": do not
    promise: RunPromise = RunPromise()  # of the plan, for the reference trainer's log
    script: ScriptCall | None = None  # the user's own script runs instead of our builder

    @property
    def num_processes(self) -> int:
        """Processes that run the task on this machine."""
        return self.candidate.layout.world_size if self.emulated_rank is None else 1


@record
class RankReport:
    """What one rank measured. On CPU the three device figures are the process's resident memory above its start.

    The two peaks are over the optimizer steps; `device_used_bytes` is the most of the whole trial (building, steps,
    checkpoint), with the context and what libraries hold outside the allocator.
    """

    rank: int
    initialised_bytes: int  # allocated after deepspeed.initialize
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    device_used_bytes: int
    host_peak_bytes: int
    build_s: float
    engine_s: float
    step_times_s: tuple[float, ...]  # after warm-up; one optimizer step each
    forward_s: float  # per optimizer step, mean; 0 where the engine does not separate them
    backward_s: float
    optimizer_s: float
    losses: tuple[float, ...]  # mean over the global batch, warm-up steps included
    sequences_per_step: int  # really consumed by all data-parallel ranks in one optimizer step
    skipped_steps: int  # optimizer steps skipped for overflow
    allocator_retries: int
    build_peak_bytes: int = 0  # reserved (CPU: resident) at most while model and engine were built
    checkpoint_peak_bytes: int = 0  # the same while a checkpoint was saved and loaded; 0: not checked
    start_s: float = 0.0  # from the fork until the rank stood in its process group
    stopped_early: bool = False  # its steps were hopeless, and the rest of them was spared
    allocated_by_step_bytes: tuple[int, ...] = ()  # after each timed step, on GPUs
    compile_s: float = 0.0  # what torch.compile took in the warm-up steps; no part of any step's time
    emulation: EmulationReport | None = None  # of a process that stood in for one rank of a larger world


@record
class Measured:
    """The trial ran. `step_time_s` is the median over the timed steps of the slowest rank of each step.

    Of an emulated trial `ranks` are those that were emulated, and `breakdown` says what the step time was put together
    from. `time_kind` None: the time is of the same kind as all else.
    """

    step_time_s: float
    step_time_spread_s: float  # median absolute deviation x 1.4826, a robust standard deviation
    tokens_per_s: float
    ranks: tuple[RankReport, ...]
    kind: Provenance = Provenance.MEASURED
    time_kind: Provenance | None = None
    breakdown: TimeBreakdown | None = None

    @property
    def step_time_kind(self) -> Provenance:
        return self.time_kind or self.kind

    @property
    def peak_reserved_bytes(self) -> int:
        return max(rank.peak_reserved_bytes for rank in self.ranks)

    @property
    def device_used_bytes(self) -> int:
        return max(rank.device_used_bytes for rank in self.ranks)


@record
class Pruned:
    """The trial ran, but its first timed steps were already hopeless, so it was stopped. `step_time_s`: the quickest of
    them, which no full trial would have been far below; `tokens_per_s` is what that amounts to, at most.

    Its memory is that of whole steps and as good as a full trial's.
    """

    step_time_s: float
    tokens_per_s: float
    limit_s: float  # a step of the best trial so far, with a margin
    ranks: tuple[RankReport, ...]

    @property
    def peak_reserved_bytes(self) -> int:
        return max(rank.peak_reserved_bytes for rank in self.ranks)

    @property
    def device_used_bytes(self) -> int:
        return max(rank.device_used_bytes for rank in self.ranks)


@record
class OutOfMemory:
    """The device's memory ran out. Unknown figures are 0."""

    rank: int
    phase: Phase
    requested_bytes: int
    allocated_bytes: int
    capacity_bytes: int
    log_tail: str

    @property
    def excess_fraction(self) -> float:
        """By how much the request overshot the capacity, at least a little: an out-of-memory is never a near fit."""
        if self.capacity_bytes <= 0:
            return 0.05
        return max((self.allocated_bytes + self.requested_bytes) / self.capacity_bytes - 1.0, 0.01)


@record
class HostOutOfMemory:
    """The kernel, or the host's allocator, refused memory (exit by signal 9 that the kernel counted as such)."""

    rank: int
    phase: Phase
    log_tail: str


@record
class TimedOut:
    limit_s: float
    phase: Phase
    log_tail: str


@record
class Diverged:
    """A loss that is not finite, or every optimizer step skipped."""

    step: int
    losses: tuple[float, ...]
    log_tail: str


@record
class Crashed:
    """Anything else. `exit_code` is negative for a signal, as Python's subprocess has it."""

    rank: int
    phase: Phase
    exit_code: int
    message: str
    log_tail: str


Outcome: TypeAlias = Measured | Pruned | OutOfMemory | HostOutOfMemory | TimedOut | Diverged | Crashed


@record
class TrialRecord:
    """One line of `trials.jsonl`: a trial as it ended."""

    number: int
    key: str  # Candidate.key
    candidate: Candidate
    outcome: Outcome
    started_at_s: float  # Unix time
    duration_s: float
    machine: str  # fingerprint of the hardware that ran it
    log_name: str = ""  # file under logs/ of the folder of the planner that ran it
    worker: str = ""  # which planner of a shared study ran it (host and folder); "" where there is only one
    kept_from: str = ""  # of an earlier plan that it was measured for: its folder and number, as `plans/a#3`
