"""Parameters that one rank holds, by pipeline stage.

Owns how tensor, expert and pipeline parallelism divide the weights, and which of them are trained. Leaves ZeRO to
`states`.
"""

from __future__ import annotations

import numpy as np

from planner.cost.axes import Axes
from planner.cost.inputs import Inputs
from planner.cost.layer_tensors import has_fused_products
from planner.spec._record import record
from planner.spec.columns import BoolColumn, FloatColumn
from planner.spec.model import ModelSpec, TracedModule

FIRST, SECOND, LAST = 0, 1, 2  # the stages that can be the worst (see the module `memory`)
LATER_STAGES = (SECOND, LAST)


@record
class StageShape:
    """One representative stage of every candidate. `exists` is false where it would repeat another."""

    index: FloatColumn
    layers: FloatColumn
    encoder_layers: FloatColumn
    has_embedding: BoolColumn
    has_head: BoolColumn
    exists: BoolColumn
    in_flight: FloatColumn  # micro-batches whose activations live together, as a share of a whole stage


def stage_shape(stage: int, *, axes: Axes, model: ModelSpec, by_cost: bool = False) -> StageShape:
    """Layers and micro-batches in flight of the first, second or last stage.

    In flight under 1F1B: min(m, p - i); interleaved with v chunks: min(m, (2 (p - 1 - i) + (v - 1) p + 1) / v)
    (Narayanan et al. 2021, arXiv 2104.04473, section 2.2; Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.3).
    `by_cost`: see `_layers_by_cost`; otherwise layers are shared out by number (`partition_layers`).
    """
    pipeline = axes.pipeline
    first, second, last = _layers_by_cost(axes, model=model) if by_cost else _layers_by_number(axes, model=model)
    if stage == FIRST:
        index, layers, exists = np.zeros_like(pipeline), first, np.ones(len(axes), dtype=np.bool_)
    elif stage == SECOND:
        index, layers, exists = np.ones_like(pipeline), second, pipeline > 2
    else:
        index, layers, exists = pipeline - 1, last, pipeline > 1
    plain = pipeline - index
    interleaved = (2.0 * (pipeline - 1 - index) + (axes.virtual - 1) * pipeline + 1) / axes.virtual
    in_flight = np.where(axes.virtual > 1, interleaved, plain)
    in_flight = np.where(pipeline > 1, np.minimum(in_flight, axes.accumulation), 1.0)
    return StageShape(
        index=index,
        layers=layers,
        encoder_layers=model.num_encoder_layers / pipeline,  # every stage its share of both stacks
        has_embedding=index == 0,
        has_head=index == pipeline - 1,
        exists=exists,
        in_flight=in_flight,
    )


def _layers_by_number(axes: Axes, *, model: ModelSpec) -> tuple[FloatColumn, FloatColumn, FloatColumn]:
    """base = L div p; the L mod p remaining layers go to the stages after the first."""
    base = np.floor(model.num_layers / axes.pipeline)
    extra = model.num_layers - base * axes.pipeline
    return base, base + (extra >= 1), base + ((extra >= axes.pipeline - 1) & (extra > 0))


def _layers_by_cost(axes: Axes, *, model: ModelSpec) -> tuple[FloatColumn, FloatColumn, FloatColumn]:
    """Blocks in order until a stage's share of all weights in products, the head's among them, is passed: the block
    that passes it stays, so that the first stage has the most layers (nanotron, models/base.py, `build_model`)."""
    counts, whole = model.counts, float(model.num_layers)
    layer = max(counts.attention_per_layer + counts.mlp_per_layer, 1)
    share = (whole + model.hidden_size * model.vocab_size / layer) / axes.pipeline  # in layers
    first, second = (np.minimum(np.floor(stages * share) + 1.0, whole) for stages in (1.0, 2.0))
    before_last = np.minimum(np.floor((axes.pipeline - 1.0) * share) + 1.0, whole)
    return np.where(axes.pipeline > 1, first, whole), second - first, whole - before_last


@record
class RankParameters:
    """Elements on one rank of one stage. `dense` and `expert` are divided by ZeRO over different groups."""

    dense: FloatColumn
    expert: FloatColumn
    trained_dense: FloatColumn
    trained_expert: FloatColumn
    layer: FloatColumn  # one layer of this stage
    head: FloatColumn  # the head's weight, where the stage has it
    largest: FloatColumn  # one parameter tensor
    fused_mlp: FloatColumn  # the MLP's first product, gate and up in one
    outside: FloatColumn  # embedding, head and final norm, where the stage has them


