"""Device memory as the driver sees it, its interval, host memory and disk.

Owns what comes on top of the allocated peak (`peak`): the allocator's cache, the CUDA context, communication buffers;
the interval that `fits` uses; and what offloading puts on the host.
"""

from __future__ import annotations

import numpy as np

from planner.cost.activations import chunk_tokens
from planner.cost.axes import Axes
from planner.cost.inputs import Inputs
from planner.cost.interval import high_bytes, low_bytes
from planner.cost.parameters import FIRST, RankParameters, StageShape, rank_parameters, stage_shape
from planner.cost.peak import Peak, worst_peak
from planner.cost.states import shards_of
from planner.spec._record import record
from planner.spec.columns import FloatColumn
from planner.spec.kinds import DeviceKind, ModelFamily, Runtime

_GIB = float(2**30)

# CUDA context, loaded kernels and NCCL's own memory of one process. Seen on the H200: 1.68 GiB beyond reserved memory
# in every run with NCCL, 0.82 without it; a further communicator costs `communication_buffer_bytes`.
_CONTEXT_BYTES, _NCCL_BYTES = 0.80 * _GIB, 0.87 * _GIB
# Cached blocks that nothing uses at the peak. The loss needs blocks of one fp32 logits tensor (L bytes) that pieces of
# activations have taken, so more are made: 0.8 L; with gradients or parameters coming and going in large pieces (ZeRO 2
# and 3) 1.4 L. The update's flat copies (F bytes) fit no cached block but the logits': 0.8 (F - L) more. H200 rows:
# median error of reserved memory 2 %, largest 7 %.
_LOGITS_SLACK, _LOGITS_SLACK_PARTITIONED, _FLAT_SLACK = 0.8, 1.4, 0.8
_SLACK_FLOOR_FRACTION, _SLACK_FLOOR_BYTES = 0.01, 0.1 * _GIB


@record
class Memory:
    """Bytes by candidate. `peak` sums to what torch calls allocated; the rest comes on top."""

    peak: Peak
    slack: FloatColumn
    communication: FloatColumn
    context: FloatColumn
    low: FloatColumn
    high: FloatColumn
    host: FloatColumn
    disk: FloatColumn


def device_memory(axes: Axes, *, inputs: Inputs) -> Memory:
    """Memory of every candidate, on its worst stage."""
    return memory_around(worst_peak(axes, inputs=inputs), axes=axes, inputs=inputs)


def memory_around(peak: Peak, *, axes: Axes, inputs: Inputs) -> Memory:
    """What comes on top of a peak: device_used = allocated + allocator slack + communication buffers + context.

    low..high: see `interval`, with fixed = communication + context. On a CPU only the process's own memory counts, all
    of it allocated.
    """
    is_cpu = inputs.cluster.gpu.device is DeviceKind.CPU
    top = beside_tensors(axes, peak=peak, inputs=inputs)
    fixed, doubt = top.communication + top.context, inputs.profile.memory_doubt_fraction
    host, disk = _host_and_disk(axes, peak=peak, inputs=inputs)
    return Memory(
        peak=peak,
        slack=top.slack,
        communication=top.communication,
        context=top.context,
        low=low_bytes(peak.allocated, fixed=fixed, is_cpu=is_cpu, doubt=doubt),
        high=high_bytes(peak.allocated, fixed=fixed, is_cpu=is_cpu, doubt=doubt),
        host=host,
        disk=disk,
    )


@record
class OnTop:
    """Bytes on the device that are no tensor's."""

    slack: FloatColumn
    communication: FloatColumn
    context: FloatColumn


def beside_tensors(axes: Axes, *, peak: Peak, inputs: Inputs) -> OnTop:
    """Slack of the allocator, communication buffers and the context beside a peak; nothing on a CPU."""
    nothing: FloatColumn = np.zeros(len(axes))
    if inputs.cluster.gpu.device is DeviceKind.CPU:
        return OnTop(slack=nothing, communication=nothing, context=nothing)
    communication = _communication_bytes(axes, inputs=inputs)
    slack = _slack(axes, peak=peak, inputs=inputs, fixed=communication + _CONTEXT_BYTES)
    return OnTop(slack=slack, communication=communication, context=np.full(len(axes), _CONTEXT_BYTES))


def _communication_bytes(axes: Axes, *, inputs: Inputs) -> FloatColumn:
    """NCCL's own memory and one buffer for each kind of group that has more than one rank."""
    groups = (axes.shards > 1).astype(np.float64) + (axes.tensor > 1) + (axes.pipeline > 1)
    return np.asarray(_NCCL_BYTES + groups * inputs.profile.communication_buffer_bytes, dtype=np.float64)


