"""Whether a trial's memory grew from step to step. Pure.

Its steps are few, so this is a suspicion: the long view is the trainer's (`runtime.growth`) and a log's
(`diagnose.growth`).
"""

from __future__ import annotations

from itertools import pairwise

from planner.spec import Measured

MIN_STEPS = 4
MIN_BYTES_PER_STEP = 1 << 20  # smaller growth is counters and caches filling up
MIN_FRACTION_PER_STEP = 1e-4  # of what is allocated: smaller growth fills no device in a day's training


def suspected_leak_bytes_per_step(measured: Measured) -> float:
    """Bytes by which what stays allocated grows per step on the worst rank; 0 where it does not grow in every step.

    The mean over all timed steps; each of them must add, so that a cache that fills once is no leak.
    """
    return max((_slope(rank.allocated_by_step_bytes) for rank in measured.ranks), default=0.0)


def _slope(held: tuple[int, ...]) -> float:
    if len(held) < MIN_STEPS:
        return 0.0
    added = [after - before for before, after in pairwise(held)]
    slope = sum(added) / len(added)
    large = slope >= max(MIN_BYTES_PER_STEP, MIN_FRACTION_PER_STEP * held[-1])
    return slope if large and min(added) > 0 else 0.0
