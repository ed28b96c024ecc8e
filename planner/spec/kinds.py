"""The closed vocabularies: every word that is one of a few."""

from __future__ import annotations

from enum import StrEnum

from planner.spec._record import record, require


class Precision(StrEnum):
    """The type of the forward and backward pass."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"

    @property
    def bytes_per_element(self) -> int:
        """Bytes of one weight or activation element as the runtime stores it (fp8 runs keep bf16 weights)."""
        return 4 if self is Precision.FP32 else 2


class Attention(StrEnum):
    """The attention kernel; `eager` keeps the score matrix, the others do not."""

    EAGER = "eager"
    SDPA = "sdpa"
    FLASH = "flash"


class OptimizerName(StrEnum):
    ADAMW = "adamw"
    ADAM8BIT = "adam8bit"
    SGD = "sgd"
    LION = "lion"
    MUON = "muon"


class OffloadDevice(StrEnum):
    NONE = "none"
    CPU = "cpu"
    NVME = "nvme"


class Runtime(StrEnum):
    """Whose runtime an estimate is about; only DeepSpeed is planned, emitted and run."""

    DEEPSPEED = "deepspeed"
    FSDP = "fsdp"
    MEGATRON = "megatron"


class Provenance(StrEnum):
    """Where a number comes from, strongest first."""

    MEASURED = "measured"
    EMULATED = "emulated"
    FITTED = "fitted"
    COMPUTED = "computed"


def weakest(*kinds: Provenance) -> Provenance:
    """The provenance of a number made from others: that of its weakest ingredient."""
    order = list(Provenance)
    return max(kinds, key=order.index)


class Objective(StrEnum):
    THROUGHPUT = "throughput"
    COST = "cost"
    FEWEST_GPUS = "fewest_gpus"
    DEADLINE = "deadline"  # the cheapest that is done in time


class TrialMode(StrEnum):
    AUTO = "auto"
    REAL = "real"
    EMULATED = "emulated"
    NONE = "none"


class Launcher(StrEnum):
    TORCHRUN = "torchrun"
    DEEPSPEED = "deepspeed"
    SLURM = "slurm"
    SRUN = "srun"  # Slurm too, one task a rank and no agent between
    KUBERNETES = "kubernetes"


class ScriptKind(StrEnum):
    """Whose loop the user's own training script runs: decides which settings of the config the script brings itself."""

    DEEPSPEED = "deepspeed"
    HUGGINGFACE = "huggingface"  # transformers' Trainer
    ACCELERATE = "accelerate"  # a loop of the user's own on accelerate


class DeviceKind(StrEnum):
    CUDA = "cuda"
    CPU = "cpu"


class ModelFamily(StrEnum):
    """What a model does with a sequence; decides which axes apply."""

    DECODER = "decoder"
    ENCODER = "encoder"
    ENCODER_DECODER = "encoder-decoder"
    VISION = "vision"
    MODULE = "module"  # an arbitrary nn.Module from `factory:`


class Phase(StrEnum):
    """Where in a trial something happened, in order."""

    START = "start"
    BUILD_MODEL = "build_model"
    BUILD_ENGINE = "build_engine"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER_STEP = "optimizer_step"
    TRAIN_BATCH = "train_batch"  # the pipeline engine does forward, backward and step in one call
    CHECKPOINT_SAVE = "checkpoint_save"
    CHECKPOINT_LOAD = "checkpoint_load"
    FINISH = "finish"


class CheckpointingKind(StrEnum):
    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"
    LAYERS = "layers"


@record
class ActivationCheckpointing:
    """What of the forward pass is kept for the backward pass.

    `selective`: torch's per-operator policy (matrix products and attention outputs kept, the rest recomputed).
    `layers`: the first `num_layers` layers of each pipeline stage fully, the others not at all.
    """

    kind: CheckpointingKind = CheckpointingKind.NONE
    num_layers: int = 0

    def __post_init__(self) -> None:
        require(
            (self.num_layers > 0) == (self.kind is CheckpointingKind.LAYERS),
            "activation checkpointing names a number of layers exactly when its kind is 'layers'",
        )

    def __str__(self) -> str:
        return f"layers:{self.num_layers}" if self.kind is CheckpointingKind.LAYERS else self.kind.value

    @classmethod
    def parse(cls, text: str) -> ActivationCheckpointing:
        """Read `none`, `selective`, `full` or `layers:k`; ValueError for anything else."""
        kind, separator, count = text.partition(":")
        if kind == CheckpointingKind.LAYERS and separator and count.isdecimal() and 0 < int(count) < 100_000:
            return cls(kind=CheckpointingKind.LAYERS, num_layers=int(count))
        if separator or kind not in ("none", "selective", "full"):
            raise ValueError(f"{text!r} is not one of none, selective, full, layers:k (k at least 1)")
        return cls(kind=CheckpointingKind(kind))
