"""One candidate stage by stage: what first, second and last stage hold at each moment, and how long they work.

Owns the view for reports. All prices are those of `peak`, `memory` and `steptime`, so that the worst stage at its peak
is the estimate's own breakdown.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.cost.axes import Axes, axes_of
from planner.cost.calibration import Calibration
from planner.cost.compute import stage_work
from planner.cost.estimate import inputs_of
from planner.cost.inputs import Inputs
from planner.cost.memory import beside_tensors
from planner.cost.parameters import FIRST, LATER_STAGES, StageShape, stage_shape
from planner.cost.peak import MOMENTS, Peak, stage_moments
from planner.cost.profile import DEEPSPEED, RuntimeProfile
from planner.cost.steptime import stage_time
from planner.cost.uneven import Setting, shape_at
from planner.spec.candidate import Candidate
from planner.spec.columns import columns_of
from planner.spec.estimate import MemoryBreakdown, StageProfile
from planner.spec.hardware import ClusterSpec
from planner.spec.job import TrainingSpec
from planner.spec.model import ModelSpec

_NO_CALIBRATION = Calibration()


def stage_profiles(
    candidate: Candidate,
    *,
    model: ModelSpec,
    training: TrainingSpec,
    cluster: ClusterSpec,
    profile: RuntimeProfile = DEEPSPEED,
    calibration: Calibration = _NO_CALIBRATION,
) -> tuple[StageProfile, ...]:
    """The stages that differ, in order: first, second, last; one without a pipeline."""
    columns = columns_of((candidate,), gpus_per_node=cluster.gpus_per_node)
    axes = axes_of(columns, model=model, training=training, cluster=cluster)
    inputs = inputs_of(model=model, training=training, cluster=cluster, profile=profile, calibration=calibration)
    shapes = [
        stage_shape(stage, axes=axes, model=model, by_cost=profile.balances_stages) for stage in (FIRST, *LATER_STAGES)
    ]
    return tuple(_profile(shape, axes=axes, inputs=inputs) for shape in shapes if shape.exists[0])


def stage_profiles_over_groups(candidate: Candidate, setting: Setting) -> tuple[StageProfile, ...]:
    """Every stage of a pipeline over the groups of a mixed cluster, with its own layers on its own device."""
    layout, columns = candidate.layout, columns_of((candidate,), gpus_per_node=setting.cluster.gpus_per_node)
    found: list[StageProfile] = []
    for group in setting.cluster.groups:
        axes, inputs = setting.axes(columns, group), setting.inputs(group)
        for _ in range(group.world_size // (layout.data_parallel_size * layout.tensor_parallel_size)):
            index = len(found)
            place, layers = np.array([float(index)]), np.array([float(layout.stage_layers[index])])
            stage = _profile(shape_at(axes, index=place, layers=layers), axes=axes, inputs=inputs)
            found.append(replace(stage, device=group.gpu.name))
    return tuple(found)


def _profile(shape: StageShape, *, axes: Axes, inputs: Inputs) -> StageProfile:
    moments = stage_moments(shape, axes=axes, inputs=inputs)
    worst = max(moments, key=lambda peak: float(peak.allocated[0]))
    forward_s, backward_s = _micro_batch_s(shape, axes=axes, inputs=inputs)
    return StageProfile(
        index=int(shape.index[0]),
        layers=int(shape.layers[0]),
        in_flight=float(shape.in_flight[0]),
        forward_s=forward_s,
        backward_s=backward_s,
        peak=_breakdown(worst, axes=axes, inputs=inputs, has_slack=True),
        moments=tuple(
            (name, _breakdown(peak, axes=axes, inputs=inputs, has_slack=False)) for name, peak in zip(MOMENTS, moments)
        ),
    )


def _breakdown(peak: Peak, *, axes: Axes, inputs: Inputs, has_slack: bool) -> MemoryBreakdown:
    top = beside_tensors(axes, peak=peak, inputs=inputs)
    tensors = {f"{kind}_bytes": round(float(np.rint(part[0]))) for kind, part in peak.parts.items()}
    return MemoryBreakdown(
        **tensors,
        allocator_slack_bytes=round(float(top.slack[0])) if has_slack else 0,
        communication_bytes=round(float(top.communication[0])),
        context_bytes=round(float(top.context[0])),
    )


def _micro_batch_s(shape: StageShape, *, axes: Axes, inputs: Inputs) -> tuple[float, float]:
    """Forward and backward seconds. What is not computed (collectives, waiting for the host) is shared between the two
    passes as the computing is."""
    work, time = stage_work(shape, axes=axes, inputs=inputs), stage_time(shape, axes=axes, inputs=inputs)
    factor = inputs.calibration.time_factor
    total = (
        time.compute * factor("compute")
        + time.recompute * factor("recompute")
        + time.tensor * factor("tensor_parallel")
        + time.host * factor("host")
    )
    computed = work.forward + work.backward + work.recompute
    forward = float((total * work.forward / computed)[0])
    return forward, float(total[0]) - forward
