"""Model states and ZeRO's buffers on one rank, at each moment that can be the peak.

Owns what DeepSpeed (and the two other profiles) keep of parameters, gradients, optimizer states and buffers. Leaves
activations to `activations` and the choice of the peak to `memory`.

Symbols: P parameters on the rank after tensor, pipeline and expert splitting; T of them trained; n ranks that ZeRO
shards over; e bytes of an element; B bucket elements; m micro-batches accumulated. Read in DeepSpeed 0.19.8:
`runtime/zero/stage_1_and_2.py`, `stage3.py`, `partitioned_param_coordinator.py`, `runtime/bf16_optimizer.py`,
`runtime/fp16/unfused_optimizer.py`, `runtime/engine.py`.
"""

from __future__ import annotations

import numpy as np

from planner.cost.axes import Axes
from planner.cost.parameters import RankParameters
from planner.cost.profile import RuntimeProfile
from planner.spec._record import record
from planner.spec.columns import PRECISIONS, BoolColumn, FloatColumn
from planner.spec.kinds import OptimizerName, Precision, Runtime

# Optimizer state bytes per trained parameter beside the master weights: fp32 moments (AdamW two, Lion one), two 8-bit
# moments with their block scales, SGD's momentum buffer when there is momentum. Muon: one fp32 momentum per matrix
# element; embeddings, norms and head are Adam's (counted by `moment_bytes`).
_MOMENT_BYTES = {
    OptimizerName.ADAMW: 8.0,
    OptimizerName.ADAM8BIT: 2.1,
    OptimizerName.SGD: 0.0,
    OptimizerName.LION: 4.0,
    OptimizerName.MUON: 4.0,
}

_BF16 = PRECISIONS.index(Precision.BF16)


def moment_bytes(name: OptimizerName, *, momentum: float = 0.0, vector_share: float = 0.0) -> float:
    """Bytes of optimizer state per trained parameter. `vector_share`: share of parameters that Muon leaves to Adam."""
    if name is OptimizerName.SGD:
        return 4.0 if momentum > 0 else 0.0
    if name is OptimizerName.MUON:
        return 4.0 + 4.0 * vector_share
    return _MOMENT_BYTES[name]


@record
class Held:
    """Bytes on the device at one moment, by kind."""

    parameters: FloatColumn
    gradients: FloatColumn
    optimizer: FloatColumn
    buffers: FloatColumn


@record
class States:
    """The moments of one optimizer step. `loss`: start of the last micro-batch's backward pass, all its activations
    alive; `backward`: its end, all gradients alive; `reduce`: gradients being reduced; `step`: the update."""

    loss: Held
    first_hook: Held  # just after the loss, when the first gradient has made ZeRO-1/2's bucket
    backward: Held
    step: Held
    gathered: FloatColumn  # ZeRO-3's live full parameters, part of the buffers above


def rank_states(params: RankParameters, *, axes: Axes, profile: RuntimeProfile, moments: float) -> States:
    """Bytes of states and buffers at each moment.

    Parameters: e P (stages 0-2), e P / n (stage 3). Master weights 4 T / n (stage 0: 4 T; fp32 at stage 0: none) and
    moments likewise, when not offloaded. See `_gradients`, `_buffers` and `_step` for the rest.
    """
    element, stage = axes.element_bytes, axes.zero_stage
    local = params.dense + params.expert
    trained = params.trained_dense + params.trained_expert
    shard = params.trained_dense / axes.shards + params.trained_expert / axes.expert_shards
    weight_shard = params.dense / axes.shards + params.expert / axes.expert_shards
    sharded = (stage >= 1) | _bf16_pipeline(axes, profile=profile)
    owned = np.where(sharded, shard, trained)
    on_device = np.where(axes.offload_optimizer & (stage >= 1), 0.0, 1.0)
    has_master = profile.master_weights & (~axes.is_fp32 | ((stage >= 1) & (profile.runtime is Runtime.DEEPSPEED)))
    optimizer = owned * on_device * (moments + 4.0 * has_master)
    weights = np.where(stage == 3, weight_shard, local) * element
    if profile.runtime is Runtime.FSDP:
        weights = np.where(stage == 3, weight_shard * 4.0, local * element)
        optimizer = (
            owned * on_device * (moments + np.where((stage == 3) | axes.is_fp32, 0.0, 4.0 * profile.master_weights))
        )
    weights = np.where(axes.offload_param & (stage == 3), 0.0, weights)
    gathered = _gathered(local, axes=axes, profile=profile)
    bucket = _bucket_bytes(local, axes=axes, profile=profile)
    start, end = _gradients(trained, shard=shard, axes=axes, profile=profile)
    flat_copy = np.where(axes.shards > 1, bucket, 0.0)
    held_bucket = np.where((stage == 3) | ((stage == 1) & (axes.accumulation > 1)), bucket, 0.0)
    made_bucket = np.where(stage >= 1, bucket, 0.0)
    piped = np.where((stage == 1) & (axes.pipeline > 1), bucket, 0.0)
    step_gradients, step_buffers = _step(trained, shard=shard, axes=axes, profile=profile)
    held = np.where(stage == 3, bucket, 0.0)
    return States(
        loss=Held(parameters=weights, gradients=start, optimizer=optimizer, buffers=held_bucket + gathered),
        first_hook=Held(parameters=weights, gradients=start, optimizer=optimizer, buffers=made_bucket + gathered),
        backward=Held(
            parameters=weights, gradients=end, optimizer=optimizer, buffers=made_bucket + flat_copy + piped + gathered
        ),
        step=Held(parameters=weights, gradients=step_gradients, optimizer=optimizer, buffers=step_buffers + held),
        gathered=gathered,
    )


