"""Allocated bytes of the worst stage at its peak moment.

Owns the peak: a maximum over moments and stages, never a sum of maxima. States come from `states_*`, activations from
`activations`; what the allocator and the driver add is `memory`'s.
"""

from __future__ import annotations

import numpy as np

from planner.cost.activations import Activations, stage_activations
from planner.cost.axes import Axes
from planner.cost.inputs import Inputs
from planner.cost.parameters import FIRST, LATER_STAGES, RankParameters, StageShape, rank_parameters, stage_shape
from planner.cost.states import Held, States
from planner.cost.states_deepspeed import deepspeed_states
from planner.cost.states_others import fsdp_states, megatron_states
from planner.spec._record import record
from planner.spec.columns import FloatColumn, IntColumn
from planner.spec.hardware import GpuSpec
from planner.spec.kinds import DeviceKind, Runtime

KINDS = ("parameters", "gradients", "optimizer", "activations", "buffers")
# The moments of a step that can be the peak, in the order of `_moments`.
MOMENTS = ("loss", "first gradients", "end of backward", "optimizer step")

_MIB = float(2**20)
# PyTorch keeps one cuBLAS workspace per handle and stream; forward and backward run on two threads, hence two
# (aten/src/ATen/cuda/CublasHandlePool.cpp: 32 MiB on compute capability 9 and above, 8.125 MiB before). Seen as exactly
# 64 MiB on the H200.
_WORKSPACE_HOPPER_BYTES, _WORKSPACE_BYTES = 64.0 * _MIB, 16.25 * _MIB
# A CPU process also holds malloc's arenas, oneDNN's scratch, threads and gloo's buffers, all of which count as its
# memory. Seen with a 1 M parameter model: 26 MiB more than 65, 15 more than 23.
_CPU_FRACTION, _CPU_BYTES = 0.15, 14.0 * _MIB
_HOPPER_BYTES_PER_S = 1.9e12  # no device with fp8 units and this bandwidth is older than compute capability 9


@record
class Peak:
    """Bytes at the worst stage's peak moment, a column per kind; `allocated` is their sum."""

    parts: dict[str, FloatColumn]
    allocated: FloatColumn
    stage: IntColumn


def worst_peak(axes: Axes, *, inputs: Inputs) -> Peak:
    """Maximum over the representative stages: first, second and last (with 1F1B the stages between hold no more layers
    and fewer micro-batches than the second)."""
    worst = stage_peak(
        stage_shape(FIRST, axes=axes, model=inputs.model, by_cost=inputs.profile.balances_stages),
        axes=axes,
        inputs=inputs,
    )
    for stage in LATER_STAGES:
        shape = stage_shape(stage, axes=axes, model=inputs.model, by_cost=inputs.profile.balances_stages)
        if not shape.exists.any():
            continue
        peak = stage_peak(shape, axes=axes, inputs=inputs)
        better = shape.exists & (peak.allocated > worst.allocated)
        worst = Peak(
            parts={kind: np.where(better, peak.parts[kind], worst.parts[kind]) for kind in KINDS},
            allocated=np.where(better, peak.allocated, worst.allocated),
            stage=np.where(better, peak.stage, worst.stage),
        )
    return worst


def stage_peak(shape: StageShape, *, axes: Axes, inputs: Inputs) -> Peak:
    """Maximum over the moments of one stage."""
    moments = stage_moments(shape, axes=axes, inputs=inputs)
    choice = np.argmax(np.stack([peak.allocated for peak in moments]), axis=0)
    return Peak(
        parts={kind: np.choose(choice, [peak.parts[kind] for peak in moments]) for kind in KINDS},
        allocated=np.choose(choice, [peak.allocated for peak in moments]),
        stage=shape.index.astype(np.int64),
    )


def stage_moments(shape: StageShape, *, axes: Axes, inputs: Inputs) -> tuple[Peak, ...]:
    """What one stage holds at each of `MOMENTS`, corrected by the calibration."""
    params = rank_parameters(shape, axes=axes, inputs=inputs)
    states = _rank_states(params, axes=axes, inputs=inputs)
    activations = stage_activations(shape, axes=axes, inputs=inputs)
    moments = _moments(states, activations=activations, shape=shape)
    return tuple(_at_moment(held, alive, shape=shape, inputs=inputs) for held, alive in moments)


def _at_moment(held: Held, alive: FloatColumn, *, shape: StageShape, inputs: Inputs) -> Peak:
    scale, offset = inputs.calibration.memory_scale, inputs.calibration.memory_offset_bytes
    workspace = _workspace_bytes(held.total + alive, gpu=inputs.cluster.gpu)
    parts = {
        "parameters": held.parameters * scale,
        "gradients": held.gradients * scale,
        "optimizer": held.optimizer * scale,
        "activations": alive * scale,
        "buffers": np.maximum((held.buffers + workspace) * scale + offset, 0.0),
    }
    allocated = sum(parts.values(), start=np.zeros_like(alive))
    return Peak(parts=parts, allocated=allocated, stage=shape.index.astype(np.int64))


def _rank_states(params: RankParameters, *, axes: Axes, inputs: Inputs) -> States:
    if inputs.profile.runtime is Runtime.FSDP:
        return fsdp_states(params, axes=axes, moments=inputs.moments)
    if inputs.profile.runtime is Runtime.MEGATRON:
        return megatron_states(params, axes=axes, profile=inputs.profile, moments=inputs.moments)
    return deepspeed_states(params, axes=axes, profile=inputs.profile, moments=inputs.moments)


def _moments(states: States, *, activations: Activations, shape: StageShape) -> tuple[tuple[Held, FloatColumn], ...]:
    """The moments that can be the peak, with the activations alive at each.

    After one micro-batch's backward pass, the others in flight still keep theirs. A stage with accumulation meets the
    moments `loss` and `first_gradient` with gradients of earlier micro-batches; `states` counts them.
    """
    others = activations.kept * (1.0 - 1.0 / shape.in_flight)
    return (
        (states.loss, activations.kept + activations.loss),
        (states.first_gradient, activations.kept + np.maximum(activations.head, activations.layer)),
        (states.backward, others + activations.layer),
        (states.step, np.zeros_like(others)),
    )


def _workspace_bytes(tensors: FloatColumn, *, gpu: GpuSpec) -> FloatColumn | float:
    """What the libraries hold beside the tensors: cuBLAS workspaces; on a CPU everything else the process took."""
    if gpu.device is DeviceKind.CPU:
        return _CPU_FRACTION * tensors + _CPU_BYTES
    is_hopper = gpu.peak_fp8_flops_per_s > 0 and gpu.memory_bandwidth_bytes_per_s > _HOPPER_BYTES_PER_S
    return _WORKSPACE_HOPPER_BYTES if is_hopper else _WORKSPACE_BYTES
