"""The whole training in days and money: what the plan's step time comes to over all steps, failures included."""

from __future__ import annotations

from planner.spec._record import record
from planner.spec.kinds import Provenance


@record
class Forecast:
    """`work_s` is the steps alone, `expected_s` with checkpoints, work lost to failures and restarts. `cost` is of all
    GPUs for the expected time, in `currency`; 0: no price is known. `within_s` 0: there is no deadline."""

    steps: int
    tokens: float
    kind: Provenance  # of the step time; failures are computed always
    work_s: float
    expected_s: float
    nodes: int
    world_size: int
    price_per_gpu_hour: float
    currency: str
    price_source: str
    cost: float
    checkpoint_bytes: float
    checkpoint_write_s: float
    checkpoint_interval_s: float
    checkpoint_interval_steps: int
    between_failures_s: float  # of all nodes of the run together
    expected_failures: float
    mtbf_s: float
    mtbf_source: str
    write_source: str
    own_interval_steps: int = 0  # what the job says; 0: it saves nothing
    own_lost_fraction: float = 0.0  # share of the expected time lost with that
    within_s: float = 0.0
    due: str = ""  # the day, where the job names one

    @property
    def lost_fraction(self) -> float:
        """Share of the expected time that is not steps."""
        return 1.0 - self.work_s / self.expected_s if self.expected_s else 0.0

    @property
    def gpu_hours(self) -> float:
        return self.world_size * self.expected_s / 3600.0

    @property
    def is_in_time(self) -> bool:
        """True without a deadline, too."""
        return not self.within_s or self.expected_s <= self.within_s
