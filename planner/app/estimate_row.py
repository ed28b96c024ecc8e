"""One configuration to estimate, as a row: its schema, and what is left out filled in.

Owns the row's fields (the flags of `planner estimate` with underscores) and their defaults. Leaves prices to `cost`.
"""

from __future__ import annotations

import json
from functools import lru_cache
from math import gcd
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from planner.catalog import load_gpu, load_model, model_from_config, usual_node
from planner.catalog.documents import Document
from planner.catalog.strict import StrictModel, complain, validate, word_parser
from planner.cost import RuntimeProfile, profile_for
from planner.errors import InputError
from planner.spec import (
    ActivationCheckpointing,
    Attention,
    ClusterSpec,
    ModelSpec,
    OffloadDevice,
    OptimizerName,
    OptimizerSpec,
    Precision,
    Runtime,
    TrainingSpec,
)
from planner.spec._record import record
from planner.spec.columns import ATTENTIONS, OFFLOAD_DEVICES, PRECISIONS, checkpointing_code

Size = Annotated[int, Field(ge=1, le=1 << 40)]
GPUS_PER_NODE = 8  # what a row that does not say has
MAX_REMEMBERED = 1024  # models, and GPUs, of one stream


def _checkpointing(value: Any) -> ActivationCheckpointing:
    if isinstance(value, ActivationCheckpointing):
        return value
    try:
        return ActivationCheckpointing.parse(value if isinstance(value, str) else repr(value))
    except ValueError as problem:
        raise complain(f"is wrong: {problem}", fix="write none, selective, full or layers:4") from None


class EstimateRow(StrictModel):
    """The fields of a row. None: left out."""

    model: str | dict[str, Any] = Field(description="a catalog name, the path of a config.json, or a config object")
    gpu: str = Field(default="h100-sxm-80gb", description="a GPU of the catalog")
    nodes: Size | None = None
    gpus_per_node: Size | None = None
    world_size: Size | None = None
    seq_len: Size = Field(description="tokens of one sequence")
    micro_batch_size: Size = 1
    gradient_accumulation_steps: Size | None = None
    global_batch_size: Size | None = None
    zero_stage: Annotated[int, Field(ge=0, le=3)] | None = None
    tensor_parallel_size: Size = 1
    pipeline_parallel_size: Size = 1
    sequence_parallel_size: Size = 1
    expert_parallel_size: Size = 1
    virtual_pipeline_size: Size = 1
    tensor_sequence_parallel: bool | None = None
    activation_checkpointing: Annotated[ActivationCheckpointing, BeforeValidator(_checkpointing)] = (
        ActivationCheckpointing()
    )
    precision: Annotated[Precision, BeforeValidator(word_parser(Precision))] = Precision.BF16
    attention: Annotated[Attention, BeforeValidator(word_parser(Attention))] = Attention.SDPA
    optimizer: Annotated[OptimizerName, BeforeValidator(word_parser(OptimizerName))] = OptimizerName.ADAMW
    offload_optimizer: Annotated[OffloadDevice, BeforeValidator(word_parser(OffloadDevice))] = OffloadDevice.NONE
    offload_param: Annotated[OffloadDevice, BeforeValidator(word_parser(OffloadDevice))] = OffloadDevice.NONE
    torch_compile: bool = False
    trainable_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    lora_rank: Annotated[int, Field(ge=0, le=65536)] = 0
    runtime: Annotated[Runtime, BeforeValidator(word_parser(Runtime))] = Runtime.DEEPSPEED


@record
class Question:
    """A row, resolved. Rows that share a `Setting` are priced together; `axes` become one row of columns."""

    setting: Setting
    axes: tuple[tuple[str, int], ...]  # of CandidateColumns, by name
    reasons: tuple[str, ...] = ()  # why no candidate can be made of it


@record
class Setting:
    model: ModelSpec
    training: TrainingSpec
    cluster: ClusterSpec
    profile: RuntimeProfile


class Lookups:
    """What names of a stream of rows mean, each looked up once: reading the catalog takes longer than pricing."""

    def __init__(self) -> None:
        self.named_model = lru_cache(MAX_REMEMBERED)(load_model)
        self.inline_model = lru_cache(MAX_REMEMBERED)(_inline_model)
        self.gpu = lru_cache(MAX_REMEMBERED)(load_gpu)
        self.usual_node = lru_cache(MAX_REMEMBERED)(usual_node)

    def model(self, said: str | dict[str, Any]) -> ModelSpec:
        """The model of a row."""
        return self.named_model(said) if isinstance(said, str) else self.inline_model(json.dumps(said, sort_keys=True))


def _inline_model(config: str) -> ModelSpec:
    return model_from_config(json.loads(config), "model")