def _bf16_pipeline(axes: Axes, *, profile: RuntimeProfile) -> BoolColumn:
    """DeepSpeed gives pipelines at stage 0 in bf16 its BF16_Optimizer, which shards like stage 1 (engine.py,
    `_do_optimizer_sanity_check`). fp16 there keeps everything whole."""
    found: BoolColumn = (axes.precision == _BF16) & (axes.pipeline > 1) & (axes.zero_stage == 0)
    return found & (profile.runtime is Runtime.DEEPSPEED)


def _gradients(
    trained: FloatColumn, *, shard: FloatColumn, axes: Axes, profile: RuntimeProfile
) -> tuple[FloatColumn, FloatColumn]:
    """Gradient bytes when the last micro-batch's backward starts, and when it ends.

    Stages 0, 1: e T accumulate in `.grad` (absent at the start when m = 1). Stage 1 then copies its own part (e T / n)
    out of the bucket. Stage 2: each micro-batch fills a new e T / n (`grads_in_partition`) while the sum of the earlier
    ones is held: 0 or e T / n, then once more. Stage 3: e T / n, always (`grad_partitions_flat_buffer`).
    Pipelines at stage 0 in bf16 keep a second e T (BF16_Optimizer). Megatron: 4 T in one buffer, always.
    """
    element, stage = axes.element_bytes, axes.zero_stage
    accumulates = axes.accumulation > 1
    if profile.fp32_gradients:
        whole = 4.0 * trained
        return whole, whole
    if profile.runtime is Runtime.FSDP:
        kept = np.where(stage == 3, 4.0 * shard, element * trained)
        return np.where(accumulates, kept, 0.0), kept
    whole, part = element * trained, element * shard
    second = np.where(_bf16_pipeline(axes, profile=profile), whole, 0.0)
    offloaded = axes.offload_optimizer & (stage >= 2)
    held_part = np.where(offloaded, 0.0, part)
    start = np.select(
        [stage <= 1, stage == 2],
        [np.where(accumulates, whole, 0.0) + second, np.where(accumulates, held_part, 0.0)],
        held_part,
    )
    end = np.select(
        [stage == 0, stage == 1, stage == 2],
        [whole + second, whole + np.where(axes.offload_optimizer, 0.0, part), held_part * (1.0 + accumulates)],
        held_part,
    )
    return start, end


def _bucket_bytes(local: FloatColumn, *, axes: Axes, profile: RuntimeProfile) -> FloatColumn:
    """One contiguous gradient bucket: reduce_bucket_size elements, allocated whole (`setup_buckets`)."""
    if not profile.bucket_elements:
        return np.zeros_like(local)
    elements = np.full_like(local, profile.bucket_elements)
    capped = np.minimum(elements, local) if profile.buckets_capped_to_parameters else elements
    return np.where(axes.zero_stage == 0, np.minimum(elements, local), capped) * axes.element_bytes


def _gathered(local: FloatColumn, *, axes: Axes, profile: RuntimeProfile) -> FloatColumn:
    """Full parameters alive in stage 3: prefetching runs ahead of releasing until stage3_max_live_parameters is
    reached, and overshoots by half a prefetch bucket on average; never more than the rank's own parameters.

    FSDP: the block in use and the one gathered ahead, approximated by two layers' worth of an even split.
    """
    if profile.live_elements_limit:
        limit = profile.live_elements_limit + 0.5 * profile.prefetch_elements
        live = np.minimum(local, limit)
    else:
        live = local * 0.08
    many = axes.shards > 1
    return np.where((axes.zero_stage == 3) & (many | axes.offload_param), live * axes.element_bytes, 0.0)


def _step(
    trained: FloatColumn, *, shard: FloatColumn, axes: Axes, profile: RuntimeProfile
) -> tuple[FloatColumn, FloatColumn]:
    """Gradients and temporaries during the update.

    Stages 1, 2 (`step`): the averaged list e T / n and its flattened copy e T / n are both alive when the fp32 copy
    4 T / n is made (fp32: no such copy). Stage 3: the same per sub-group of at most 1e9 elements, beside e T / n.
    Stage 0: e T and an fp32 copy per parameter, 4 T (`FP16_UnfusedOptimizer`; none in fp32).
    """
    element, stage = axes.element_bytes, axes.zero_stage
    if profile.fp32_gradients:
        return 4.0 * trained, np.zeros_like(trained)
    if profile.runtime is Runtime.FSDP:
        return np.where(stage == 3, 4.0 * shard, element * trained), np.zeros_like(trained)
    upcast = np.where(axes.is_fp32, 0.0, 4.0)
    group = np.minimum(shard, _SUB_GROUP_ELEMENTS)
    on_device = np.where(axes.offload_optimizer & (stage >= 1), 0.0, 1.0)
    gradients = np.select(
        [stage == 0, stage <= 2],
        [
            element * trained + np.where(_bf16_pipeline(axes, profile=profile), element * trained, 0.0),
            element * shard * on_device,
        ],
        element * shard * on_device,
    )
    buffers = np.select(
        [stage == 0, stage <= 2],
        [
            upcast * np.where(_bf16_pipeline(axes, profile=profile), shard, trained),
            (element + upcast) * shard * on_device,
        ],
        (element + upcast) * group * on_device,
    )
    return gradients, buffers


_SUB_GROUP_ELEMENTS = 1.0e9  # sub_group_size, DeepSpeed 0.19.8, zero/config.py
