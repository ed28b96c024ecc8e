"""What a job file may say: every key, its type, its range and what it is for.

Owns the form only. What the values mean together (links of a GPU, the default precision) is `resolve`'s business.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from planner.catalog.documents import describe
from planner.catalog.hardware_schema import LinkOption
from planner.catalog.strict import StrictModel, complain, word_parser
from planner.jobfile.launch_schema import EnvironmentMap, KubernetesMap, LaunchSection, OptionMap
from planner.jobfile.quantities import parse_duration
from planner.spec import ActivationCheckpointing, Objective, OptimizerName, Precision, TrialMode

T = TypeVar("T")
S = TypeVar("S")

MAX_AXIS_VALUES = 64
Duration = Annotated[float, BeforeValidator(parse_duration)]


def no_zero_byte(text: str) -> str:
    """Refuse what no file system takes."""
    if "\0" in text:
        raise complain("holds a zero byte", fix="write an ordinary path")
    return text


PathText = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(no_zero_byte)]


def nothing_is_empty(value: Any) -> Any:
    """A section with a name and nothing below it is a section with every default."""
    return {} if value is None else value


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


class TracedSection(StrictModel):
    """What tracing a factory's module found, as the planner itself writes it into the plan folder."""

    num_parameters: int = Field(ge=0, le=10**15, description="elements")
    largest_parameter: int = Field(ge=0, le=10**15, description="elements")
    saved_bytes_per_sample_fp32: int = Field(ge=0, le=10**15, description="kept for the backward pass")
    fixed_saved_bytes: int = Field(ge=0, le=10**15, description="kept for the backward pass, however many samples")
    forward_flops_per_sample: int = Field(ge=0, le=10**18, description="of the forward pass")
    tokens_per_sample: int = Field(ge=1, le=10**9, description="1 where a sample is not a sequence")


_FACTORY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


def parse_factory(value: Any) -> str:
    """`package.module:function`."""
    if isinstance(value, str) and len(value) <= 500 and _FACTORY.fullmatch(value):
        return value
    raise complain(
        f"must be package.module:function, found {describe(value)}", fix="name a function that returns the module"
    )


def parse_model_config(value: Any) -> Any:
    """A path, or the config itself."""
    if (isinstance(value, str) and 0 < len(value) <= 4096) or isinstance(value, dict):
        return value
    raise complain(
        f"must be the path of a config.json, or the config itself, found {describe(value)}",
        fix="write config: path/to/config.json",
    )


class ModelSection(StrictModel):
    name: str | None = Field(
        default=None, min_length=1, max_length=200, description="a catalog name; beside config or factory, a label"
    )
    config: Annotated[Any, BeforeValidator(parse_model_config)] = Field(
        default=None, description="the path of a Hugging Face config.json, relative to the job file"
    )
    factory: Annotated[str, BeforeValidator(parse_factory)] | None = Field(
        default=None, description="package.module:function that makes an nn.Module"
    )
    traced: TracedSection | None = Field(default=None, description="written by the planner for a factory")

    @model_validator(mode="after")
    def _one_source(self) -> ModelSection:
        if self.config is not None and self.factory is not None:
            raise complain("has both config and factory", fix="keep the one that makes the model")
        if self.name is None and self.config is None and self.factory is None:
            raise complain("says no model", fix="add name:, config: or factory: under model:")
        if self.traced is not None and self.factory is None:
            raise complain("has traced without factory", fix="remove traced:, it is written by the planner")
        return self


OptimizerWord = Annotated[OptimizerName, BeforeValidator(word_parser(OptimizerName))]
_OPTIMIZERS_TAKING = {
    "betas": (OptimizerName.ADAMW, OptimizerName.ADAM8BIT, OptimizerName.LION, OptimizerName.MUON),
    "eps": (OptimizerName.ADAMW, OptimizerName.ADAM8BIT, OptimizerName.MUON),
    "momentum": (OptimizerName.SGD, OptimizerName.MUON),
}


