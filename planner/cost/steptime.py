"""Time of one optimizer step: schedule, bubble, communication where it shows, update, offload, host.

Owns how the parts add up. Leaves single layers to `compute` and single collectives to `links`.
"""

from __future__ import annotations

import numpy as np

from planner.cost.axes import Axes
from planner.cost.compute import Work, recomputed_share, stage_work
from planner.cost.inputs import Inputs
from planner.cost.layer_tensors import modules_with_weights
from planner.cost.links import Group, Network, all_reduce_s, all_to_all_s, ring_gather_s, send_s
from planner.cost.parameters import FIRST, LAST, LATER_STAGES, SECOND, StageShape, rank_parameters, stage_shape
from planner.cost.profile import RuntimeProfile
from planner.spec._record import record
from planner.spec.columns import FloatColumn
from planner.spec.kinds import DeviceKind

_TENSORS_PER_LAYER = 10.0  # parameter tensors of a layer
_GATHERS_PER_LAYER = 8.0  # all-gathers and reduce-scatters of a sequence-split layer, forward and backward
_OVERLAP_POWER = 4.0
_GPUS_OF_A_SOCKET = 4.0  # in a node of eight GPUs and two processors
_HOST_UPDATE_BYTES_PER_S = 6.0e10  # DeepSpeed's CPU Adam is bound by host memory: per process, several share a node
_NVME_BYTES_PER_S = 3.0e9


# Of the reduction, what `overlap_comm` hides below stage 3: on one of DeepSpeed's own examples the step got 5 % shorter
# where the reduction took about 10 (pull request 4887).
_OVERLAPPED_REDUCTION = 0.5


@record
class StepColumns:
    """Seconds by part (`parts` sums to `total`) and model FLOP of the whole step on all ranks."""

    parts: dict[str, FloatColumn]
    total: FloatColumn
    model_flops: FloatColumn


@record
class StageTime:
    """Seconds of one micro-batch on a stage, forward and backward; `sends` to and from a neighbour."""

    compute: FloatColumn
    recompute: FloatColumn
    tensor: FloatColumn
    host: FloatColumn
    sends: FloatColumn

    @property
    def micro_batch(self) -> FloatColumn:
        return self.compute + self.recompute + self.tensor + self.host


def step_time(axes: Axes, *, inputs: Inputs) -> StepColumns:
    """Seconds of one optimizer step of every candidate.

    1F1B: the slowest stage works m micro-batches; the bubble is one micro-batch's pass through all others, / v with v
    chunks: (p - 1) / v micro-batches where stages are equal (Narayanan et al. 2021, arXiv 2104.04473, section 2.2).
    """
    slowest, passing_s = _stage_times(axes, inputs=inputs)
    m = axes.accumulation
    bubble = (passing_s - slowest.micro_batch) / axes.virtual
    hidden = inputs.profile.overlaps_sends & (axes.virtual > 1)
    rounds = np.where(hidden, 0.0, m) + axes.pipeline - 1
    pipeline = np.where(axes.pipeline > 1, rounds * axes.virtual * slowest.sends, 0.0)
    pipeline = pipeline + m * axes.virtual * _stalls_s(axes, inputs=inputs)
    whole = stage_shape(FIRST, axes=axes, model=inputs.model, by_cost=inputs.profile.balances_stages)
    data = data_parallel_s(whole, axes=axes, inputs=inputs, backward_s=m * (slowest.compute + slowest.recompute))
    optimizer, offload = update_s(whole, axes=axes, inputs=inputs)
    parts = {
        "compute": m * slowest.compute,
        "recompute": m * slowest.recompute,
        "tensor_parallel": m * slowest.tensor,
        "data_parallel": data,
        "pipeline": pipeline,
        "bubble": bubble,
        "optimizer": optimizer,
        "offload": offload,
        "host": m * slowest.host,
    }
    parts = {name: value * inputs.calibration.time_factor(name) for name, value in parts.items()}
    total = sum(parts.values(), start=np.zeros(len(axes)))
    return StepColumns(parts=parts, total=total, model_flops=_model_flops(axes, inputs=inputs))


def network_of(profile: RuntimeProfile) -> Network:
    """What the runtime's published runs showed of the network."""
    return Network(step_s=profile.network_step_s, ring_bytes_per_s=profile.network_ring_bytes_per_s)