def rank_parameters(shape: StageShape, *, axes: Axes, inputs: Inputs) -> RankParameters:
    """Elements that one rank of this stage holds.

    Layer weights / tensor (keys and values at most over their heads); norms and router whole; routed experts also
    / expert; the embedding whole unless the runtime splits the vocabulary; the head always split, except when tied
    to a whole embedding. A tied embedding lives on the first and on the last stage. Trained: all, a share spread
    evenly, or only low-rank adapters.
    """
    model = inputs.model
    if model.traced is not None:
        return _traced_parameters(axes, traced=model.traced, share=inputs.training.trainable_fraction)
    counts, tensor = model.counts, axes.tensor
    moe_share = model.num_moe_layers / model.num_layers if model.num_layers else 0.0
    dense_layer = _dense_layer(axes, model=model, moe_share=moe_share)
    expert_layer = moe_share * model.num_experts * counts.expert / tensor / axes.expert
    embedding = counts.embedding / (tensor if inputs.profile.vocabulary_parallel else 1.0)
    tied_copy = np.where(axes.pipeline > 1, embedding, 0.0)
    head = (counts.head / tensor if counts.head else tied_copy) * shape.has_head
    outside = shape.has_embedding * (embedding + counts.position_embedding) + head
    outside = outside + shape.has_head * (counts.final_norm + counts.other)
    encoder_layer = counts.encoder / max(model.num_encoder_layers, 1) / tensor
    dense = shape.layers * dense_layer + shape.encoder_layers * encoder_layer + outside
    expert = shape.layers * expert_layer
    adapters = shape.layers * _lora_elements(model, rank=inputs.training.lora_rank) / tensor
    share = 0.0 if inputs.training.lora_rank else inputs.training.trainable_fraction
    return RankParameters(
        dense=dense + adapters,
        expert=expert,
        trained_dense=dense * share + adapters,
        trained_expert=expert * share,
        layer=dense_layer + expert_layer,
        head=head * share,
        largest=np.maximum(embedding * shape.has_embedding, np.maximum(head, _largest_layer_tensor(axes, model=model))),
        fused_mlp=(2.0 if model.gated_mlp else 1.0) * share * model.hidden_size * model.ffn_hidden_size / tensor,
        outside=outside,
    )


def _traced_parameters(axes: Axes, *, traced: TracedModule, share: float) -> RankParameters:
    """A traced module is never split but by ZeRO; ZeRO-3 gathers it in pieces of its largest parameter."""
    whole = np.full(len(axes), float(traced.num_parameters))
    none = np.zeros_like(whole)
    largest = np.full_like(whole, float(traced.largest_parameter))
    return RankParameters(
        dense=whole,
        expert=none,
        trained_dense=whole * share,
        trained_expert=none,
        layer=largest,
        head=none,
        largest=largest,
        fused_mlp=none,
        outside=none,
    )


def _dense_layer(axes: Axes, *, model: ModelSpec, moe_share: float) -> FloatColumn:
    """Elements of an average layer without its routed experts: keys and values split at most over their heads."""
    counts, tensor = model.counts, axes.tensor
    kv_share = _kv_share(model)
    kv_split = np.minimum(tensor, max(model.num_kv_heads, 1))
    attention = counts.attention_per_layer * ((1.0 - kv_share) / tensor + kv_share / kv_split)
    mlp = ((1.0 - moe_share) * counts.mlp_per_layer + moe_share * counts.shared_experts_per_layer) / tensor
    return attention + mlp + counts.norm_per_layer + moe_share * counts.router_per_layer


def _largest_layer_tensor(axes: Axes, *, model: ModelSpec) -> FloatColumn:
    """Elements of a layer's largest weight: one MLP matrix, or the tensor of all experts' fused gate-up matrices."""
    dense = float(model.hidden_size * model.ffn_hidden_size)
    stacked = 2.0 * model.num_experts * model.hidden_size * model.expert_ffn_hidden_size / axes.expert
    return np.maximum(dense, stacked) / axes.tensor


def _kv_share(model: ModelSpec) -> float:
    """Share of the attention weights that belongs to keys and values."""
    if model.kv_lora_rank or not model.num_heads:
        return 0.0
    return model.num_kv_heads / (model.num_heads + model.num_kv_heads)


def _lora_elements(model: ModelSpec, *, rank: int) -> float:
    """r (in + out) for each projection of a layer's attention (Hu et al. 2021, arXiv 2106.09685), which is where the
    reference trainer has them (`runtime/lora.py`); one for query, key and value where they are one product."""
    hidden, query = model.hidden_size, model.num_heads * model.head_size
    kv = model.num_kv_heads * model.head_size
    if has_fused_products(model):
        return float(rank * (hidden + query + 2 * kv + query + hidden))
    return float(rank * (2 * (hidden + query) + 2 * (hidden + kv)))
