"""Builds the model of a task on this rank.

Owns choosing how: block by block (the causal language models of `families`, at every layout), or whole (every other
transformers model and arbitrary modules: data parallelism and ZeRO only).
"""

from __future__ import annotations

import json
from typing import Any

import torch
import transformers
from deepspeed.accelerator import get_accelerator

from planner.errors import InputError, did_you_mean
from planner.runtime.building import Assembly, BlockBuilder, PlainModel, StagedModel, zero3_partition
from planner.runtime.compiling import allow_variants
from planner.runtime.data import TokenSamples, open_tokens
from planner.runtime.families import BLOCK_WISE_TYPES, Family, family_of
from planner.runtime.grid import coordinates_of, tensor_group_of
from planner.runtime.initialisation import Placement
from planner.runtime.kernels import choose_kernels
from planner.runtime.pretrained import open_weights
from planner.runtime.whole import BuiltModel, build_from_factory, build_whole
from planner.spec import CrossEntropy, ModelFamily, Precision, TorchCompile, TrialTask

DTYPES = {Precision.FP32: torch.float32, Precision.FP16: torch.float16, Precision.BF16: torch.bfloat16}


def build_model(task: TrialTask, *, ds_config: dict[str, Any], grid: Any) -> BuiltModel:
    """The model of the task as this rank holds it. InputError when the layout asks of the model what it cannot do."""
    _require_precision(task)
    _require_blocks_for_tuning(task)
    partition = zero3_partition(ds_config, grid) if task.candidate.zero_stage == 3 else None
    if task.model.factory:
        return build_from_factory(task, dtype=DTYPES[task.candidate.precision], partition=partition)
    config = config_of(task)
    family = family_of(config) if task.model.family is ModelFamily.DECODER else None
    if family is None:
        return build_whole(task, config, dtype=DTYPES[task.candidate.precision], partition=partition)
    require_fit(task, family)
    layout, tuning = task.candidate.layout, task.candidate.tuning
    assembly = Assembly(
        family=family,
        placement=placement_of(task, family),
        checkpointing=task.candidate.activation_checkpointing,
        keeps_rng=has_dropout(config),
        partition=partition,
        lora_rank=task.training.lora_rank,
        compiles_layers=tuning.torch_compile is TorchCompile.LAYER,
        chunks_loss=tuning.cross_entropy is CrossEntropy.CHUNKED,
    )
    staged = layout.pipeline_parallel_size > 1
    module = (
        StagedModel(assembly, layout) if staged else PlainModel(BlockBuilder(assembly, tensor_group_of(grid)), family)
    )
    return BuiltModel(module=module, source=TokenSamples(open_tokens(task)))


def _require_blocks_for_tuning(task: TrialTask) -> None:
    """A model that is trained whole has neither layers nor a head of the runtime's own."""
    if task.candidate.tuning.torch_compile is not TorchCompile.NONE:
        allow_variants(task.model.num_layers)
    if task.model.family is ModelFamily.DECODER and task.model.model_type in BLOCK_WISE_TYPES:
        return
    by_layer = task.candidate.tuning.torch_compile is TorchCompile.LAYER
    if by_layer or task.candidate.tuning.cross_entropy is CrossEntropy.CHUNKED:
        raise InputError(
            f"{task.model.name} can be neither compiled layer by layer nor trained with a chunked loss",
            why="the runtime builds certain families of causal language models from blocks only, and this is none",
            fix="use torch_compile none or whole, and cross_entropy whole",
        )


def _require_precision(task: TrialTask) -> None:
    """DeepSpeed refuses these too, but only once the whole model is there."""
    precision, accelerator = task.candidate.precision, get_accelerator()
    fp16_missing = precision is Precision.FP16 and not accelerator.is_fp16_supported()
    bf16_missing = precision is Precision.BF16 and not accelerator.is_bf16_supported()
    if precision not in DTYPES or fp16_missing or bf16_missing:
        raise InputError(
            f"precision {precision} cannot be trained on this {accelerator.device_name()}",
            why="DeepSpeed asks the device, and it says that it has no such arithmetic",
            fix="use precision bf16 or fp32",
        )


def config_of(task: TrialTask) -> Any:
    """The transformers config of the task's model, with the candidate's attention."""
    settings = json.loads(task.model.config_json)
    model_type = settings.get("model_type", "")
    if model_type not in transformers.CONFIG_MAPPING:
        raise InputError(
            f"transformers {transformers.__version__} does not know the model type {model_type!r}",
            why="the model is built from the config by transformers' own classes",
            fix=did_you_mean(model_type, BLOCK_WISE_TYPES),
        )
    config = transformers.CONFIG_MAPPING[model_type].from_dict(settings)
    choose_kernels(config, task)
    config.use_cache = False
    return config


def require_fit(task: TrialTask, family: Family) -> None:
    """Raise InputError when stages or sequence do not fit the model."""
    layers = sum(task.candidate.layout.stage_layers)
    if layers != family.config.num_hidden_layers:
        raise InputError(
            f"the layout's stages hold {layers} layers, the model has {family.config.num_hidden_layers}",
            why="stage_layers names the decoder layers of each pipeline stage",
            fix="plan again with this model's config",
        )
    limit = family.config.max_position_embeddings
    if family.position_name and task.training.seq_len > limit:
        raise InputError(
            f"seq_len {task.training.seq_len} exceeds the model's {limit} learned positions",
            why="a model with learned positions has none beyond them",
            fix=f"use seq_len {limit} or less, or raise n_positions in the model's config",
        )


def has_dropout(config: Any) -> bool:
    """Whether the forward pass draws random numbers, by any of the names that configs have for it."""
    rates = {name: value for name, value in config.to_dict().items() if "drop" in name and "summary" not in name}
    return any(isinstance(rate, float) and rate > 0.0 for rate in rates.values())


def placement_of(task: TrialTask, family: Family) -> Placement:
    """Where this rank's parameters live and how they start."""
    rank = torch.distributed.get_rank()
    return Placement(
        seed=task.training.seed,
        device=torch.device(get_accelerator().current_device_name()),
        dtype=DTYPES[task.candidate.precision],
        tensor_rank=coordinates_of(rank, task.candidate.layout).tensor_rank,
        first_values=family.first_values,
        weights=open_weights(task.training.run.pretrained),
    )