def _stalls_s(axes: Axes, *, inputs: Inputs) -> FloatColumn:
    """Seconds per micro-batch that messages between stages stall on a large run's network: two messages with each
    neighbour, of which a stage has one in a pipeline of two and otherwise two."""
    profile = inputs.profile
    is_large = axes.world / np.maximum(axes.gpus_per_node, 1.0) >= max(profile.stalled_from_nodes, 1.0)
    return profile.stalled_send_s * 2.0 * np.minimum(axes.pipeline - 1.0, 2.0) * is_large


def _stage_times(axes: Axes, *, inputs: Inputs) -> tuple[StageTime, FloatColumn]:
    """The stage whose micro-batch takes longest, and the seconds of one micro-batch on all stages one after the other.

    The stages between first and last are alike but for their layers: the second's time by layers.
    """
    by_cost = inputs.profile.balances_stages
    shapes = [stage_shape(stage, axes=axes, model=inputs.model, by_cost=by_cost) for stage in (FIRST, *LATER_STAGES)]
    first, second, last = shapes
    slowest = stage_time(first, axes=axes, inputs=inputs)
    passing_s = slowest.micro_batch
    between = np.maximum(inputs.model.num_layers - first.layers - last.layers, 0.0)
    copies = {SECOND: between / np.maximum(second.layers, 1.0), LAST: np.ones(len(axes))}
    for stage in LATER_STAGES:
        shape = shapes[stage]
        if not shape.exists.any():
            continue
        time = stage_time(shape, axes=axes, inputs=inputs)
        passing_s = passing_s + np.where(shape.exists, time.micro_batch * copies[stage], 0.0)
        slower = shape.exists & (time.micro_batch > slowest.micro_batch)
        slowest = StageTime(
            **{
                name: np.where(slower, getattr(time, name), getattr(slowest, name))
                for name in ("compute", "recompute", "tensor", "host", "sends")
            }
        )
    return slowest, passing_s


def _model_flops(axes: Axes, *, inputs: Inputs) -> FloatColumn:
    """FLOP of forward and backward of the whole model on the whole global batch, recompute not counted."""
    whole = stage_shape(0, axes=axes, model=inputs.model, by_cost=inputs.profile.balances_stages)
    everything = StageShape(
        index=whole.index,
        layers=np.full(len(axes), float(inputs.model.num_layers)),
        encoder_layers=np.full(len(axes), float(inputs.model.num_encoder_layers)),
        has_embedding=np.ones(len(axes), dtype=np.bool_),
        has_head=np.ones(len(axes), dtype=np.bool_),
        exists=whole.exists,
        in_flight=whole.in_flight,
    )
    work = stage_work(everything, axes=axes, inputs=inputs)
    return work.flops * axes.tensor * axes.sequence * axes.data * axes.accumulation


def stage_time(shape: StageShape, *, axes: Axes, inputs: Inputs) -> StageTime:
    """One micro-batch on one stage: its work, its collectives, what it waits for the host, its sends."""
    work = stage_work(shape, axes=axes, inputs=inputs)
    compute = work.forward + work.backward
    tensor = _tensor_parallel(shape, axes=axes, work=work, inputs=inputs)
    host = _host_wait(shape, axes=axes, inputs=inputs, device_s=compute + work.recompute + tensor)
    ranks = axes.tensor * axes.sequence * axes.data
    crosses = ranks >= axes.gpus_per_node
    hidden_bytes = axes.tokens * inputs.model.hidden_size * axes.element_bytes / axes.tensor
    sends = 2.0 * send_s(hidden_bytes, crosses_nodes=crosses, cluster=inputs.cluster)
    return StageTime(compute=compute, recompute=work.recompute, tensor=tensor, host=host, sends=sends)


