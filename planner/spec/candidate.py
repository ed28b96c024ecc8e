"""One way to run the job, and the arithmetic that every way obeys."""

from __future__ import annotations

from planner.spec._record import record, require
from planner.spec.kinds import ActivationCheckpointing, Attention, OffloadDevice, Precision
from planner.spec.tuning import NO_TUNING, Tuning


def partition_layers(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Layers of each pipeline stage. Uneven splits are legal; the extra layers go to the stages after the first, so
    that the first stage (embedding, most micro-batches in flight) and the last (head, logits) carry the least.

    Raises ValueError when there are more stages than layers.
    """
    require(1 <= num_stages <= num_layers, f"{num_layers} layers cannot fill {num_stages} stages")
    base, extra = divmod(num_layers, num_stages)
    layers = [base] * num_stages
    for offset in range(extra):
        layers[(1 + offset) % num_stages] += 1
    return tuple(layers)


@record
class ParallelLayout:
    """Degrees of parallelism; their product is the world. `stage_layers`: decoder layers of each pipeline stage."""

    data_parallel_size: int = 1
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    stage_layers: tuple[int, ...] = ()  # () for a model that is not a stack of layers

    def __post_init__(self) -> None:
        sizes = (self.data_parallel_size, self.tensor_parallel_size, self.pipeline_parallel_size)
        require(min(sizes) >= 1, "parallel sizes are at least 1")
        require(len(self.stage_layers) in (0, self.pipeline_parallel_size), "one layer count per pipeline stage")

    @property
    def world_size(self) -> int:
        return self.data_parallel_size * self.tensor_parallel_size * self.pipeline_parallel_size


@record
class BatchSplit:
    """micro_batch_size x gradient_accumulation_steps x data_parallel_size = global_batch_size, always."""

    micro_batch_size: int
    gradient_accumulation_steps: int
    data_parallel_size: int

    @property
    def global_batch_size(self) -> int:
        return self.micro_batch_size * self.gradient_accumulation_steps * self.data_parallel_size


# How a setting of `Tuning` is called in a candidate's key.
_TUNING_KEYS = {
    "torch_compile": "compile",
    "cross_entropy": "loss",
    "optimizer_kernel": "adam",
    "allocator": "alloc",
    "overlap_comm": "overlap",
    "grad_accum_dtype": "accum",
    "zero_hpz_partition_size": "hpz",
    "reduce_bucket_size": "rb",
    "allgather_bucket_size": "gb",
    "stage3_prefetch_bucket_size": "pb",
    "stage3_max_live_parameters": "ml",
    "stage3_param_persistence_threshold": "pt",
}


@record
class Candidate:
    """One legal way to run the job. Every field is written by `emit` or named there as not written, with the reason."""

    layout: ParallelLayout
    batch: BatchSplit
    zero_stage: int
    precision: Precision
    activation_checkpointing: ActivationCheckpointing
    attention: Attention = Attention.SDPA
    offload_optimizer: OffloadDevice = OffloadDevice.NONE
    offload_param: OffloadDevice = OffloadDevice.NONE
    tuning: Tuning = NO_TUNING

    def __post_init__(self) -> None:
        same = self.batch.data_parallel_size == self.layout.data_parallel_size
        require(same, "batch and layout name one data-parallel size")
        require(0 <= self.zero_stage <= 3, "ZeRO has stages 0 to 3")

    @property
    def key(self) -> str:
        """A short stable name, equal exactly for equal candidates of one job: `tp2-pp1-dp4-z1-mb2-ga8-bf16-full`."""
        parts = [
            f"tp{self.layout.tensor_parallel_size}",
            f"pp{self.layout.pipeline_parallel_size}",
            f"dp{self.layout.data_parallel_size}",
            f"z{self.zero_stage}",
            f"mb{self.batch.micro_batch_size}",
            f"ga{self.batch.gradient_accumulation_steps}",
            str(self.precision),
            str(self.activation_checkpointing).replace(":", ""),
        ]
        if self.attention is not Attention.SDPA:
            parts.append(str(self.attention))
        if self.offload_optimizer is not OffloadDevice.NONE:
            parts.append(f"oo-{self.offload_optimizer}")
        if self.offload_param is not OffloadDevice.NONE:
            parts.append(f"op-{self.offload_param}")
        parts += [f"{_TUNING_KEYS[name]}-{value}" for name, value in self.tuning.changes]
        return "-".join(parts)