def read_row(value: Any, lookups: Lookups | None = None, *, place: str = "the configuration") -> Question:
    """Resolve a row. InputError, with the field and the mend, for one that is malformed; `place`: what it is called."""
    known = lookups if lookups is not None else Lookups()
    row = validate(EstimateRow, Document(value=value, label=place, origins={}), what="configuration")
    if row.gradient_accumulation_steps and row.global_batch_size:
        raise InputError(
            "gradient_accumulation_steps and global_batch_size are both given",
            why="each follows from the other: global = micro x accumulation x data-parallel",
            fix="give one of the two",
        )
    cluster = _cluster(row, known)
    model = known.model(row.model)
    profile, attention = profile_for(
        row.runtime,
        attention=row.attention,
        gpu=cluster.gpu,
        compiled=row.torch_compile,
        is_plain=_is_plain(row, model),
    )
    setting = Setting(
        model=model,
        training=TrainingSpec(
            seq_len=row.seq_len,
            global_batch_size=row.global_batch_size or 1,
            optimizer=OptimizerSpec(name=row.optimizer),
            lora_rank=row.lora_rank,
            trainable_fraction=row.trainable_fraction,
        ),
        cluster=cluster,
        profile=profile,
    )
    return _split(row, setting, attention=attention)


def _is_plain(row: EstimateRow, model: ModelSpec) -> bool:
    """Whether a Megatron-like row uses nothing that only Megatron-Core with Transformer Engine has."""
    sizes = (row.virtual_pipeline_size, row.sequence_parallel_size, row.expert_parallel_size)
    return max(sizes) == 1 and row.precision is not Precision.FP8 and not model.num_experts and not model.kv_lora_rank


def _usual_zero_stage(setting: Setting, *, data: int) -> int:
    """What a runtime does unasked, where there is anyone to share with: DeepSpeed nothing; FSDP shards everything,
    Megatron-Core the optimizer (`use_distributed_optimizer`, in all of NVIDIA's recipes)."""
    if data == 1 or setting.profile.runtime is Runtime.DEEPSPEED:
        return 0
    return 3 if setting.profile.runtime is Runtime.FSDP else int(setting.profile.shards_optimizer)


def _cluster(row: EstimateRow, known: Lookups) -> ClusterSpec:
    """The world: nodes x GPUs per node, or `world_size` in nodes as full as it allows."""
    usual = known.usual_node(row.gpu)
    per_node = row.gpus_per_node or GPUS_PER_NODE
    nodes = row.nodes or 1
    if row.world_size is not None:
        if row.nodes is not None and row.gpus_per_node is not None and row.world_size != nodes * per_node:
            raise InputError(
                f"world_size {row.world_size} is not nodes x gpus_per_node = {nodes} x {per_node}",
                why="the three name one number of GPUs",
                fix="leave world_size out, or make them agree",
            )
        per_node = row.world_size // nodes if row.nodes else gcd(row.world_size, per_node)
        if row.world_size <= (row.gpus_per_node or GPUS_PER_NODE):
            per_node = row.world_size
        nodes = row.world_size // per_node
    return ClusterSpec(
        gpu=known.gpu(row.gpu),
        nodes=nodes,
        gpus_per_node=per_node,
        intra_node_link=usual.intra_node_link,
        inter_node_link=usual.inter_node_link,
        host_memory_bytes=usual.host_memory_bytes_per_gpu * per_node,
    )


def _split(row: EstimateRow, setting: Setting, *, attention: Attention) -> Question:
    """The batch identity and the data-parallel size, or the reasons why there is none."""
    world = setting.cluster.world_size
    ranks = row.tensor_parallel_size * row.pipeline_parallel_size * row.sequence_parallel_size
    if world % ranks:
        reason = f"{world} GPUs cannot be divided by tensor x pipeline x sequence = {ranks}"
        return Question(setting=setting, axes=(), reasons=(reason,))
    data = world // ranks
    accumulation = row.gradient_accumulation_steps or 1
    if row.global_batch_size is not None:
        accumulation, rest = divmod(row.global_batch_size, row.micro_batch_size * data)
        if rest or not accumulation:
            reason = (
                f"global_batch_size {row.global_batch_size} is not a multiple of micro-batch x data-parallel = "
                f"{row.micro_batch_size} x {data}"
            )
            return Question(setting=setting, axes=(), reasons=(reason,))
    sequence_split = row.tensor_sequence_parallel
    axes = {
        "nodes": setting.cluster.nodes,
        "data_parallel_size": data,
        "tensor_parallel_size": row.tensor_parallel_size,
        "pipeline_parallel_size": row.pipeline_parallel_size,
        "sequence_parallel_size": row.sequence_parallel_size,
        "expert_parallel_size": row.expert_parallel_size,
        "virtual_pipeline_size": row.virtual_pipeline_size,
        "tensor_sequence_parallel": row.runtime is Runtime.MEGATRON if sequence_split is None else sequence_split,
        "micro_batch_size": row.micro_batch_size,
        "gradient_accumulation_steps": accumulation,
        "zero_stage": _usual_zero_stage(setting, data=data) if row.zero_stage is None else row.zero_stage,
        "precision": PRECISIONS.index(row.precision),
        "checkpointed_layers": checkpointing_code(row.activation_checkpointing),
        "attention": ATTENTIONS.index(attention),
        "offload_optimizer": OFFLOAD_DEVICES.index(row.offload_optimizer),
        "offload_param": OFFLOAD_DEVICES.index(row.offload_param),
        "tuning": 0,
    }
    return Question(setting=setting, axes=tuple((name, int(value)) for name, value in axes.items()))
