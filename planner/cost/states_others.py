"""What PyTorch FSDP and Megatron-Core keep on the device: the two runtimes that published figures are about."""

from __future__ import annotations

import numpy as np

from planner.cost.axes import Axes
from planner.cost.parameters import RankParameters
from planner.cost.profile import RuntimeProfile
from planner.cost.states import Held, States, shards_of


def fsdp_states(params: RankParameters, *, axes: Axes, moments: float) -> States:
    """FSDP2 (torch.distributed.fsdp.fully_shard) as torchtitan and torchtune use it.

    Stage 3: fp32 shards are the master weights, gradients reduced into fp32 shards, (8 + moments) T / n; gathered in 16
    bit: embedding and head (not resharded), the block in use and the next; a block's own gradients. Unsharded
    16-bit runs (torchtune on one device) keep no master weights and 16-bit moments: e (1 + 1) T + moments e / 4 T.
    """
    parts, element = shards_of(params, axes=axes), axes.element_bytes
    sharded = axes.zero_stage == 3
    weights = np.where(sharded, 4.0 * parts.weight_shard, element * parts.local)
    moment = np.where(sharded, moments * parts.shard, moments * element / 4.0 * parts.trained)
    moment = np.where(axes.zero_stage == 2, (moments + 4.0) * parts.shard, moment)
    gradients = np.select(
        [sharded, axes.zero_stage == 2], [4.0 * parts.shard, 4.0 * parts.shard], element * parts.trained
    )
    start = np.where(axes.accumulation > 1, gradients, 0.0)
    many = sharded & (axes.shards > 1)
    gathered = np.where(many, element * np.minimum(params.outside + 2.0 * params.layer, parts.local), 0.0)
    block = np.where(many, element * params.layer, 0.0)
    head = element * params.head
    nothing = np.zeros_like(weights)
    return States(
        loss=Held(parameters=weights, gradients=start, optimizer=moment, buffers=gathered),
        first_gradient=Held(parameters=weights, gradients=start + head, optimizer=moment, buffers=gathered + block),
        backward=Held(parameters=weights, gradients=gradients, optimizer=moment, buffers=gathered + block),
        step=Held(parameters=weights, gradients=gradients, optimizer=moment, buffers=nothing),
    )


def megatron_states(params: RankParameters, *, axes: Axes, profile: RuntimeProfile, moments: float) -> States:
    """Megatron-Core: 16-bit weights, one fp32 gradient buffer of the local model (DistributedDataParallel), fp32 master
    weights and moments whole or, with the distributed optimizer (ZeRO-1), / n. fp32: no second weights.

    e T + 4 T + (4 + moments) T / n. A weight's gradient exists once more, in 16 bit, before it is added: the head's, or
    that of gate and up together; plain runtimes keep all of these beside the fp32 ones.
    """
    parts, element = shards_of(params, axes=axes), axes.element_bytes
    weights = np.where(axes.zero_stage == 3, parts.weight_shard, parts.local) * element
    owned = np.where(axes.zero_stage >= 1, parts.shard, parts.trained)
    optimizer = owned * (moments + np.where(axes.is_fp32, 0.0, 4.0))
    optimizer = np.where(axes.offload_optimizer & (axes.zero_stage >= 1), 0.0, optimizer)
    weights = np.where(axes.offload_param & (axes.zero_stage == 3), 0.0, weights)
    gradients = 4.0 * np.where(axes.zero_stage >= 2, parts.shard, parts.trained)
    if profile.keeps_gradients_twice:
        gradients = gradients + np.where(axes.is_fp32, 0.0, element * parts.trained)
    gathered = np.where((axes.zero_stage == 3) & (axes.shards > 1), element * 2.0 * params.layer, 0.0)
    common = Held(parameters=weights, gradients=gradients, optimizer=optimizer, buffers=gathered)
    fresh = np.maximum(params.head, params.fused_mlp) * (0.0 if profile.keeps_gradients_twice else element)
    first = Held(parameters=weights, gradients=gradients, optimizer=optimizer, buffers=gathered + fresh)
    return States(loss=common, first_gradient=first, backward=first, step=common)
