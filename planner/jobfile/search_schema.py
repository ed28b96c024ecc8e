"""What a job file may say of the search: the axes (a value, a list, or left out) and how trials are run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from planner.catalog.documents import describe
from planner.catalog.strict import StrictModel, complain, word_parser
from planner.jobfile.quantities import Duration
from planner.spec import (
    AccumulationType,
    ActivationCheckpointing,
    Allocator,
    Attention,
    CrossEntropy,
    OffloadDevice,
    OptimizerKernel,
    Overlap,
    Precision,
    TorchCompile,
    TrialMode,
)
from planner.spec.tuning import ELEMENT_STEPS, PARTITION_SIZES

MAX_AXIS_VALUES = 64


def axis_of(parse: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    """A validator for one axis: a value or a list of values, each once."""

    def parse_axis(value: Any) -> tuple[Any, ...]:
        given = value if isinstance(value, list) else [value]
        if not 1 <= len(given) <= MAX_AXIS_VALUES:
            raise complain(
                f"must list from 1 to {MAX_AXIS_VALUES} values, found {len(given)}",
                fix="list the values to try, or leave the key out for all that is legal",
            )
        values = tuple(parse(item) for item in given)
        for index, item in enumerate(values):
            if item in values[:index]:
                raise complain(f"lists {item} twice", fix="list each value once")
        return values

    return parse_axis


def whole_number(*, lowest: int, highest: int) -> Callable[[Any], int]:
    """A parser of whole numbers in a range."""

    def parse(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise complain(
                f"must be a whole number or a list of them, found {describe(value)}",
                fix="write whole numbers without quotes, such as 2 or [1, 2, 4]",
            )
        if not lowest <= value <= highest:
            raise complain(f"must be from {lowest} to {highest}, found {value}", fix="correct the value")
        return value

    return parse


def parse_checkpointing(value: Any) -> ActivationCheckpointing:
    """One word of the activation_checkpointing axis."""
    try:
        if isinstance(value, str):
            return ActivationCheckpointing.parse(value)
    except ValueError:
        pass  # the message below says it for every type
    raise complain(
        f"must be none, selective, full or layers:k, found {describe(value)}",
        fix="write none, selective, full, or layers:4 for four layers of each stage",
    )


_SIZES = axis_of(whole_number(lowest=1, highest=65_536))
SizeAxis = Annotated[tuple[int, ...], BeforeValidator(_SIZES), AfterValidator(lambda axis: tuple(sorted(axis)))]
StageAxis = Annotated[
    tuple[int, ...],
    BeforeValidator(axis_of(whole_number(lowest=0, highest=3))),
    AfterValidator(lambda axis: tuple(sorted(axis))),
]
PrecisionAxis = Annotated[tuple[Precision, ...], BeforeValidator(axis_of(word_parser(Precision)))]
CheckpointingAxis = Annotated[tuple[ActivationCheckpointing, ...], BeforeValidator(axis_of(parse_checkpointing))]

AttentionAxis = Annotated[tuple[Attention, ...], BeforeValidator(axis_of(word_parser(Attention)))]
OffloadAxis = Annotated[tuple[OffloadDevice, ...], BeforeValidator(axis_of(word_parser(OffloadDevice)))]
CompileAxis = Annotated[tuple[TorchCompile, ...], BeforeValidator(axis_of(word_parser(TorchCompile)))]
CrossEntropyAxis = Annotated[tuple[CrossEntropy, ...], BeforeValidator(axis_of(word_parser(CrossEntropy)))]
KernelAxis = Annotated[tuple[OptimizerKernel, ...], BeforeValidator(axis_of(word_parser(OptimizerKernel)))]
AllocatorAxis = Annotated[tuple[Allocator, ...], BeforeValidator(axis_of(word_parser(Allocator)))]
AccumulationAxis = Annotated[tuple[AccumulationType, ...], BeforeValidator(axis_of(word_parser(AccumulationType)))]


def parse_overlap(value: Any) -> Overlap:
    """One value of the overlap_comm axis: true or false, as DeepSpeed writes it, or what the stage decides."""
    if isinstance(value, bool):
        return Overlap.ON if value else Overlap.OFF
    parse: Callable[[Any], Overlap] = word_parser(Overlap)
    return parse(value)


def parse_elements(value: Any) -> int:
    """A number of elements: 0 for the planner's own, or 1, 2 or 5 times a power of ten."""
    number = int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(number, bool) or number not in ELEMENT_STEPS:
        raise complain(
            f"must be 1, 2 or 5 times a power of ten from 10000 to 5000000000, found {describe(value)}",
            fix="write a step such as 50000000 or 5.0e8; 0 is the planner's own value. Finer steps cannot be measured",
        )
    return int(number)


