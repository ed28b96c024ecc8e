"""Device memory of the worst stage at its peak moment, host memory and disk.

Owns the peak (a maximum over moments and stages, never a sum of maxima), what the allocator and the driver add, and the
interval. States come from `states`, activations from `activations`.
"""

from __future__ import annotations

import numpy as np

from planner.cost.activations import Activations, stage_activations
from planner.cost.architecture import Architecture
from planner.cost.axes import Axes
from planner.cost.calibration import Calibration
from planner.cost.parameters import FIRST, LATER_STAGES, RankParameters, StageShape, rank_parameters, stage_shape
from planner.cost.profile import RuntimeProfile
from planner.cost.states import Held, States, rank_states
from planner.spec._record import record
from planner.spec.columns import FloatColumn, IntColumn
from planner.spec.hardware import ClusterSpec, GpuSpec
from planner.spec.job import TrainingSpec
from planner.spec.kinds import DeviceKind
from planner.spec.model import ModelSpec

KINDS = ("parameters", "gradients", "optimizer", "activations", "buffers")

_MIB, _GIB = float(2**20), float(2**30)

# PyTorch keeps one cuBLAS workspace per handle and stream; forward and backward run on two threads, hence two
# (CUDABlas.cpp: 32 MiB on compute capability 9 and above, 8.125 MiB before). Seen as exactly 64 MiB on the H200.
_WORKSPACE_HOPPER_BYTES, _WORKSPACE_BYTES = 64.0 * _MIB, 16.25 * _MIB
# CUDA context and libraries on one process: 1.68 GiB seen on the H200 with NCCL's, 0.76 without.
_CONTEXT_BYTES = 0.8 * _GIB
_CONTEXT_COMMUNICATION_BYTES = 0.87 * _GIB
# Cached blocks that no tensor uses at the peak: share of allocated memory and a floor. Seen: 0.5 to 25 %, median 8 %.
_SLACK_FRACTION, _SLACK_FLOOR_BYTES = 0.07, 0.3 * _GIB
# The interval of what the run cannot do without: model error plus fragmentation that the allocator cannot give back.
_LOW_FRACTION, _HIGH_FRACTION, _HIGH_FLOOR_BYTES = 0.96, 1.035, 0.5 * _GIB


@record
class Peak:
    """Bytes at the worst stage's peak moment, a column per kind."""

    parts: dict[str, FloatColumn]
    allocated: FloatColumn
    stage: IntColumn


@record
class Memory:
    peak: Peak
    slack: FloatColumn
    communication: FloatColumn
    context: FloatColumn
    low: FloatColumn
    high: FloatColumn
    host: FloatColumn
    disk: FloatColumn


@record
class MemoryInputs:
    """What the memory of any candidate of one call depends on besides its own row."""

    model: ModelSpec
    training: TrainingSpec
    cluster: ClusterSpec
    profile: RuntimeProfile
    architecture: Architecture
    calibration: Calibration
    moments: float


def device_memory(axes: Axes, *, inputs: MemoryInputs) -> Memory:
    """Memory of every candidate: device_used = allocated + allocator slack + communication buffers + context."""
    peak = _worst_peak(axes, inputs=inputs)
    allocated = peak.allocated
    is_cpu = inputs.cluster.gpu.device is DeviceKind.CPU
    slack = np.zeros_like(allocated) if is_cpu else _SLACK_FRACTION * allocated + _SLACK_FLOOR_BYTES
    context = np.full_like(allocated, 0.0 if is_cpu else _CONTEXT_BYTES)
    communicators = 1.0 * (axes.shards > 1) + (axes.tensor > 1) + (axes.pipeline > 1)
    communication = np.where(is_cpu, 0.0, _CONTEXT_COMMUNICATION_BYTES)
    communication = communication + communicators * inputs.profile.communication_buffer_bytes * (not is_cpu)
    fixed = context + communication
    host, disk = _host_and_disk(axes, inputs=inputs)
    return Memory(
        peak=peak,
        slack=slack,
        communication=communication,
        context=context,
        low=_LOW_FRACTION * allocated + fixed,
        high=_HIGH_FRACTION * allocated + fixed + (0.0 if is_cpu else _HIGH_FLOOR_BYTES),
        host=host,
        disk=disk,
    )


def _worst_peak(axes: Axes, *, inputs: MemoryInputs) -> Peak:
    """Maximum over the representative stages: first, second and last (with 1F1B the stages between hold no more layers
    and fewer micro-batches than the second)."""
    worst = _stage_peak(stage_shape(FIRST, axes=axes, model=inputs.model), axes=axes, inputs=inputs)
    for stage in LATER_STAGES:
        shape = stage_shape(stage, axes=axes, model=inputs.model)
        if not shape.exists.any():
            continue
        peak = _stage_peak(shape, axes=axes, inputs=inputs)
        better = shape.exists & (peak.allocated > worst.allocated)
        worst = Peak(
            parts={kind: np.where(better, peak.parts[kind], worst.parts[kind]) for kind in KINDS},
            allocated=np.where(better, peak.allocated, worst.allocated),
            stage=np.where(better, peak.stage, worst.stage),
        )
    return worst


