"""Settings of one layout that leave its ranks, batch and states where they are: compilation, kernels, the loss's form,
buckets, the allocator.

Owns their values and how all of them together are one whole number: a space of 10^5 candidates carries a single column
for them, however many there are. What each costs, needs and is called in DeepSpeed is for `cost`, `rules` and `emit`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from planner.spec._record import record, require
from planner.spec.kinds import Precision


class TorchCompile(StrEnum):
    """What `torch.compile` compiles: nothing, each decoder layer by itself, or the whole model."""

    NONE = "none"
    LAYER = "layer"
    WHOLE = "whole"


class CrossEntropy(StrEnum):
    """How head and loss run: on the logits of all tokens at once, or of some tokens after others, so that the logits
    never exist whole."""

    WHOLE = "whole"
    CHUNKED = "chunked"


class OptimizerKernel(StrEnum):
    """Whose code makes the update. `torch`: torch's optimizer, in one kernel (`fused`) on a GPU; `unfused`: the same
    tensor by tensor; `deepspeed`: DeepSpeed's FusedAdam, compiled at its first use."""

    TORCH = "torch"
    UNFUSED = "unfused"
    DEEPSPEED = "deepspeed"


class Allocator(StrEnum):
    """How torch's CUDA allocator grows its cache."""

    DEFAULT = "default"
    EXPANDABLE_SEGMENTS = "expandable_segments"


# What torch reads when CUDA starts; the second is the name of releases before 2.9.
ALLOCATOR_ENVIRONMENT: tuple[tuple[str, str], ...] = (
    ("PYTORCH_ALLOC_CONF", "expandable_segments:True"),
    ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),
)


class Overlap(StrEnum):
    """ZeRO's `overlap_comm`. `by-stage`: on at stage 3, off below."""

    BY_STAGE = "by-stage"
    ON = "on"
    OFF = "off"


class AccumulationType(StrEnum):
    """The type in which gradients accumulate. `same`: that of the weights."""

    SAME = "same"
    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"

    @property
    def precision(self) -> Precision | None:
        """None: that of the weights."""
        return None if self is AccumulationType.SAME else Precision(self.value)


# The chunked loss: logits that exist at once at most, on one rank (fp32: 256 MiB), and the fewest tokens of a chunk, so
# that the products stay large enough to fill a device.
CHUNK_LOGITS = 2**26
SMALLEST_CHUNK_TOKENS = 256


def chunk_of(num_tokens: int, *, local_vocab_size: int) -> int:
    """Tokens of one chunk of the chunked loss."""
    return max(1, min(num_tokens, max(SMALLEST_CHUNK_TOKENS, CHUNK_LOGITS // max(local_vocab_size, 1))))


# What a bucket or a limit in elements may be: 1, 2 and 5 times powers of ten. 0: what `emit` writes unasked. Finer
# steps change nothing that a trial could measure.
ELEMENT_STEPS: tuple[int, ...] = (0, *(step * 10**power for power in range(4, 10) for step in (1, 2, 5)))

# Of ZeRO++'s secondary partition (hpZ): ranks that share one copy of the parameters for the backward pass. 1: none.
PARTITION_SIZES: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)


@record
class Tuning:
    """One choice of each setting; the defaults are what runs when nothing is asked for. `…_elements` 0: the value that
    `emit` writes by the model's size."""

    torch_compile: TorchCompile = TorchCompile.NONE
    cross_entropy: CrossEntropy = CrossEntropy.WHOLE
    optimizer_kernel: OptimizerKernel = OptimizerKernel.TORCH
    allocator: Allocator = Allocator.DEFAULT
    overlap_comm: Overlap = Overlap.BY_STAGE
    grad_accum_dtype: AccumulationType = AccumulationType.SAME
    zero_hpz_partition_size: int = 1
    reduce_bucket_size: int = 0
    allgather_bucket_size: int = 0
    stage3_prefetch_bucket_size: int = 0
    stage3_max_live_parameters: int = 0
    stage3_param_persistence_threshold: int = 0

    def __post_init__(self) -> None:
        for name, values in TUNING_VALUES.items():
            require(getattr(self, name) in values, f"{name} is one of {', '.join(map(str, values))}")

    @property
    def changes(self) -> tuple[tuple[str, Any], ...]:
        """(setting, value) of what is not the default, in the record's order."""
        pairs = ((name, getattr(self, name)) for name in TUNING_VALUES)
        return tuple((name, value) for name, value in pairs if value != TUNING_VALUES[name][0])


# Every value of every setting, the default first. A setting's code is its value's place here.
TUNING_VALUES: dict[str, tuple[Any, ...]] = {
    "torch_compile": tuple(TorchCompile),
    "cross_entropy": tuple(CrossEntropy),
    "optimizer_kernel": tuple(OptimizerKernel),
    "allocator": tuple(Allocator),
    "overlap_comm": tuple(Overlap),
    "grad_accum_dtype": tuple(AccumulationType),
    "zero_hpz_partition_size": PARTITION_SIZES,
    "reduce_bucket_size": ELEMENT_STEPS,
    "allgather_bucket_size": ELEMENT_STEPS,
    "stage3_prefetch_bucket_size": ELEMENT_STEPS,
    "stage3_max_live_parameters": ELEMENT_STEPS,
    "stage3_param_persistence_threshold": ELEMENT_STEPS,
}
_BITS = 5  # of each setting's code: no setting has more than 32 values, and twelve settings take 60 of 63 bits
SHIFTS = {name: place * _BITS for place, name in enumerate(TUNING_VALUES)}
MASK = (1 << _BITS) - 1

NO_TUNING = Tuning()


def tuning_code(tuning: Tuning) -> int:
    """The number that stands for a tuning in the `tuning` column; 0 for the defaults."""
    return sum(TUNING_VALUES[name].index(value) << SHIFTS[name] for name, value in tuning.changes)


def tuning_from_code(code: int) -> Tuning:
    """The inverse of `tuning_code`."""
    return Tuning(**{name: values[(code >> SHIFTS[name]) & MASK] for name, values in TUNING_VALUES.items()})
