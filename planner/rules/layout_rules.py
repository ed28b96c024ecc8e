"""Rules about how the GPUs are split: data, tensor, pipeline, sequence and expert parallelism.

A data-parallel size of 0 in the columns means that the other degrees do not divide the world.
"""

from __future__ import annotations

import numpy as np

from planner.rules.config_context import Severity
from planner.rules.rule import Rule, RuleContext, everywhere
from planner.spec import Runtime
from planner.spec.columns import BoolColumn, CandidateColumns, IntColumn

_TRAINER = "planner/runtime: the reference trainer"
_ARITHMETIC = "arithmetic"


def _ranks(columns: CandidateColumns) -> IntColumn:
    split = columns.tensor_parallel_size * columns.pipeline_parallel_size * columns.sequence_parallel_size
    return split * columns.data_parallel_size


def _leaves_gpus_over(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    if not context.world_sizes:
        return columns.data_parallel_size < 1
    return ~np.isin(_ranks(columns), np.array(context.world_sizes, dtype=np.int64))


def _world_sentence(context: RuleContext) -> str:
    worlds = context.world_sizes or (context.cluster.world_size,)
    shown = str(worlds[0]) if len(worlds) == 1 else f"one of {worlds[0]} to {worlds[-1]}"
    return f"data_parallel x tensor_parallel x pipeline_parallel size must be exactly the number of GPUs, {shown}"


def _no_tensor_plan(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    refused = _by_trainer(context) and bool(tensor_parallel_refusal(context))
    return (columns.tensor_parallel_size > 1) & refused


def tensor_parallel_refusal(context: RuleContext) -> str:
    """Why this model takes no tensor parallelism; "" when it does."""
    if context.model.num_heads == 0:
        return context.model.tensor_parallel_refusal or "the model is not a stack of attention layers"
    return context.model.tensor_parallel_refusal


def pipeline_parallel_refusal(context: RuleContext) -> str:
    """Why this model takes no pipeline; "" when it does."""
    if context.model.num_layers == 0:
        return context.model.pipeline_parallel_refusal or "the model is not a stack of layers"
    return context.model.pipeline_parallel_refusal


def _by_trainer(context: RuleContext) -> bool:
    return context.reference_trainer and context.runtime is Runtime.DEEPSPEED


def _indivisible(count: int, degree: IntColumn) -> BoolColumn:
    refused: BoolColumn = (count % np.maximum(degree, 1) != 0) & (degree > 1)
    return refused


def _heads_indivisible(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    return _indivisible(context.model.num_heads, columns.tensor_parallel_size)


def _kv_heads_indivisible(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    uneven = _indivisible(context.model.num_kv_heads, columns.tensor_parallel_size)
    if context.runtime is not Runtime.MEGATRON:
        return uneven
    # Megatron copies a key-value head to several ranks when there are more ranks than heads.
    refused: BoolColumn = uneven & (columns.tensor_parallel_size % max(context.model.num_kv_heads, 1) != 0)
    return refused


def _ffn_indivisible(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    model = context.model
    is_dense = model.num_experts == 0 or model.num_dense_layers > 0
    return _indivisible(model.ffn_hidden_size if is_dense else 0, columns.tensor_parallel_size)


def _expert_ffn_indivisible(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    width = context.model.expert_ffn_hidden_size if context.model.num_experts else 0
    return _indivisible(width, columns.tensor_parallel_size)


def _vocabulary_indivisible(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    if not _by_trainer(context):  # Megatron pads the vocabulary, FSDP shards it unevenly
        return everywhere(columns, False)
    return _indivisible(context.model.vocab_size, columns.tensor_parallel_size)


def _crosses_node(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    refused: BoolColumn = context.cluster.gpus_per_node % np.maximum(columns.tensor_parallel_size, 1) != 0
    return refused


def _no_layers(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    reason = pipeline_parallel_refusal(context) if _by_trainer(context) else ""
    return (columns.pipeline_parallel_size > 1) & bool(reason)


def _more_stages_than_layers(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    stages = columns.pipeline_parallel_size * columns.virtual_pipeline_size
    return (stages > context.model.num_layers) & (stages > 1) & (context.model.num_layers > 0)


def _interleaved(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    return (columns.virtual_pipeline_size > 1) & (context.runtime is Runtime.DEEPSPEED)


def _sequence_splits_heads(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    degree = columns.tensor_parallel_size * columns.sequence_parallel_size
    # Ring attention (Megatron, FSDP) splits only the sequence.
    return _indivisible(context.model.num_heads, degree) & (
        (columns.sequence_parallel_size > 1) & (context.runtime is Runtime.DEEPSPEED)
    )


def _sequence_indivisible(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    return _indivisible(context.training.seq_len, columns.sequence_parallel_size)


def _experts_indivisible(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    if context.model.num_experts == 0:
        return columns.expert_parallel_size > 1
    return _indivisible(context.model.num_experts, columns.expert_parallel_size)


def _experts_outside_data(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    ranks = columns.data_parallel_size * columns.sequence_parallel_size
    if context.runtime is Runtime.MEGATRON:  # folds expert parallelism over tensor-parallel ranks too
        ranks = ranks * columns.tensor_parallel_size
    refused: BoolColumn = ranks % np.maximum(columns.expert_parallel_size, 1) != 0
    return refused


LAYOUT_RULES: tuple[Rule, ...] = (
    Rule(
        name="world-uses-all-gpus",
        severity=Severity.ERROR,
        summary="data_parallel x tensor_parallel x pipeline_parallel size must be exactly the number of GPUs",
        source=_ARITHMETIC,
        axes=(
            "data_parallel_size",
            "tensor_parallel_size",
            "pipeline_parallel_size",
            "sequence_parallel_size",
            "nodes",
        ),
        mask=_leaves_gpus_over,
        sentence=_world_sentence,
    ),
    Rule(
        name="tensor-parallel-needs-plan",
        severity=Severity.ERROR,
        summary="only models whose layers the trainer knows how to split take tensor parallelism",
        source=_TRAINER,
        axes=("tensor_parallel_size",),
        mask=_no_tensor_plan,
        sentence=lambda c: f"{c.model.name} takes no tensor parallelism: {tensor_parallel_refusal(c)}",
    ),
    Rule(
        name="heads-divisible",
        severity=Severity.ERROR,
        summary="tensor_parallel_size must divide the attention heads: each rank computes whole heads",
        source=_TRAINER,
        axes=("tensor_parallel_size",),
        mask=_heads_indivisible,
        sentence=lambda c: (
            f"tensor_parallel_size must divide the {c.model.num_heads} attention heads of {c.model.name}"
        ),
    ),
    Rule(
        name="kv-heads-divisible",
        severity=Severity.ERROR,
        summary="tensor_parallel_size must divide the key-value heads: none is copied to several ranks",
        source=_TRAINER,
        axes=("tensor_parallel_size",),
        mask=_kv_heads_indivisible,
        sentence=lambda c: (
            f"tensor_parallel_size must divide the {c.model.num_kv_heads} key-value heads of {c.model.name}"
        ),
    ),
    Rule(
        name="ffn-divisible",
        severity=Severity.ERROR,
        summary="tensor_parallel_size must divide the feed-forward size: its columns are cut evenly",
        source=_TRAINER,
        axes=("tensor_parallel_size",),
        mask=_ffn_indivisible,
        sentence=lambda c: (
            f"tensor_parallel_size must divide the feed-forward size {c.model.ffn_hidden_size} of {c.model.name}"
        ),
    ),
    Rule(
        name="expert-ffn-divisible",
        severity=Severity.ERROR,
        summary="tensor_parallel_size must divide the experts' feed-forward size: every expert is cut evenly",
        source=_TRAINER,
        axes=("tensor_parallel_size",),
        mask=_expert_ffn_indivisible,
        sentence=lambda c: (
            f"tensor_parallel_size must divide the experts' feed-forward size {c.model.expert_ffn_hidden_size} "
            f"of {c.model.name}"
        ),
    ),
    Rule(
        name="vocabulary-divisible",
        severity=Severity.ERROR,
        summary="tensor_parallel_size must divide the vocabulary: embedding and head are cut evenly",
        source=_TRAINER,
        axes=("tensor_parallel_size",),
        mask=_vocabulary_indivisible,
        sentence=lambda c: (
            f"tensor_parallel_size must divide the vocabulary of {c.model.vocab_size} tokens of {c.model.name}"
        ),
    ),
    Rule(
        name="tensor-parallel-crosses-node",
        severity=Severity.WARNING,
        summary="tensor parallelism stays within a node: it talks twice per layer and direction, which only the links "
        "inside a node carry well, and published runs keep it there. A size that you list is considered",
        source="practice: Megatron-LM (arXiv 2104.04473, section 5.4, takeaway 1), Llama 3 (arXiv 2407.21783)",
        axes=("tensor_parallel_size",),
        mask=_crosses_node,
        sentence=lambda c: (
            f"tensor parallelism is kept inside a node of {c.cluster.gpus_per_node} GPUs, where the fast links are; "
            "list a larger tensor_parallel_size to have it considered"
        ),
    ),
    Rule(
        name="pipeline-needs-layers",
        severity=Severity.ERROR,
        summary="only a stack of layers that the trainer knows how to cut can be a pipeline",
        source=_TRAINER,
        axes=("pipeline_parallel_size",),
        mask=_no_layers,
        sentence=lambda c: f"{c.model.name} takes no pipeline: {pipeline_parallel_refusal(c)}",
    ),
    Rule(
        name="more-stages-than-layers",
        severity=Severity.ERROR,
        summary="every pipeline stage holds at least one layer; stages may hold different numbers of layers",
        source=_ARITHMETIC,
        axes=("pipeline_parallel_size", "virtual_pipeline_size"),
        mask=_more_stages_than_layers,
        sentence=lambda c: f"{c.model.name} has {c.model.num_layers} layers, so at most that many pipeline stages",
    ),
    Rule(
        name="no-interleaved-schedule",
        severity=Severity.ERROR,
        summary="DeepSpeed's pipeline runs one block of layers per stage: virtual_pipeline_size must be 1",
        source="DeepSpeed 0.19.8, runtime/pipe/schedule.py: TrainSchedule is 1F1B",
        axes=("virtual_pipeline_size",),
        mask=_interleaved,
    ),
    Rule(
        name="sequence-parallel-divides-heads",
        severity=Severity.ERROR,
        summary="sequence_parallel_size x tensor_parallel_size must divide the attention heads (Ulysses trades "
        "sequence for heads)",
        source="DeepSpeed 0.19.8, runtime/sequence_parallel/ulysses_sp.py",
        axes=("sequence_parallel_size", "tensor_parallel_size"),
        mask=_sequence_splits_heads,
        sentence=lambda c: (
            f"sequence_parallel_size x tensor_parallel_size must divide the {c.model.num_heads} attention heads "
            f"of {c.model.name}"
        ),
    ),
    Rule(
        name="sequence-parallel-divides-sequence",
        severity=Severity.ERROR,
        summary="sequence_parallel_size must divide seq_len: every rank holds an equal piece",
        source="DeepSpeed 0.19.8, runtime/sequence_parallel/ulysses_sp.py",
        axes=("sequence_parallel_size",),
        mask=_sequence_indivisible,
        sentence=lambda c: f"sequence_parallel_size must divide seq_len {c.training.seq_len}",
    ),
    Rule(
        name="experts-divisible",
        severity=Severity.ERROR,
        summary="expert_parallel_size must divide the number of experts, and a model without experts has none to split",
        source="DeepSpeed 0.19.8, utils/groups.py and module_inject/auto_ep_config.py",
        axes=("expert_parallel_size",),
        mask=_experts_indivisible,
        sentence=lambda c: (
            f"expert_parallel_size must divide the {c.model.num_experts} experts of {c.model.name}"
            if c.model.num_experts
            else f"{c.model.name} has no experts to split, so expert_parallel_size must be 1"
        ),
    ),
    Rule(
        name="expert-parallel-within-data-parallel",
        severity=Severity.ERROR,
        summary="expert_parallel_size must divide the data-parallel ranks, over which the experts are spread",
        source="DeepSpeed 0.19.8, utils/groups.py",
        axes=("expert_parallel_size", "data_parallel_size", "sequence_parallel_size", "tensor_parallel_size"),
        mask=_experts_outside_data,
    ),
)
