"""The figure that the objective maximises, of one trial or of many candidates, and which trials may win at all."""

from __future__ import annotations

import math

import numpy as np

from planner.cost import Target
from planner.spec.columns import CandidateColumns, FloatColumn
from planner.spec.kinds import Objective
from planner.spec.trial import Measured, Pruned

# For fewest_gpus: one GPU fewer outweighs any speed. e^50 is more than any two speeds differ by.
_PER_GPU = 50.0
# For a deadline: a miss of 1 % outweighs 50 % of cost, so that nothing late wins while anything is in time.
_PER_LATENESS = 50.0
_MEDIAN_OVER_MEAN = 1.2533  # standard error of a median over that of a mean, for normal samples: sqrt(pi / 2)
# Two runs of one candidate differ by more than the steps within a run do; on the H200 rows repeated settings agree
# within about half a percent (tests/data of the cost model: steps of one run spread by 0.1 to 1 %).
RUN_TO_RUN_FRACTION = 0.003


def world_sizes(columns: CandidateColumns) -> FloatColumn:
    """GPUs that each candidate uses."""
    sizes = columns.data_parallel_size * columns.tensor_parallel_size * columns.pipeline_parallel_size
    return (sizes * columns.sequence_parallel_size).astype(np.float64)


def utilities(
    log_tokens_per_s: FloatColumn, worlds: FloatColumn, objective: Objective, *, target: Target | None = None
) -> FloatColumn:
    """The objective on a log scale: a difference of 0.01 is 1 % of speed (or of speed per GPU for `cost`).

    `cost` is tokens per dollar: all GPUs of a job have one price, so it is speed per GPU. `fewest_gpus` puts the number
    of GPUs first and speed second. `deadline` is `cost` among what is done in time, and by how much it is late first
    for the rest; it needs the `target`.
    """
    if objective is Objective.COST:
        return log_tokens_per_s - np.log(worlds)
    if objective is Objective.DEADLINE:
        late = np.minimum(_required(target).slack(log_tokens_per_s, worlds), 0.0)
        return log_tokens_per_s - np.log(worlds) + _PER_LATENESS * late - 1000.0 * (late < 0)
    if objective is Objective.FEWEST_GPUS:
        return log_tokens_per_s - _PER_GPU * worlds
    return log_tokens_per_s


def _required(target: Target | None) -> Target:
    if target is None:
        raise TypeError("the objective `deadline` is judged against a target")
    return target


def utility(measured: Measured, world_size: int, objective: Objective, *, target: Target | None = None) -> float:
    """`utilities` of one trial; -inf when it moved no tokens."""
    if not measured.tokens_per_s > 0:
        return -math.inf
    speed, world = np.array([math.log(measured.tokens_per_s)]), np.array([float(world_size)])
    return float(utilities(speed, world, objective, target=target)[0])


def study_value(measured: Measured, world_size: int, objective: Objective, *, target: Target | None = None) -> float:
    """What Optuna is told to maximise, in figures a person can read: tokens/s, tokens/s per GPU, or for `fewest_gpus`
    a value between 1/(n+1) and 1/n for n GPUs, higher when faster; for `deadline` tokens/s per GPU of what is in time,
    and of what is late the share of the work done by then, below 1. 0 is the worst of each."""
    speed = max(measured.tokens_per_s, 0.0)
    if objective is Objective.DEADLINE and speed > 0:
        slack = float(_required(target).slack(np.array([math.log(speed)]), np.array([float(world_size)]))[0])
        return math.exp(slack) if slack < 0 else 1.0 + speed / world_size
    if objective is Objective.COST:
        return speed / world_size
    if objective is Objective.FEWEST_GPUS:
        return 1.0 / (world_size + 1.0 / (1.0 + speed))
    return speed


def memory_bytes(measured: Measured | Pruned) -> int:
    """Device memory the trial showed. `device_used` is read at the end, and blocks given back under pressure are
    missing from it, so the allocator's own peak counts too."""
    return max(measured.device_used_bytes, measured.peak_reserved_bytes)


def standard_error_fraction(measured: Measured) -> float:
    """Standard error of the step time relative to it: the spread within the run by the median of n steps, and what
    differs from run to run."""
    num_steps = max((len(rank.step_times_s) for rank in measured.ranks), default=1)
    if measured.step_time_s <= 0:
        return 1.0
    within = _MEDIAN_OVER_MEAN * measured.step_time_spread_s / measured.step_time_s / math.sqrt(max(num_steps, 1))
    return min(math.hypot(within, RUN_TO_RUN_FRACTION), 1.0)
