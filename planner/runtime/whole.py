"""Models that are trained whole on every rank, with data parallelism and ZeRO only: transformers models outside
`families` (other decoders, encoders, encoder-decoders, vision) and modules from a factory.

Owns building them, what their samples look like, and activation checkpointing where their layers offer it. Every rank
builds the model in host memory from the job's seed; under ZeRO-3 each parameter then goes to the device as a shard.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from planner.errors import InputError
from planner.runtime.checkpointing import recompute_of
from planner.runtime.data import Sample, SampleSource, TokenSamples, TokenSource, derived_seed, open_tokens
from planner.runtime.factory import Product, WithLoss, call_factory, make_checked_batch
from planner.runtime.pretrained import Weights, open_weights
from planner.spec import Attention, CheckpointingKind, ModelFamily, TrialTask
from planner.spec._record import record

MASKED_FRACTION = 0.15  # of the tokens of a masked language model, as in BERT (arXiv:1810.04805, section 3.1)

AUTO_CLASSES = {
    ModelFamily.DECODER: transformers.AutoModelForCausalLM,
    ModelFamily.ENCODER: transformers.AutoModelForMaskedLM,
    ModelFamily.ENCODER_DECODER: transformers.AutoModelForSeq2SeqLM,
    ModelFamily.VISION: transformers.AutoModelForImageClassification,
}


@record
class BuiltModel:
    """A module that gives the loss of a batch, and where its samples come from."""

    module: nn.Module
    source: SampleSource


Partition = Callable[[nn.Module], None]


def build_whole(task: TrialTask, config: Any, *, dtype: torch.dtype, partition: Partition | None) -> BuiltModel:
    """A transformers model of any family. InputError when the candidate asks for more than data parallelism."""
    _require_data_parallel(task)
    torch.manual_seed(task.training.seed)
    attention = config._attn_implementation
    if task.candidate.attention is Attention.SDPA:
        # What most candidates carry unasked, so a model that has none gets transformers' own choice; with capped scores
        # (Gemma 2) transformers chooses SDPA and then refuses it.
        attention = "eager" if getattr(config, "attn_logit_softcapping", None) else None
    model = AUTO_CLASSES[task.model.family].from_config(config, attn_implementation=attention)
    _load_weights(model, open_weights(task.training.run.pretrained))
    _checkpoint_layers(model, task)
    _settle(model, dtype=dtype, partition=partition)
    return BuiltModel(module=_LossOf(model), source=_source_of(task, config))


def _load_weights(model: nn.Module, weights: Weights | None) -> None:
    """Put the job's weights in the place of the drawn ones, a parameter at a time."""
    if weights is None:
        return
    for name, parameter in model.named_parameters():
        if weights.shape(name) is None:
            raise weights.missing(name)
        with torch.no_grad():
            parameter.copy_(weights.rows(name, 0, parameter.shape[0]) if parameter.dim() else weights.scalar(name))


def build_from_factory(task: TrialTask, *, dtype: torch.dtype, partition: Partition | None) -> BuiltModel:
    """A factory's module. InputError when the candidate asks for more than data parallelism."""
    _require_data_parallel(task)
    if task.training.run.pretrained:
        raise InputError(
            "training.pretrained has no effect with a model from a factory",
            why="the factory makes the module with its weights",
            fix="leave it out, and load the weights in the factory",
        )
    torch.manual_seed(task.training.seed)
    product = call_factory(task.model.factory)
    _checkpoint_layers(product.module, task)
    _settle(product.module, dtype=dtype, partition=partition)
    return BuiltModel(module=WithLoss(product), source=FactorySamples(product, task, dtype=dtype))


def _require_data_parallel(task: TrialTask) -> None:
    layout = task.candidate.layout
    if layout.tensor_parallel_size > 1 or layout.pipeline_parallel_size > 1:
        raise InputError(
            f"{task.model.name} cannot be split over tensor-parallel ranks or pipeline stages",
            why="the runtime knows how to cut certain families of causal language models only, and this is none",
            fix="use tensor_parallel_size 1 and pipeline_parallel_size 1; ZeRO spreads the model's states",
        )
    if task.training.lora_rank:
        raise InputError(
            f"{task.model.name} cannot be trained with lora_rank",
            why="the runtime knows the attention projections of certain families of causal language models only",
            fix="use trainable: full",
        )


def _settle(model: nn.Module, *, dtype: torch.dtype, partition: Partition | None) -> None:
    """Cast parameters (not buffers) and, under ZeRO-3, partition them, one after the other."""
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
    if partition is not None:
        partition(model)