def _slack(axes: Axes, *, peak: Peak, inputs: Inputs, fixed: FloatColumn) -> FloatColumn:
    """Reserved minus allocated. Near the device's limit the allocator gives cached blocks back, so the sum never passes
    what is usable unless the tensors alone do."""
    model = inputs.model
    profile = inputs.profile
    upcasts = model.family is ModelFamily.DECODER and not (profile.compiled and profile.compiles_loss)
    logit_bytes = np.full(len(axes), 4.0) if upcasts else axes.element_bytes
    split = axes.tensor if inputs.profile.vocabulary_parallel else 1.0
    has_head = (axes.pipeline == 1) | (peak.stage == axes.pipeline - 1)
    logits = chunk_tokens(axes, model=model) * model.vocab_size / split * logit_bytes * has_head
    flats = np.maximum(_flat_copies(axes, inputs=inputs) - logits, 0.0)
    partitioned = axes.zero_stage >= 2
    floor = _SLACK_FLOOR_FRACTION * peak.allocated + _SLACK_FLOOR_BYTES
    slack = floor + np.where(partitioned, _LOGITS_SLACK_PARTITIONED, _LOGITS_SLACK) * logits + _FLAT_SLACK * flats
    room = inputs.cluster.gpu.memory_usable_bytes - peak.allocated - fixed
    return np.asarray(np.minimum(slack, np.maximum(room, floor)))


def _flat_copies(axes: Axes, *, inputs: Inputs) -> FloatColumn:
    """ZeRO's flattened gradients e T / n and their fp32 copy 4 T / n, made for the update."""
    if inputs.profile.runtime is not Runtime.DEEPSPEED:
        return np.zeros(len(axes))
    _, params = _first_stage(axes, inputs=inputs)
    made = (axes.zero_stage >= 1) & ~axes.offload_optimizer
    return shards_of(params, axes=axes).shard * (axes.element_bytes + np.where(axes.is_fp32, 0.0, 4.0)) * made


def _first_stage(axes: Axes, *, inputs: Inputs) -> tuple[StageShape, RankParameters]:
    shape = stage_shape(FIRST, axes=axes, model=inputs.model, by_cost=inputs.profile.balances_stages)
    return shape, rank_parameters(shape, axes=axes, inputs=inputs)


# Host memory of one rank's process: Python, torch, CUDA and DeepSpeed (about 3 GiB resident), pinned staging, data. On
# a CPU the libraries' pages are mostly shared between ranks forked from one parent.
_HOST_PROCESS_BYTES, _CPU_PROCESS_BYTES = 3.0 * _GIB, 0.7 * _GIB
_SWAP_BUFFERS, _SWAP_ELEMENTS = 4.0, 1.0e9  # offload_optimizer.buffer_count; one sub-group at most
_PARAM_SWAP_ELEMENTS = 5.0e8  # offload_param: 5 buffers of 1e8 elements (buffer_count, buffer_size)


def _host_and_disk(axes: Axes, *, peak: Peak, inputs: Inputs) -> tuple[FloatColumn, FloatColumn]:
    """Host bytes and disk bytes of one node.

    Optimizer offload: master 4, moments and fp32 gradient 4 per trained element of the shard, and a pinned 16-bit copy
    (stage_1_and_2.py, `param_buffer_of_bit16_for_cpu_offload_groups`); to NVMe (stage 3) the fp32 states go to disk and
    four swap buffers stay. Parameter offload (stage 3): e per element of the shard. On a CPU the device memory of every
    rank is the host's too.
    """
    _, params = _first_stage(axes, inputs=inputs)
    parts = shards_of(params, axes=axes)
    weights, states = parts.weight_shard * axes.element_bytes, parts.shard * (8.0 + inputs.moments)
    is_third = axes.zero_stage == 3
    nvme, param_nvme = axes.offload_optimizer_nvme & is_third, axes.offload_param_nvme & is_third
    swapped = _SWAP_BUFFERS * 4.0 * np.minimum(parts.shard, _SWAP_ELEMENTS)
    staged = np.where(nvme, swapped, states) + parts.shard * axes.element_bytes
    host = np.where(axes.offload_optimizer & (axes.zero_stage >= 1), staged, 0.0)
    kept = np.where(param_nvme, _PARAM_SWAP_ELEMENTS * axes.element_bytes, weights)
    host = host + np.where(axes.offload_param & is_third, kept, 0.0)
    disk = np.where(nvme, states, 0.0) + np.where(param_nvme, weights, 0.0)
    is_cpu = inputs.cluster.gpu.device is DeviceKind.CPU
    process = peak.allocated + _CPU_PROCESS_BYTES if is_cpu else np.full(len(axes), _HOST_PROCESS_BYTES)
    return (host + process) * axes.gpus_per_node, disk * axes.gpus_per_node
