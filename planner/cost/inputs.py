"""What the estimate of any candidate of one call depends on besides its own row."""

from __future__ import annotations

from planner.cost.architecture import Architecture
from planner.cost.calibration import Calibration
from planner.cost.profile import RuntimeProfile
from planner.spec._record import record
from planner.spec.hardware import ClusterSpec
from planner.spec.job import TrainingSpec
from planner.spec.model import ModelSpec


@record
class Inputs:
    """`moments`: optimizer state bytes per trained parameter beside master weights."""

    model: ModelSpec
    training: TrainingSpec
    cluster: ClusterSpec
    profile: RuntimeProfile
    architecture: Architecture
    calibration: Calibration
    moments: float
