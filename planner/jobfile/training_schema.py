"""What a job file may say of the training: batch, optimizer, schedule, what the trainer reads and saves."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from planner.catalog.documents import describe
from planner.catalog.strict import StrictModel, complain, word_parser
from planner.jobfile.quantities import PathText, nothing_is_empty
from planner.jobfile.run_schema import CheckpointSection, DataSection, MonitoringSection
from planner.spec import OptimizerName

OptimizerWord = Annotated[OptimizerName, BeforeValidator(word_parser(OptimizerName))]
_OPTIMIZERS_TAKING = {
    "betas": (OptimizerName.ADAMW, OptimizerName.ADAM8BIT, OptimizerName.LION, OptimizerName.MUON),
    "eps": (OptimizerName.ADAMW, OptimizerName.ADAM8BIT, OptimizerName.MUON),
    "momentum": (OptimizerName.SGD, OptimizerName.MUON),
}


def parse_betas(value: Any) -> tuple[float, float]:
    """Two numbers from 0 to below 1."""
    given = value if isinstance(value, list) else []
    numbers = [item for item in given if isinstance(item, (int, float)) and not isinstance(item, bool)]
    if len(numbers) != 2 or len(given) != 2 or not all(0 <= number < 1 for number in numbers):
        raise complain(
            f"must be two numbers from 0 to below 1, found {describe(value)}", fix="write betas: [0.9, 0.95]"
        )
    return float(numbers[0]), float(numbers[1])


_TOKENS = re.compile(r"(\d{1,12}(?:\.\d{1,6})?) ?([KMBT])", re.ASCII)
_SCALES = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def parse_tokens(value: Any) -> int:
    """`300B`, `1.5T`, or a whole number; a validator for pydantic."""
    found = _TOKENS.fullmatch(value) if isinstance(value, str) else None
    if found is not None:
        value = round(float(found[1]) * _SCALES[found[2]])
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10**18:
        raise complain(
            f"must be a number of tokens, found {describe(value)}", fix="write it like 300B, 1.5T or 2000000000"
        )
    return value


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


class TrainingSection(StrictModel):
    seq_len: int = Field(ge=1, le=10_000_000, description="tokens of one sequence; 1 for a factory without sequences")
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
    total_tokens: Annotated[int, BeforeValidator(parse_tokens)] | None = Field(
        default=None, description="tokens of the whole training, such as 300B; instead of steps"
    )
    schedule: Annotated[ScheduleSection, BeforeValidator(nothing_is_empty)] = Field(
        default=ScheduleSection(), description="warm-up and cosine of the learning rate"
    )
    data: DataSection | None = Field(default=None, description="what the reference trainer reads")
    checkpoint: CheckpointSection | None = Field(default=None, description="what the reference trainer saves")
    pretrained: PathText | None = Field(
        default=None, description="local folder of safetensors to start from, relative to the job file"
    )
    monitoring: Annotated[MonitoringSection, BeforeValidator(nothing_is_empty)] = Field(
        default=MonitoringSection(), description="metrics, memory budgets and TensorBoard of the reference trainer"
    )

    @property
    def num_steps(self) -> int:
        """Optimizer steps: as said, or as many as see `total_tokens`."""
        if self.total_tokens is None:
            return self.steps
        return -(-self.total_tokens // (self.global_batch_size * self.seq_len))

    @model_validator(mode="after")
    def _one_length(self) -> TrainingSection:
        if self.total_tokens is not None and "steps" in self.model_fields_set and self.steps != self.num_steps:
            raise complain(
                f"has steps: {self.steps}, but total_tokens {self.total_tokens:,} are {self.num_steps:,} steps of "
                f"{self.global_batch_size} sequences of {self.seq_len}",
                fix="keep one of steps and total_tokens",
            )
        if self.num_steps > 10**9:
            raise complain(f"comes to {self.num_steps:,} steps", fix="correct total_tokens or the batch")
        return self

    @model_validator(mode="after")
    def _warmup_ends(self) -> TrainingSection:
        if self.schedule.warmup_steps > self.num_steps:
            raise complain(
                f"has {self.schedule.warmup_steps} warm-up steps of {self.num_steps} steps",
                fix="lower schedule.warmup_steps or raise steps",
            )
        return self