def _host_wait(shape: StageShape, *, axes: Axes, inputs: Inputs, device_s: FloatColumn) -> FloatColumn:
    """Seconds per micro-batch that the device waits for the host.

    Host seconds = layers x (layer + a third of it recomputed + tensor-parallel launches + ZeRO-3's hooks); what exceeds
    the device's work, collectives included, shows, and the fixed cost of a micro-batch always does. ZeRO-3's hooks
    fetch and release each module with weights forward and backward, and once more where it is recomputed: half more. A
    CPU device does its own launching.
    """
    profile = inputs.profile
    layers = shape.layers + shape.encoder_layers
    recomputed = recomputed_share(axes, layers=layers)
    per_layer = profile.layer_host_s * (1.0 + recomputed / 3.0) + (axes.tensor > 1) * profile.tensor_layer_host_s
    per_layer = per_layer + (axes.tensor > _GPUS_OF_A_SOCKET) * profile.wide_tensor_layer_host_s
    modules = modules_with_weights(inputs.model) * profile.gathered_module_host_s
    hooks = profile.gathered_layer_host_s + modules * (1.0 + recomputed / 2.0)
    per_layer = per_layer + np.where(axes.zero_stage == 3, hooks, 0.0)
    steps_s = _GATHERS_PER_LAYER * (axes.tensor - 1) * profile.pipelined_tensor_step_s
    is_both = (axes.pipeline > 1) & (axes.tensor > 1)
    per_layer = np.maximum(per_layer, np.where(is_both, profile.pipelined_tensor_layer_s + steps_s, 0.0))
    if inputs.cluster.gpu.device is DeviceKind.CPU:
        return np.full(len(axes), profile.micro_batch_host_s)
    host_s = layers * per_layer
    together = (host_s**_OVERLAP_POWER + device_s**_OVERLAP_POWER) ** (1.0 / _OVERLAP_POWER)
    return np.asarray(np.maximum(together - device_s, 0.0) + profile.micro_batch_host_s)


def _tensor_parallel(shape: StageShape, *, axes: Axes, work: Work, inputs: Inputs) -> FloatColumn:
    """Two all-reduces of tokens x h forward and two backward per layer (Shoeybi et al. 2019, arXiv 1909.08053), twice
    forward when recomputing; split by sequence (Korthikanti et al. 2022) each is a reduce-scatter and an all-gather.
    Ulysses' four all-to-alls and the experts' two, forward and backward."""
    model, cluster, network = inputs.model, inputs.cluster, network_of(inputs.profile)
    group = Group(size=axes.tensor, per_node=np.minimum(axes.tensor, axes.gpus_per_node))
    layers = shape.layers + shape.encoder_layers
    hidden_bytes = axes.tokens * model.hidden_size * axes.element_bytes
    recomputed = np.where(work.forward > 0, np.minimum(work.recompute / np.maximum(work.forward, 1e-12), 1.0), 0.0)
    reduced = all_reduce_s(hidden_bytes, group=group, cluster=cluster, network=network)
    split = 2.0 * ring_gather_s(hidden_bytes, group=group, cluster=cluster, network=network)
    once = np.where(axes.sequence_split, split, reduced)
    tensor = layers * (4.0 + 2.0 * recomputed) * once * (1.0 - inputs.profile.overlap_tensor_fraction)
    ulysses = Group(size=axes.sequence, per_node=np.minimum(axes.sequence, axes.gpus_per_node))
    heads_bytes = hidden_bytes / axes.tensor
    sequence = layers * (8.0 + 4.0 * recomputed) * all_to_all_s(heads_bytes, group=ulysses, cluster=cluster)
    experts = Group(size=axes.expert, per_node=np.clip(axes.gpus_per_node / axes.tensor, 1.0, axes.expert))
    moe_layers = layers * (model.num_moe_layers / model.num_layers if model.num_layers else 0.0)
    routed_bytes = hidden_bytes * model.num_experts_per_token
    expert = moe_layers * (4.0 + 2.0 * recomputed) * all_to_all_s(routed_bytes, group=experts, cluster=cluster)
    return tensor + sequence + expert