def _checkpoint_layers(model: nn.Module, task: TrialTask) -> None:
    wanted = task.candidate.activation_checkpointing
    if wanted.kind is CheckpointingKind.NONE:
        return
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise InputError(
            f"activation checkpointing {wanted} cannot be applied to {task.model.name}",
            why="its layers are not transformers' GradientCheckpointingLayer, so the runtime does not know them",
            fix="use activation_checkpointing none, or build the module's layers on that class",
        )
    for place, layer in enumerate(layers):
        recompute = recompute_of(wanted, index_in_stage=place, keeps_rng=True)
        layer.gradient_checkpointing = recompute.kind is not CheckpointingKind.NONE
        layer._gradient_checkpointing_func = recompute.checkpoint


class _LossOf(nn.Module):
    """A transformers model that gives its loss alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **batch: torch.Tensor) -> torch.Tensor:
        return self.model(**batch).loss


def _source_of(task: TrialTask, config: Any) -> SampleSource:
    if task.model.family is ModelFamily.VISION:
        return ImageSamples(task, config)
    tokens = open_tokens(task)
    if task.model.family is ModelFamily.ENCODER:
        return MaskedSamples(tokens, seed=task.training.seed)
    return LabelledSamples(tokens)


def samples_of(like: SampleSource, tokens: TokenSource, *, seed: int) -> SampleSource:
    """Samples of the same form from other tokens. InputError for models that are not fed tokens from a file."""
    if isinstance(like, TokenSamples):
        return TokenSamples(tokens)
    if isinstance(like, LabelledSamples):
        return LabelledSamples(tokens)
    if isinstance(like, MaskedSamples):
        return MaskedSamples(tokens, seed=seed)
    raise InputError(
        "this model cannot be evaluated on a token file",
        why="its samples are images, or made by a factory",
        fix="leave training.data.eval_path out",
    )


class LabelledSamples:
    """Tokens in, the same tokens as labels (which transformers shifts for decoders)."""

    def __init__(self, source: TokenSource) -> None:
        self._source = source

    def sample(self, index: int) -> Sample:
        tokens = self._source.tokens(index)
        return {"input_ids": tokens, "labels": tokens}


class MaskedSamples:
    """Token 0 stands for the masked ones, always the same number a sample, so that samples weigh alike."""

    def __init__(self, source: TokenSource, *, seed: int) -> None:
        self._source = source
        self._seed = seed

    def sample(self, index: int) -> Sample:
        tokens = self._source.tokens(index)
        count = max(1, round(MASKED_FRACTION * len(tokens)))
        generator = torch.Generator().manual_seed(derived_seed(self._seed, "mask", index))
        masked = torch.zeros(len(tokens), dtype=torch.bool)
        masked[torch.randperm(len(tokens), generator=generator)[:count]] = True
        return {"input_ids": tokens.masked_fill(masked, 0), "labels": tokens.masked_fill(~masked, -100)}


class ImageSamples:
    """Random images and classes; there is no reader of image files."""

    def __init__(self, task: TrialTask, config: Any) -> None:
        if task.training.data.path:
            raise InputError(
                "the reference trainer cannot read training data for a vision model",
                why="training.data.path is a file of tokens",
                fix="leave it out for synthetic images, or train with a script of your own (launch.command)",
            )
        size = config.image_size
        height, width = (size, size) if isinstance(size, int) else size
        self._shape = (getattr(config, "num_channels", 3), height, width)
        self._classes = config.num_labels
        self._seed = task.training.seed

    def sample(self, index: int) -> Sample:
        generator = torch.Generator().manual_seed(derived_seed(self._seed, "sample", index))
        label = torch.randint(self._classes, (), generator=generator)
        return {"pixel_values": torch.randn(self._shape, generator=generator), "labels": label}


class FactorySamples:
    """Samples from the factory's own `make_batch`, one at a time. Floating-point tensors get the precision's type."""

    def __init__(self, product: Product, task: TrialTask, *, dtype: torch.dtype) -> None:
        if task.training.data.path:
            raise InputError(
                "training.data.path has no effect with a model from a factory",
                why="the factory's make_batch makes the batches",
                fix="leave it out, and read the data in make_batch",
            )
        self._product = product
        self._training = task.training
        self._dtype = dtype

    def sample(self, index: int) -> Sample:
        generator = torch.Generator().manual_seed(derived_seed(self._training.seed, "sample", index))
        batch = make_checked_batch(self._product, 1, self._training.seq_len, generator)
        return {
            name: (value[0].to(self._dtype) if value.is_floating_point() else value[0]) for name, value in batch.items()
        }
