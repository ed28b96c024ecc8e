"""What DeepSpeed keeps on the device, as read in its source.

Symbols: P parameters on the rank after tensor, pipeline and expert splitting; T of them trained; n ranks that ZeRO
shards over; e bytes of an element; B bucket elements; m micro-batches accumulated. Read in DeepSpeed 0.19.8:
`runtime/zero/stage_1_and_2.py`, `stage3.py`, `partitioned_param_coordinator.py`, `runtime/bf16_optimizer.py`,
`runtime/fp16/unfused_optimizer.py`, `runtime/engine.py`; confirmed by the H200 rows within 0.7 %.
"""

from __future__ import annotations

import numpy as np

from planner.cost.axes import Axes
from planner.cost.parameters import RankParameters
from planner.cost.profile import RuntimeProfile
from planner.cost.states import Held, Shards, States, shards_of
from planner.spec.columns import PRECISIONS, BoolColumn, FloatColumn
from planner.spec.kinds import Precision

_SUB_GROUP_ELEMENTS = 1.0e9  # sub_group_size, zero/config.py
_BF16 = PRECISIONS.index(Precision.BF16)


def deepspeed_states(params: RankParameters, *, axes: Axes, profile: RuntimeProfile, moments: float) -> States:
    """Bytes of states and buffers at each moment.

    Parameters: e P, stage 3: e P / n. Master weights and moments: (4 + moments) T / n, stage 0: T; in fp32 the moments
    only. Gradients, buffers and the update's temporaries: see the functions below.
    """
    parts, stage = shards_of(params, axes=axes), axes.zero_stage
    weights = np.where(stage == 3, parts.weight_shard, parts.local) * axes.element_bytes
    weights = np.where(axes.offload_param & (stage == 3), 0.0, weights)
    weights = weights + _secondary_copy(parts, axes=axes)
    optimizer = _optimizer_bytes(parts, axes=axes, moments=moments)
    start, end, partition = _gradient_bytes(parts, axes=axes)
    update_gradients, update_copies = _update(parts, axes=axes)
    bucket = _bucket_bytes(parts.local, axes=axes, profile=profile)
    gathered = _gathered(parts, axes=axes, profile=profile)
    always = _standing_buffers(params, parts=parts, axes=axes) + np.where(stage == 3, bucket, 0.0)
    early = np.where((stage == 1) & (axes.accumulation > 1), bucket, 0.0)  # kept from an earlier micro-batch
    made = np.where((stage == 1) | (stage == 2), bucket, 0.0)  # `setup_buckets`, at the first gradient
    fresh = params.head * axes.element_bytes  # the head's gradient, before it is accumulated or copied away
    flat_copy = np.where(axes.shards > 1, bucket, 0.0)  # `allreduce_bucket` and `reduce_scatter_coalesced` copy it
    piped = np.where((stage == 1) & (axes.pipeline > 1), bucket, 0.0)  # `reduce_gradients` adds one for pipelines

    def held(gradients: FloatColumn, buffers: FloatColumn) -> Held:
        return Held(parameters=weights, gradients=gradients, optimizer=optimizer, buffers=always + buffers)

    return States(
        loss=held(start, gathered + early),
        first_gradient=held(start, gathered + made + fresh),
        backward=held(end, gathered + made + flat_copy + piped + partition),
        step=held(update_gradients, update_copies),
    )


def _secondary_copy(parts: Shards, *, axes: Axes) -> FloatColumn:
    """ZeRO++'s hpZ keeps a second copy of the parameters, split over the ranks of a small group: e P / group
    (partition_parameters.py, `ds_secondary_tensor`)."""
    kept = parts.local * axes.element_bytes / axes.secondary
    return np.where((axes.zero_stage == 3) & (axes.secondary > 1), kept, 0.0)


def _accumulated_bytes(axes: Axes) -> FloatColumn:
    """Of a gradient as it accumulates: of the weights' type, or fp32 where that is asked for."""
    return np.where(axes.fp32_accumulation, 4.0, axes.element_bytes)


def _bf16_pipeline(axes: Axes) -> BoolColumn:
    """Pipelines at stage 0 in bf16 get BF16_Optimizer, which shards like stage 1 and keeps a second set of gradients
    (engine.py, `_do_optimizer_sanity_check`); fp16 there keeps everything whole."""
    found: BoolColumn = (axes.precision == _BF16) & (axes.pipeline > 1) & (axes.zero_stage == 0)
    return found


def _optimizer_bytes(parts: Shards, *, axes: Axes, moments: float) -> FloatColumn:
    sharded = (axes.zero_stage >= 1) | _bf16_pipeline(axes)
    offloaded = axes.offload_optimizer & (axes.zero_stage >= 1)
    owned = np.where(sharded, parts.shard, parts.trained)
    return np.where(offloaded, 0.0, owned * (moments + np.where(axes.is_fp32, 0.0, 4.0)))