def parse_partition(value: Any) -> int:
    """Ranks of one of ZeRO++'s secondary partitions."""
    if isinstance(value, bool) or value not in PARTITION_SIZES:
        raise complain(
            f"must be a power of two up to {PARTITION_SIZES[-1]}, found {describe(value)}",
            fix="write the GPUs of a node, such as 8; 1 is none",
        )
    return int(value)


OverlapAxis = Annotated[tuple[Overlap, ...], BeforeValidator(axis_of(parse_overlap))]
ElementsAxis = Annotated[tuple[int, ...], BeforeValidator(axis_of(parse_elements))]
PartitionAxis = Annotated[tuple[int, ...], BeforeValidator(axis_of(parse_partition))]


class SearchSection(StrictModel):
    zero_stage: StageAxis | None = Field(default=None, description="ZeRO stages to try, 0 to 3")
    tensor_parallel_size: SizeAxis | None = Field(default=None, description="ways to split each layer")
    pipeline_parallel_size: SizeAxis | None = Field(default=None, description="ways to split the stack of layers")
    micro_batch_size: SizeAxis | None = Field(default=None, description="sequences per rank and forward pass")
    activation_checkpointing: CheckpointingAxis | None = Field(
        default=None, description="what of the forward pass is kept: none, selective, full, layers:k"
    )
    precision: PrecisionAxis | None = Field(
        default=None, description="fp32, fp16 or bf16; left out: bf16, or fp16 where the GPU has no bf16"
    )
    attention: AttentionAxis | None = Field(default=None, description="eager, sdpa or flash; left out: sdpa")
    offload_optimizer: OffloadAxis | None = Field(
        default=None, description="none or cpu; left out: cpu only where nothing fits without"
    )
    offload_param: OffloadAxis | None = Field(
        default=None, description="none or cpu, at ZeRO 3; left out: cpu only where nothing fits without"
    )
    torch_compile: CompileAxis | None = Field(
        default=None, description="none, layer or whole; left out: layer is tried around the best layouts, on GPUs"
    )
    cross_entropy: CrossEntropyAxis | None = Field(
        default=None, description="whole or chunked; left out: chunked is tried around the best layouts, on GPUs"
    )
    optimizer_kernel: KernelAxis | None = Field(
        default=None, description="torch (fused on GPUs), unfused or deepspeed; left out: torch"
    )
    allocator: AllocatorAxis | None = Field(
        default=None, description="default or expandable_segments; left out: both around the best layouts, on GPUs"
    )
    overlap_comm: OverlapAxis | None = Field(default=None, description="true or false; left out: true at ZeRO 3 only")
    grad_accum_dtype: AccumulationAxis | None = Field(
        default=None, description="same or fp32; left out: the type of the weights"
    )
    zero_hpz_partition_size: PartitionAxis | None = Field(
        default=None, description="ranks that share ZeRO++'s second copy of the parameters; left out: 1, none"
    )
    reduce_bucket_size: ElementsAxis | None = Field(default=None, description="elements of ZeRO's reduce bucket")
    allgather_bucket_size: ElementsAxis | None = Field(default=None, description="elements of the all-gather bucket")
    stage3_prefetch_bucket_size: ElementsAxis | None = Field(default=None, description="elements gathered ahead")
    stage3_max_live_parameters: ElementsAxis | None = Field(
        default=None, description="gathered parameters that may be alive at ZeRO 3"
    )
    stage3_param_persistence_threshold: ElementsAxis | None = Field(
        default=None, description="parameters smaller than this stay whole at ZeRO 3"
    )


TrialModeWord = Annotated[TrialMode, BeforeValidator(word_parser(TrialMode))]
SUBMISSIONS = ("here", "slurm")
SAMPLERS = ("guided", "tpe", "random")


def parse_submit(value: Any) -> str:
    """Where the search runs."""
    if value in SUBMISSIONS:
        return str(value)
    raise complain(f"must be one of {', '.join(SUBMISSIONS)}, found {describe(value)}", fix="leave it out for here")


def parse_sampler(value: Any) -> str:
    """One of the samplers' names."""
    if value in SAMPLERS:
        return str(value)
    raise complain(f"must be one of {', '.join(SAMPLERS)}, found {describe(value)}", fix="leave it out for guided")


class TrialsSection(StrictModel):
    mode: TrialModeWord = Field(default=TrialMode.AUTO, description="auto, real, emulated or none")
    max_trials: int = Field(default=24, ge=0, le=100_000, description="the most trials of one search")
    time_budget: Duration = Field(default=900.0, description="the time all trials may take, such as 15m")
    steps: int = Field(default=5, ge=1, le=10_000, description="timed steps of one trial, after the warm-up step")
    timeout: Duration = Field(default=120.0, description="the time one trial may take, such as 120s")
    sampler: Annotated[str, BeforeValidator(parse_sampler)] = Field(
        default="guided", description="guided, tpe or random"
    )
    submit: Annotated[str, BeforeValidator(parse_submit)] = Field(
        default="here", description="here, or slurm: the whole search as one Slurm job, from a node without GPUs"
    )