def parse_betas(value: Any) -> tuple[float, float]:
    """Two numbers from 0 to below 1."""
    numbers = [item for item in value if isinstance(item, (int, float))] if isinstance(value, list) else []
    if len(numbers) != 2 or len(value) != 2 or not all(0 <= number < 1 for number in numbers):
        raise complain(
            f"must be two numbers from 0 to below 1, found {describe(value)}", fix="write betas: [0.9, 0.95]"
        )
    return float(numbers[0]), float(numbers[1])


class OptimizerSection(StrictModel):
    name: OptimizerWord = Field(default=OptimizerName.ADAMW, description="adamw, adam8bit, sgd, lion or muon")
    lr: float = Field(default=3.0e-4, gt=0, le=100, description="the peak learning rate")
    betas: Annotated[tuple[float, float], BeforeValidator(parse_betas)] | None = Field(
        default=None, description="decay of the two moments"
    )
    eps: float | None = Field(default=None, gt=0, le=1, description="added to the denominator")
    weight_decay: float = Field(default=0.01, ge=0, le=100, description="decoupled weight decay")
    momentum: float | None = Field(default=None, ge=0, lt=1, description="momentum of sgd and muon")

    @model_validator(mode="after")
    def _every_option_has_an_effect(self) -> OptimizerSection:
        for option, takers in _OPTIMIZERS_TAKING.items():
            if getattr(self, option) is not None and self.name not in takers:
                raise complain(
                    f"has {option}, which {self.name} does not take",
                    fix=f"remove {option}, or choose one of: {', '.join(takers)}",
                )
        return self


class LoraSection(StrictModel):
    lora_rank: int = Field(ge=1, le=65_536, description="the rank of the trained low-rank matrices")


def parse_trainable(value: Any) -> Any:
    """`full`, or a mapping with lora_rank."""
    if value == "full":
        return None
    if isinstance(value, dict):
        return value
    raise complain(f"must be full or {{lora_rank: r}}, found {describe(value)}", fix="write trainable: full")


class ScheduleSection(StrictModel):
    warmup_steps: int = Field(default=0, ge=0, le=10**9, description="steps of linear warm-up")
    min_lr_fraction: float = Field(default=0.1, ge=0, le=1, description="share of the peak at the end of the cosine")


class DataSection(StrictModel):
    path: PathText = Field(description="memory-mapped token file, relative to the job file; no data: synthetic batches")
    token_bytes: int = Field(default=4, ge=2, le=4, description="bytes of one token: 2 or 4, little endian")

    @model_validator(mode="after")
    def _two_or_four(self) -> DataSection:
        if self.token_bytes == 3:
            raise complain("has token_bytes 3", fix="write token_bytes: 2 or 4")
        return self


class CheckpointSection(StrictModel):
    folder: PathText = Field(description="where checkpoints are written, relative to the job file")
    interval: int = Field(default=1000, ge=1, le=10**9, description="steps between checkpoints")


class TrainingSection(StrictModel):
    seq_len: int = Field(ge=1, le=10_000_000, description="tokens of one sequence")
    global_batch_size: int = Field(
        ge=1, le=10_000_000, description="sequences per optimizer step; the planner never changes it"
    )
    optimizer: Annotated[OptimizerSection, BeforeValidator(nothing_is_empty)] = Field(
        default=OptimizerSection(), description="what updates the weights"
    )
    gradient_clipping: float = Field(default=1.0, ge=0, le=1e9, description="the largest gradient norm; 0: none")
    trainable: Annotated[LoraSection | None, BeforeValidator(parse_trainable)] = Field(
        default=None, description="full, or {lora_rank: r}"
    )
    seed: int = Field(default=1234, ge=0, le=2**32 - 1, description="of initial weights and synthetic data")
    steps: int = Field(default=1000, ge=1, le=10**9, description="optimizer steps of the whole training")
    schedule: Annotated[ScheduleSection, BeforeValidator(nothing_is_empty)] = Field(
        default=ScheduleSection(), description="warm-up and cosine of the learning rate"
    )
    data: DataSection | None = Field(default=None, description="what the reference trainer reads")
    checkpoint: CheckpointSection | None = Field(default=None, description="what the reference trainer saves")

    @model_validator(mode="after")
    def _warmup_ends(self) -> TrainingSection:
        if self.schedule.warmup_steps > self.steps:
            raise complain(
                f"has {self.schedule.warmup_steps} warm-up steps of {self.steps} steps",
                fix="lower schedule.warmup_steps or raise steps",
            )
        return self


