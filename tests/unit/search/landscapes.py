"""Made-up machines for the search: a truth, an analytic prior that is wrong in plausible ways, and a deterministic
evaluator.

The truth is a small physics of training (efficiency of small work, recomputation, splits, bubble, collectives) with
random coefficients; the prior is the same physics with other coefficients, a wrong level and a rougher grain.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np

from planner.search import Clock, Evaluator, Priors, SearchPorts, SearchProblem, StudyKind, StudyPlace
from planner.spec import (
    Candidate,
    Measured,
    Outcome,
    OutOfMemory,
    Phase,
    RankReport,
    TrialPolicy,
    TrialRecord,
)
from planner.spec._record import record
from planner.spec.columns import (
    FULL_CHECKPOINTING,
    PRECISIONS,
    SELECTIVE_CHECKPOINTING,
    CandidateColumns,
    FloatColumn,
)
from planner.spec.kinds import Precision

GIB = 2.0**30
USABLE_BYTES = int(100 * GIB)
NUM_LAYERS = 24
TOKENS_PER_SEQUENCE = 2048


@record
class Shape:
    """Which candidates a made-up space holds."""

    world_size: int = 1
    tensor: tuple[int, ...] = (1,)
    pipeline: tuple[int, ...] = (1,)
    zero: tuple[int, ...] = (0, 1, 2, 3)
    micro: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    checkpointing: tuple[int, ...] = (0, SELECTIVE_CHECKPOINTING, FULL_CHECKPOINTING)
    global_batch_size: int = 64
    states_gib: float = 20.0  # weights, gradients and optimizer states of the whole model
    activations_gib: float = 5.0  # of one sequence, nothing checkpointed


ONE_GPU = Shape()
ONE_GPU_FINE = Shape(
    micro=(1, 2, 3, 4, 6, 8, 12, 16, 24, 48), checkpointing=(0, -2, 6, 12, 18, -1), global_batch_size=48
)
FOUR_PROCESSES = Shape(
    world_size=4, tensor=(1, 2), pipeline=(1, 2), micro=(1, 2, 4, 8), global_batch_size=32, states_gib=8.0
)
ONE_NODE = Shape(
    world_size=8,
    tensor=(1, 2, 4, 8),
    pipeline=(1, 2, 4),
    micro=(1, 2, 4, 8, 16),
    global_batch_size=128,
    states_gib=240.0,
)
EIGHT_NODES = Shape(
    world_size=64,
    tensor=(1, 2, 4, 8),
    pipeline=(1, 2, 4, 8),
    micro=(1, 2, 4, 8, 16),
    checkpointing=(0, -2, 2, 4, 6, 8, -1),
    global_batch_size=1024,
    states_gib=1300.0,
    activations_gib=24.0,
)


def columns_for(shape: Shape) -> CandidateColumns:
    """All tuples of the shape whose batch divides, pipelines only with ZeRO 0 and 1."""
    rows = [
        (tp, pp, zero, micro, code)
        for tp, pp, zero, micro, code in product(
            shape.tensor, shape.pipeline, shape.zero, shape.micro, shape.checkpointing
        )
        if shape.world_size % (tp * pp) == 0
        and shape.global_batch_size % (micro * (shape.world_size // (tp * pp))) == 0
        and (pp == 1 or zero <= 1)
        and code <= NUM_LAYERS // pp
    ]
    tp, pp, zero, micro, code = (np.array(column, dtype=np.int64) for column in zip(*rows))
    dp = shape.world_size // (tp * pp)
    ones = np.ones(len(rows), dtype=np.int64)
    return CandidateColumns(
        nodes=ones * max(shape.world_size // 8, 1),
        data_parallel_size=dp,
        tensor_parallel_size=tp,
        pipeline_parallel_size=pp,
        sequence_parallel_size=ones,
        expert_parallel_size=ones,
        virtual_pipeline_size=ones,
        tensor_sequence_parallel=np.zeros(len(rows), dtype=np.bool_),
        micro_batch_size=micro,
        gradient_accumulation_steps=shape.global_batch_size // (micro * dp),
        zero_stage=zero,
        precision=ones * PRECISIONS.index(Precision.BF16),
        checkpointed_layers=code,
        attention=ones,
        offload_optimizer=0 * ones,
        offload_param=0 * ones,
        tuning=0 * ones,
    )


@record
class Physics:
    """Coefficients, in seconds per sequence of the whole model on one GPU unless said otherwise."""

    compute: float = 0.04
    small_work: float = 0.35  # sequences per rank at which efficiency is one half
    recompute: float = 0.30
    recompute_selective: float = 0.10
    launch: float = 0.012  # per micro-batch
    tensor_comm: float = 0.012
    data_comm: float = 0.08  # per step, whole model
    gather: float = 0.02  # ZeRO-3, per micro-batch
    optimizer: float = 0.03  # per step, whole model
    states: float = 1.0
    activations: float = 1.0
    context_gib: float = 2.0

    def scaled(self, spread: float, rng: np.random.Generator) -> Physics:
        """Every coefficient off by a factor of its own."""
        factors = np.exp(spread * rng.standard_normal(len(self.__dataclass_fields__)))
        return Physics(**{n: getattr(self, n) * float(f) for n, f in zip(self.__dataclass_fields__, factors)})


def step_times(columns: CandidateColumns, shape: Shape, physics: Physics) -> FloatColumn:
    """Seconds per optimizer step."""
    tp, pp, dp = columns.tensor_parallel_size, columns.pipeline_parallel_size, columns.data_parallel_size
    micro, gas = columns.micro_batch_size, columns.gradient_accumulation_steps
    code = columns.checkpointed_layers
    recomputed = np.where(code == FULL_CHECKPOINTING, 1.0, np.clip(code, 0, None) / (NUM_LAYERS / pp))
    extra = np.where(code == SELECTIVE_CHECKPOINTING, physics.recompute_selective, physics.recompute * recomputed)
    work = micro / tp
    efficiency = work / (work + physics.small_work)
    per_micro = physics.compute * micro * (1 + extra) / (tp * pp) / efficiency + physics.launch / pp
    per_micro = per_micro + physics.tensor_comm * micro * np.log2(tp) / pp
    per_micro = per_micro + np.where(columns.zero_stage == 3, physics.gather * (dp - 1) / dp / tp, 0.0)
    shard = np.where(columns.zero_stage >= 1, dp, 1)
    per_step = physics.data_comm * (dp - 1) / dp / (tp * pp) + physics.optimizer / (tp * pp * shard)
    result: FloatColumn = per_micro * (gas + pp - 1) + per_step
    return result


def memory_gib(columns: CandidateColumns, shape: Shape, physics: Physics) -> FloatColumn:
    """GiB on the fullest rank."""
    tp, pp, dp = columns.tensor_parallel_size, columns.pipeline_parallel_size, columns.data_parallel_size
    share = np.choose(columns.zero_stage, [1.0 + 0 * dp, 0.25 + 0.75 / dp, 0.15 + 0.85 / dp, 0.02 + 0.98 / dp])
    code = columns.checkpointed_layers
    recomputed = np.where(code == FULL_CHECKPOINTING, 1.0, np.clip(code, 0, None) / (NUM_LAYERS / pp))
    kept = np.where(code == SELECTIVE_CHECKPOINTING, 0.55, 1.0 - 0.85 * np.minimum(recomputed, 1.0))
    flight = np.minimum(pp, columns.gradient_accumulation_steps)
    activations = shape.activations_gib * columns.micro_batch_size * kept * flight / pp / tp
    states = shape.states_gib * share / (tp * pp)
    result: FloatColumn = physics.states * states + physics.activations * activations + physics.context_gib
    return result


@record
class Landscape:
    """A space with its truth: `tokens_per_s` and `memory_bytes` without measurement noise."""

    columns: CandidateColumns
    priors: Priors
    tokens_per_s: FloatColumn
    memory_bytes: FloatColumn

    @property
    def best_tokens_per_s(self) -> float:
        """The fastest that keeps 5 % headroom."""
        return float(np.max(np.where(self.memory_bytes <= 0.95 * USABLE_BYTES, self.tokens_per_s, 0.0)))

    def problem(self, *, max_trials: int = 24, seed: int = 0, sampler: str = "guided", **rest: object) -> SearchProblem:
        """The search problem of this space."""
        policy = TrialPolicy(max_trials=max_trials, time_budget_s=1e9, sampler=sampler)
        problem = SearchProblem(
            columns=self.columns,
            priors=self.priors,
            policy=policy,
            seed=seed,
            usable_bytes=USABLE_BYTES,
            num_layers=NUM_LAYERS,
            machine="made-up",
        )
        return replace(problem, **rest)  # type: ignore[arg-type]

    def regret(self, row: int) -> float:
        """By what share the candidate is slower than the best."""
        return 1.0 - float(self.tokens_per_s[row]) / self.best_tokens_per_s


def make_landscape(shape: Shape, *, seed: int, prior_spread: float = 0.35) -> Landscape:
    """A truth drawn by `seed` and a prior that errs by about `prior_spread` in each coefficient."""
    rng = np.random.default_rng([seed, 7])
    columns = columns_for(shape)
    truth = Physics().scaled(0.3, rng)
    belief = replace(truth.scaled(prior_spread, rng), states=truth.states * math.exp(0.06 * rng.standard_normal()))
    belief = replace(belief, activations=truth.activations * math.exp(0.12 * rng.standard_normal()))
    tokens = shape.global_batch_size * TOKENS_PER_SEQUENCE
    quirks = _quirks(columns, rng, spread=0.03)
    true_times = step_times(columns, shape, truth) * quirks * np.exp(0.008 * rng.standard_normal(len(columns)))
    level = math.exp(0.5 * rng.standard_normal())
    prior_times = step_times(columns, shape, belief) * level * np.exp(0.02 * rng.standard_normal(len(columns)))
    true_memory = memory_gib(columns, shape, truth) * GIB * np.exp(0.02 * rng.standard_normal(len(columns)))
    prior_memory = memory_gib(columns, shape, belief) * GIB
    priors = Priors(
        tokens_per_s=tokens / prior_times,
        step_time_s=prior_times,
        memory_bytes=prior_memory,
        low_bytes=prior_memory * 0.85,
        high_bytes=prior_memory * 1.15,
        fits=prior_memory * 1.15 <= USABLE_BYTES,
    )
    return Landscape(columns=columns, priors=priors, tokens_per_s=tokens / true_times, memory_bytes=true_memory)


def _quirks(columns: CandidateColumns, rng: np.random.Generator, *, spread: float) -> FloatColumn:
    """What no model knows: some values of some axes are a few percent slower on this machine."""
    factor: FloatColumn = np.ones(len(columns))
    for name in ("zero_stage", "checkpointed_layers", "tensor_parallel_size", "pipeline_parallel_size"):
        values, codes = np.unique(getattr(columns, name), return_inverse=True)
        factor = factor * np.exp(spread * rng.standard_normal(len(values)))[codes]
    return factor


class TableEvaluator:
    """Answers from a landscape, always the same for the same candidate and noise seed, and remembers what was asked."""

    def __init__(self, landscape: Landscape, *, noise_fraction: float = 0.004, noise_seed: int = 0) -> None:
        self._landscape = landscape
        self._noise_fraction = noise_fraction
        self._noise_seed = noise_seed
        self.asked: list[tuple[int, str]] = []

    def evaluate(self, number: int, candidate: Candidate) -> Outcome:
        self.asked.append((number, candidate.key))
        row = find_row(self._landscape.columns, candidate)
        rng = np.random.default_rng([self._noise_seed, row])
        tokens_per_s = float(self._landscape.tokens_per_s[row] * math.exp(self._noise_fraction * rng.standard_normal()))
        return outcome_of(tokens_per_s, float(self._landscape.memory_bytes[row]))


def find_row(columns: CandidateColumns, candidate: Candidate) -> int:
    """The row of a candidate, found by its own fields (not by the code under test)."""
    code = candidate.activation_checkpointing
    wanted = {"none": 0, "full": FULL_CHECKPOINTING, "selective": SELECTIVE_CHECKPOINTING}.get(
        code.kind.value, code.num_layers
    )
    same = (
        (columns.tensor_parallel_size == candidate.layout.tensor_parallel_size)
        & (columns.pipeline_parallel_size == candidate.layout.pipeline_parallel_size)
        & (columns.data_parallel_size == candidate.layout.data_parallel_size)
        & (columns.zero_stage == candidate.zero_stage)
        & (columns.micro_batch_size == candidate.batch.micro_batch_size)
        & (columns.checkpointed_layers == wanted)
    )
    (row,) = np.flatnonzero(same)
    return int(row)


def outcome_of(
    tokens_per_s: float, memory_bytes: float, *, step_time_s: float = 1.0, usable_bytes: int = USABLE_BYTES
) -> Outcome:
    """What a trial of these true figures reports."""
    if memory_bytes > usable_bytes:
        return OutOfMemory(
            rank=0,
            phase=Phase.FORWARD,
            requested_bytes=int(2 * GIB),
            allocated_bytes=int(usable_bytes - GIB),
            capacity_bytes=usable_bytes,
            log_tail="CUDA out of memory",
        )
    rank = RankReport(
        rank=0,
        initialised_bytes=0,
        peak_allocated_bytes=int(memory_bytes * 0.9),
        peak_reserved_bytes=int(memory_bytes * 0.95),
        device_used_bytes=int(memory_bytes),
        host_peak_bytes=0,
        build_s=0.0,
        engine_s=0.0,
        step_times_s=(step_time_s,) * 5,
        forward_s=0.0,
        backward_s=0.0,
        optimizer_s=0.0,
        losses=(1.0,),
        sequences_per_step=1,
        skipped_steps=0,
        allocator_retries=0,
    )
    return Measured(
        step_time_s=step_time_s, step_time_spread_s=0.003 * step_time_s, tokens_per_s=tokens_per_s, ranks=(rank,)
    )


def memory_ports(evaluator: Evaluator, on_trial: Callable[[TrialRecord], None] | None = None) -> SearchPorts:
    """Ports with a study in memory and a clock that stands still."""
    return SearchPorts(
        evaluator=evaluator,
        place=StudyPlace(kind=StudyKind.MEMORY, name="test"),
        on_trial=lambda trial, best: on_trial(trial) if on_trial else None,
        clock=Clock(unix_s=lambda: 1.7e9, monotonic_s=lambda: 0.0),
    )
