"""`--pin tensor_parallel_size=8,zero_stage=1`: the user's own layout, named by some of its axis values.

Owns the form. Which candidates have these values, and what refuses them, is `planner.app.pin`'s to find.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from planner.catalog.documents import Document, shorten
from planner.catalog.strict import StrictModel, complain, validate
from planner.catalog.yaml_text import parse_yaml
from planner.errors import InputError
from planner.jobfile.search_schema import CheckpointingAxis, PrecisionAxis, SizeAxis, StageAxis
from planner.spec import ActivationCheckpointing, Precision
from planner.spec._record import record

_EXAMPLE = "write --pin tensor_parallel_size=8,pipeline_parallel_size=2,zero_stage=1"
MAX_CHARACTERS = 1000


@record
class Pin:
    """The values that were named; None: any value the job allows. `text` is what was typed."""

    text: str
    zero_stage: int | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    data_parallel_size: int | None = None
    micro_batch_size: int | None = None
    gradient_accumulation_steps: int | None = None
    activation_checkpointing: ActivationCheckpointing | None = None
    precision: Precision | None = None
    nodes: int | None = None


def _single(values: tuple[object, ...]) -> tuple[object, ...]:
    if len(values) != 1:
        raise complain("must be one value, not a list", fix="pin one layout; --pin once for each planning")
    return values


_One = AfterValidator(_single)


class PinSchema(StrictModel):
    """The axes that can be pinned."""

    zero_stage: Annotated[StageAxis, _One] | None = Field(default=None, description="the ZeRO stage, 0 to 3")
    tensor_parallel_size: Annotated[SizeAxis, _One] | None = Field(default=None, description="ways to split each layer")
    pipeline_parallel_size: Annotated[SizeAxis, _One] | None = Field(
        default=None, description="ways to split the stack of layers"
    )
    data_parallel_size: Annotated[SizeAxis, _One] | None = Field(default=None, description="copies of the model")
    micro_batch_size: Annotated[SizeAxis, _One] | None = Field(
        default=None, description="sequences per rank and forward pass"
    )
    gradient_accumulation_steps: Annotated[SizeAxis, _One] | None = Field(
        default=None, description="micro-batches per optimizer step"
    )
    activation_checkpointing: Annotated[CheckpointingAxis, _One] | None = Field(
        default=None, description="none, selective, full, layers:k"
    )
    precision: Annotated[PrecisionAxis, _One] | None = Field(default=None, description="fp32, fp16 or bf16")
    nodes: Annotated[SizeAxis, _One] | None = Field(default=None, description="nodes that take part")


def parse_pin(text: str) -> Pin:
    """Read the flag's value. InputError, with near matches, for what names no layout."""
    values: dict[str, object] = {}
    for part in text[:MAX_CHARACTERS].split(","):
        key, separator, value = part.partition("=")
        key = key.strip()
        if not separator or not key or not value.strip():
            raise InputError(f"--pin: {shorten(part)!r} is not key=value", why="it names a layout's axes", fix=_EXAMPLE)
        if key in values:
            raise InputError(f"--pin names {key} twice", why="a layout has one value of each axis", fix=_EXAMPLE)
        values[key] = parse_yaml(value, label="--pin").value
    document = Document(value=values, label="--pin", origins={(): "--pin"})
    schema = validate(PinSchema, document, what="pinned layout")
    named = {name: held[0] for name in PinSchema.model_fields if (held := getattr(schema, name)) is not None}
    return Pin(text=text, **named)