class ClusterSection(StrictModel):
    gpu: str | None = Field(
        default=None, min_length=1, max_length=100, description="a catalog name, or auto: this machine"
    )
    name: str | None = Field(default=None, min_length=1, max_length=100, description="a cluster of the catalog")
    file: PathText | None = Field(default=None, description="a cluster file, relative to the job file")
    resolved: dict[str, Any] | None = Field(default=None, description="all figures, as the planner writes them")
    nodes: int | None = Field(default=None, ge=1, le=100_000, description="how many alike nodes")
    gpus_per_node: int | None = Field(default=None, ge=1, le=1024, description="GPUs (or CPU processes) of one node")
    intra_node_link: LinkOption = Field(default=None, description="the link between GPUs of a node")
    inter_node_link: LinkOption = Field(default=None, description="the network between nodes, one GPU's share")
    host_memory_gib: float | None = Field(default=None, gt=0, le=1e6, description="memory of one node's host, in GiB")
    memory_gib: float | None = Field(default=None, gt=0, le=1e6, description="cap on the memory of one rank, in GiB")

    @model_validator(mode="after")
    def _one_source(self) -> ClusterSection:
        said = [key for key in ("gpu", "name", "file", "resolved") if getattr(self, key) is not None]
        if len(said) != 1:
            found = "has " + " and ".join(said) if said else "says no hardware"
            raise complain(found, fix="write exactly one of gpu:, name: (a catalog cluster) or file:")
        others = [key for key in type(self).model_fields if key not in said and getattr(self, key) is not None]
        if self.resolved is not None and others:
            raise complain(f"has {others[0]} beside resolved", fix="change the figure inside resolved")
        return self


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


TrialModeWord = Annotated[TrialMode, BeforeValidator(word_parser(TrialMode))]
SAMPLERS = ("guided", "tpe", "random")


def parse_sampler(value: Any) -> str:
    """One of the samplers' names."""
    if value in SAMPLERS:
        return str(value)
    raise complain(f"must be one of {', '.join(SAMPLERS)}, found {describe(value)}", fix="leave it out for guided")


class TrialsSection(StrictModel):
    mode: TrialModeWord = Field(default=TrialMode.AUTO, description="auto, real, emulated or none")
    max_trials: int = Field(default=24, ge=1, le=100_000, description="the most trials of one search")
    time_budget: Duration = Field(default=900.0, description="the time all trials may take, such as 15m")
    steps: int = Field(default=5, ge=1, le=10_000, description="timed steps of one trial, after the warm-up step")
    timeout: Duration = Field(default=120.0, description="the time one trial may take, such as 120s")
    sampler: Annotated[str, BeforeValidator(parse_sampler)] = Field(
        default="guided", description="guided, tpe or random"
    )


ObjectiveWord = Annotated[Objective, BeforeValidator(word_parser(Objective))]


class JobSchema(StrictModel):
    """The whole job file."""

    model: ModelSection = Field(description="what is trained")
    training: TrainingSection = Field(description="how it is trained")
    cluster: ClusterSection = Field(description="on what it is trained")
    search: Annotated[SearchSection, BeforeValidator(nothing_is_empty)] = Field(
        default=SearchSection(), description="what may vary; an axis left out takes all that is legal"
    )
    objective: ObjectiveWord = Field(default=Objective.THROUGHPUT, description="throughput, cost or fewest_gpus")
    memory_headroom: float = Field(default=0.05, ge=0, le=0.9, description="share of the usable memory kept free")
    trials: Annotated[TrialsSection, BeforeValidator(nothing_is_empty)] = Field(
        default=TrialsSection(), description="how trials are run"
    )
    launch: Annotated[LaunchSection, BeforeValidator(nothing_is_empty)] = Field(
        default=LaunchSection(), description="how the training is started"
    )
    environment: EnvironmentMap = Field(default=(), description="environment variables of the training")
    slurm: OptionMap = Field(default=(), description="sbatch's long options: account, partition, time")
    kubernetes: KubernetesMap = Field(default=(), description="image, namespace, name")
