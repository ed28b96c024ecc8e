"""The health of a training on one rank, step by step: memory against plan and limit, budgets, growth, fragmentation.

Owns putting the meter's figures beside the plan's, and the warnings. Leaves measuring to `measure`, showing to
`metrics` and the trainer's log.
"""

from __future__ import annotations

from planner.runtime.growth import Growth, GrowthWatch
from planner.runtime.measure import Meter, SectionPeaks
from planner.spec import Phase, TrialTask
from planner.spec._record import record

MIB = 1 << 20
FRAGMENTED = 0.25  # share of the reserved memory in unusable split blocks that is worth a word
OVER_PLAN = 0.05  # of the promise: less is the spread of measurements, and not worth a word
_WATCHED_PHASES = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER_STEP, Phase.TRAIN_BATCH)


@record
class PhasePeak:
    """`budget_bytes` 0: the job sets none."""

    phase: Phase
    peak_bytes: int
    budget_bytes: int


@record
class StepHealth:
    """One step of one rank; see `metrics` for what each figure means."""

    allocated_bytes: int
    reserved_bytes: int
    used_bytes: int
    free_bytes: int
    limit_bytes: int
    fragmentation_ratio: float
    plan_distance_bytes: int
    limit_distance_bytes: int
    step_seconds: float
    tokens_per_s: float
    mfu_ratio: float
    allocator_retries: int
    growth: Growth | None
    phases: tuple[PhasePeak, ...]


class HealthWatch:
    """Follows one rank. `on_phase` is the session's; phases are measured only where the job sets budgets for them."""

    def __init__(self, task: TrialTask, meter: Meter) -> None:
        self._promise = task.promise
        self._meter = meter
        self._limit_bytes = task.memory_limit_bytes or task.promise.usable_bytes
        self._budgets = {b.phase: b.usable_fraction for b in task.training.run.memory_budgets}
        self._growth = GrowthWatch(self._limit_bytes or meter.now().limit_bytes)
        self.phase = Phase.START
        self._peaks: dict[Phase, int] = {}
        self._warned: set[str] = set()

    def on_phase(self, phase: Phase) -> None:
        """The rank enters a phase."""
        if self._budgets:
            self._end_phase()
        self.phase = phase

    def _end_phase(self) -> None:
        peak = self._meter.phase_peak_bytes()
        self._peaks[self.phase] = max(self._peaks.get(self.phase, 0), peak)

    def step_done(self, *, seconds: float, tokens: int) -> tuple[StepHealth, SectionPeaks]:
        """One step has ended: its figures, and its peaks as the report keeps them."""
        if self._budgets:
            self._end_phase()
        section = self._meter.end_section()
        now = self._meter.now()
        limit = self._limit_bytes or now.limit_bytes
        promised, ideal_s = self._promise.device_used_bytes, self._promise.ideal_step_s
        health = StepHealth(
            allocated_bytes=now.allocated_bytes,
            reserved_bytes=now.reserved_bytes,
            used_bytes=section.used_bytes,
            free_bytes=now.free_bytes,
            limit_bytes=limit,
            fragmentation_ratio=now.unusable_bytes / now.reserved_bytes if now.reserved_bytes else 0.0,
            plan_distance_bytes=promised - section.used_bytes if promised else 0,
            limit_distance_bytes=limit - section.used_bytes,
            step_seconds=seconds,
            tokens_per_s=tokens / seconds,
            mfu_ratio=ideal_s / seconds,
            allocator_retries=self._meter.allocator_retries(),
            growth=self._growth.step(now.allocated_bytes),
            phases=tuple(self._phase_peak(phase, limit) for phase in _WATCHED_PHASES if phase in self._peaks),
        )
        self._peaks = {}
        return health, section

    def _phase_peak(self, phase: Phase, limit: int) -> PhasePeak:
        return PhasePeak(
            phase=phase, peak_bytes=self._peaks[phase], budget_bytes=int(self._budgets.get(phase, 0.0) * limit)
        )

    def warnings(self, health: StepHealth) -> tuple[str, ...]:
        """What is worth a word, each kind once a run."""
        found: dict[str, str] = {}
        for phase in health.phases:
            if phase.budget_bytes and phase.peak_bytes > phase.budget_bytes:
                found[f"budget {phase.phase}"] = (
                    f"{phase.phase} took {phase.peak_bytes / MIB:,.0f} MiB, over its budget of "
                    f"{phase.budget_bytes / MIB:,.0f} MiB"
                )
        if health.growth is not None:
            left = f": the limit comes in about {health.growth.steps_left} steps" if health.growth.steps_left else ""
            found["growth"] = (
                f"memory grows by {health.growth.slope_bytes / MIB:.2f} MiB a step{left}; this is a leak, which a "
                "smaller micro-batch does not stop"
            )
        if health.fragmentation_ratio > FRAGMENTED:
            found["fragmentation"] = (
                f"{health.fragmentation_ratio:.0%} of the reserved memory lies in split blocks that no request fits; "
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True avoids that"
            )
        if health.plan_distance_bytes < -OVER_PLAN * self._promise.device_used_bytes:
            found["plan"] = (
                f"the step used {health.used_bytes / MIB:,.0f} MiB, {-health.plan_distance_bytes / MIB:,.0f} MiB more "
                "than the plan promised"
            )
        new = [text for kind, text in found.items() if kind not in self._warned]
        self._warned |= set(found)
        return tuple(f"warning: {text}" for text in new)