def _standing_buffers(params: RankParameters, *, parts: Shards, axes: Axes) -> FloatColumn:
    """Buffers that ZeRO keeps from initialisation on.

    In fp32 its own clone of the partition of the weights (`single_partition_of_fp32_groups`): 4 T / n. With optimizer
    offload at stages 1 and 2 a staging copy of the largest parameter (`temp_grad_buffer_for_gpu_offload`).
    """
    stage = axes.zero_stage
    clones = axes.is_fp32 & (stage >= 1) & ~axes.offload_optimizer
    stages_gradients = axes.offload_optimizer & ((stage == 1) | (stage == 2))
    return np.where(clones, 4.0 * parts.shard, 0.0) + np.where(
        stages_gradients, params.largest * axes.element_bytes, 0.0
    )


def _gradient_bytes(parts: Shards, *, axes: Axes) -> tuple[FloatColumn, FloatColumn, FloatColumn]:
    """Gradient bytes when the last micro-batch's backward starts, when it ends, and of the partition's copy by then.

    Stages 0, 1: e T accumulate in `.grad` (absent at the start when m = 1). Stage 1 then copies its own part (e T / n)
    out of the bucket. Stage 2: each micro-batch fills a new e T / n (`grads_in_partition`) while the sum of the earlier
    ones is held. Stage 3: e T / n, always (`grad_partitions_flat_buffer`). Where fp32 is asked for, stage 1 keeps 4 T
    beside them (`BF16_Optimizer`, `param.grad_accum`), and the shards of stages 2 and 3 are fp32.
    """
    stage, accumulates = axes.zero_stage, axes.accumulation > 1
    whole = axes.element_bytes * parts.trained
    second = np.where(_bf16_pipeline(axes), whole, 0.0)
    second = second + np.where((stage == 1) & axes.fp32_accumulation, 4.0 * parts.trained, 0.0)
    own = _accumulated_bytes(axes) * parts.shard
    part = np.where(axes.offload_optimizer & (stage >= 1), 0.0, own)
    start = np.select(
        [stage <= 1, stage == 2], [np.where(accumulates, whole, 0.0) + second, np.where(accumulates, part, 0.0)], part
    )
    end = np.where(stage <= 1, whole + second, part)
    copied = (stage == 1) | ((stage == 2) & accumulates)
    return start, end, np.where(copied, part, 0.0)


def _bucket_bytes(local: FloatColumn, *, axes: Axes, profile: RuntimeProfile) -> FloatColumn:
    """One contiguous gradient bucket: reduce_bucket_size elements, allocated whole (`setup_buckets`); at stage 0 the
    flattened copy that is reduced, never more than the gradients."""
    elements = np.where(axes.bucket_elements > 0, axes.bucket_elements, profile.bucket_elements)
    bounded = np.minimum(elements, local)
    whole = bounded if profile.buckets_capped_to_parameters else elements
    buckets = np.where(axes.overlap_on, 2.0, 1.0)  # one fills while the other is reduced (`ipg_buffer`)
    return np.where(axes.zero_stage == 0, bounded, whole * buckets) * axes.element_bytes


def _gathered(parts: Shards, *, axes: Axes, profile: RuntimeProfile) -> FloatColumn:
    """Full parameters alive in stage 3: prefetching runs ahead of releasing until stage3_max_live_parameters is
    reached, and overshoots by half a prefetch bucket on average; never more than the rank's own parameters."""
    limit = np.where(axes.live_elements > 0, axes.live_elements, profile.live_elements_limit)
    live = np.minimum(parts.local, limit + 0.5 * profile.prefetch_elements)
    gathers = (axes.zero_stage == 3) & ((axes.shards > 1) | axes.offload_param)
    return np.where(gathers, live * axes.element_bytes, 0.0)


def _update(parts: Shards, *, axes: Axes) -> tuple[FloatColumn, FloatColumn]:
    """Gradients and temporaries during the update.

    Stages 1, 2 (`step`): the averaged list e T / n and its flattened copy e T / n are both alive when the fp32 copy
    4 T / n is made (fp32: no such copy). Stage 3: the same per sub-group of at most 1e9 elements, beside e T / n.
    Stage 0: e T and an fp32 copy per parameter, 4 T (`FP16_UnfusedOptimizer`; none in fp32). Offloaded: nothing.
    """
    element, stage = axes.element_bytes, axes.zero_stage
    upcast = np.where(axes.is_fp32, 0.0, 4.0)
    on_device = np.where(axes.offload_optimizer & (stage >= 1), 0.0, 1.0)
    piped = _bf16_pipeline(axes)
    whole = element * parts.trained * (1.0 + piped)
    group = np.minimum(parts.shard, np.where(stage == 3, _SUB_GROUP_ELEMENTS, np.inf))
    gradients = np.where(stage == 0, whole, element * parts.shard * on_device)
    temporaries = (element + upcast) * group * on_device
    unfused = upcast * np.where(piped, parts.shard, parts.trained)
    return gradients, np.where(stage == 0, unfused, temporaries)