def data_parallel_s(shape: StageShape, *, axes: Axes, inputs: Inputs, backward_s: FloatColumn) -> FloatColumn:
    """Gradient reduction and parameter gathering of one stage where they show.

    Stage 0: all-reduce of e T once a step. Stages 1, 2: reduction of e T (once; stage 2: every micro-batch; DeepSpeed
    uses all-reduce over each bucket, `use_multi_rank_bucket_allreduce`), then all-gather of e P. Stage 3: two gathers
    and one reduce-scatter of e P every micro-batch, behind compute as far as it reaches.
    """
    profile, cluster = inputs.profile, inputs.cluster
    params = rank_parameters(shape, axes=axes, inputs=inputs)
    inner = axes.tensor
    group = Group(size=axes.shards, per_node=np.clip(axes.gpus_per_node / inner, 1.0, axes.shards))
    weights = (params.dense + params.expert) * axes.element_bytes
    gradients = (params.trained_dense + params.trained_expert) * np.where(
        profile.fp32_gradients, 4.0, axes.element_bytes
    )
    network = network_of(profile)
    reduce_s = all_reduce_s(gradients, group=group, cluster=cluster, network=network)
    gather_s = ring_gather_s(weights, group=group, cluster=cluster, network=network)
    scatter_s = ring_gather_s(gradients, group=group, cluster=cluster, network=network)
    m = axes.accumulation
    stage = axes.zero_stage
    sharded_reduce = scatter_s if profile.fp32_gradients else reduce_s
    shown = 1.0 - np.where(axes.overlap_on, _OVERLAPPED_REDUCTION, profile.overlap_gradients_fraction)
    below = np.select(
        [stage == 0, stage == 1],
        [reduce_s * shown, sharded_reduce * shown + gather_s],
        m * sharded_reduce * shown + gather_s,
    )
    third = m * (gather_s + _backward_gather_s(axes, weights=weights, inputs=inputs, whole_s=gather_s) + scatter_s)
    overlaps = np.where(axes.overlap_off, 0.0, profile.overlap_gather_fraction)
    hidden = np.minimum(third, backward_s) * overlaps
    return np.where(stage == 3, third - hidden, below)


def _backward_gather_s(axes: Axes, *, weights: FloatColumn, inputs: Inputs, whole_s: FloatColumn) -> FloatColumn:
    """The gather of the backward pass: over all shards, or over the few ranks that share ZeRO++'s second copy."""
    if not (axes.secondary > 1).any():
        return whole_s
    group = Group(size=axes.secondary, per_node=np.minimum(axes.secondary, axes.gpus_per_node))
    near_s = ring_gather_s(weights, group=group, cluster=inputs.cluster, network=network_of(inputs.profile))
    return np.where(axes.secondary > 1, near_s, whole_s)


def update_s(shape: StageShape, *, axes: Axes, inputs: Inputs) -> tuple[FloatColumn, FloatColumn]:
    """Optimizer seconds of one stage on the device, and on the host with its transfers.

    Device: states read and written once and the copies around them: (2 (4 + moments) + 4 + 2 e + copies) T / n bytes,
    and the host's loop over parameter tensors. Host: the same on host memory, gradients and weights over its link.
    """
    gpu = inputs.cluster.gpu
    params = rank_parameters(shape, axes=axes, inputs=inputs)
    trained = params.trained_dense + params.trained_expert
    shard = params.trained_dense / axes.shards + params.trained_expert / axes.expert_shards
    owned = np.where(axes.zero_stage >= 1, shard, trained)
    traffic = owned * (2.0 * (4.0 + inputs.moments) + 4.0 + 2.0 * axes.element_bytes + inputs.profile.update_copy_bytes)
    offloaded = axes.offload_optimizer & (axes.zero_stage >= 1)
    tensors = (shape.layers + shape.encoder_layers) * _TENSORS_PER_LAYER + 3.0
    loop_s = tensors * inputs.profile.tensor_update_host_s
    device_s = np.where(offloaded, 0.0, traffic / gpu.memory_bandwidth_bytes_per_s) + loop_s
    host_link = gpu.host_link_bytes_per_s or 2.5e10
    moved = owned * axes.element_bytes * (1.0 + axes.accumulation)
    host_s = traffic / (_HOST_UPDATE_BYTES_PER_S / np.maximum(axes.gpus_per_node, 1.0) * 2.0) + moved / host_link
    nvme_s = owned * 2.0 * (4.0 + inputs.moments) / (_NVME_BYTES_PER_S / axes.gpus_per_node)
    offload_s = np.where(offloaded, host_s + np.where(axes.offload_optimizer_nvme, nvme_s, 0.0), 0.0)
    weights = (params.dense + params.expert) * axes.element_bytes
    streamed = np.where(
        axes.offload_param & (axes.zero_stage == 3), 2.0 * axes.accumulation * weights / axes.shards / host_link, 0.0
    )
    return device_s, offload_s + streamed