def _stage_peak(shape: StageShape, *, axes: Axes, inputs: MemoryInputs) -> Peak:
    """Maximum over the moments of one stage: loss, first gradient, end of backward with reduction, optimizer step."""
    params = rank_parameters(shape, axes=axes, model=inputs.model, options=(inputs.training, inputs.profile))
    states = rank_states(params, axes=axes, profile=inputs.profile, moments=inputs.moments)
    activations = stage_activations(
        shape, axes=axes, model=inputs.model, architecture=inputs.architecture, profile=inputs.profile
    )
    workspace = _workspace_bytes(inputs.cluster.gpu)
    moments = _moments(states, activations=activations, shape=shape)
    totals = [held.parameters + held.gradients + held.optimizer + held.buffers + act for held, act in moments]
    choice = np.argmax(np.stack(totals), axis=0)
    scale = inputs.calibration.memory_scale
    offset = inputs.calibration.memory_offset_bytes
    parts = {
        "parameters": np.choose(choice, [held.parameters for held, _ in moments]) * scale,
        "gradients": np.choose(choice, [held.gradients for held, _ in moments]) * scale,
        "optimizer": np.choose(choice, [held.optimizer for held, _ in moments]) * scale,
        "activations": np.choose(choice, [act for _, act in moments]) * scale,
        "buffers": np.maximum(
            np.choose(choice, [held.buffers for held, _ in moments]) * scale + workspace + offset, 0.0
        ),
    }
    allocated = sum(parts.values(), start=np.zeros(len(axes)))
    return Peak(parts=parts, allocated=allocated, stage=shape.index.astype(np.int64))


def _moments(states: States, *, activations: Activations, shape: StageShape) -> tuple[tuple[Held, FloatColumn], ...]:
    """The moments that can be the peak, with the activations alive at each.

    After the first micro-batch's backward ends, the other micro-batches in flight still keep theirs.
    """
    others = activations.kept * (1.0 - 1.0 / shape.in_flight)
    return (
        (states.loss, activations.kept + activations.loss),
        (states.first_hook, activations.kept + np.maximum(activations.head, activations.layer)),
        (states.backward, others + activations.layer),
        (states.step, np.zeros_like(others)),
    )


def _workspace_bytes(gpu: GpuSpec) -> float:
    if gpu.device is DeviceKind.CPU:
        return 0.0
    is_hopper_or_newer = gpu.peak_fp8_flops_per_s > 0 and gpu.memory_bandwidth_bytes_per_s > 1.9e12
    return _WORKSPACE_HOPPER_BYTES if is_hopper_or_newer else _WORKSPACE_BYTES


# Host memory of one rank's process: Python, torch, CUDA and DeepSpeed libraries (3.5 GiB of resident memory seen on CPU
# after the imports less shared pages), pinned staging, data loading.
_HOST_PROCESS_BYTES = 3.0 * _GIB


def _host_and_disk(axes: Axes, *, inputs: MemoryInputs) -> tuple[FloatColumn, FloatColumn]:
    """Host bytes of one node and disk bytes of one node.

    Optimizer offload: master 4, moments and fp32 gradient 4 per trained element of the shard, and a pinned 16-bit copy
    (stage_1_and_2.py, `param_buffer_of_bit16_for_cpu_offload_groups`); to NVMe the fp32 states go to disk and four swap
    buffers stay. Parameter offload: e per element of the shard, pinned. CPU device: device memory is host memory.
    """
    shape = stage_shape(0, axes=axes, model=inputs.model)
    params: RankParameters = rank_parameters(
        shape, axes=axes, model=inputs.model, options=(inputs.training, inputs.profile)
    )
    shard = params.trained_dense / axes.shards + params.trained_expert / axes.expert_shards
    weights = (params.dense / axes.shards + params.expert / axes.expert_shards) * axes.element_bytes
    states = shard * (4.0 + inputs.moments + 4.0)
    offloads = axes.offload_optimizer & (axes.zero_stage >= 1)
    nvme = axes.offload_optimizer_nvme & (axes.zero_stage == 3)
    staged = np.where(nvme, 4.0 * 4.0 * np.minimum(shard, 1.0e9), states)
    host = np.where(offloads, staged + shard * axes.element_bytes, 0.0)
    param_offload = axes.offload_param & (axes.zero_stage == 3)
    host = host + np.where(param_offload, np.where(axes.offload_param_nvme, 5.0e8 * axes.element_bytes, weights), 0.0)
    disk = np.where(nvme, states, 0.0) + np.where(param_offload & axes.offload_param_nvme, weights, 0.0)
    return (host + _HOST_PROCESS_BYTES) * axes.gpus_per_node, disk * axes.gpus_per_node
