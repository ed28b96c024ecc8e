"""The analytic model: memory and step time of any number of candidates, without a GPU.

`README.md` beside this file holds the formulas' tables and the constants with their sources.
"""

from planner.cost.calibration import Calibration, corrected_time_s, fit_calibration
from planner.cost.columns import EstimateColumns
from planner.cost.estimate import estimate_columns
from planner.cost.failures import Failures, Target, failures_of
from planner.cost.profile import (
    DEEPSPEED,
    FSDP,
    MEGATRON,
    MEGATRON_PLAIN,
    PROFILES,
    REFERENCE_TRAINER,
    RuntimeProfile,
    profile_for,
)
from planner.cost.screening import SCREEN_MARGIN_FRACTION, screened_out
from planner.cost.stages import stage_profiles, stage_profiles_over_groups

screen_margin_fraction = SCREEN_MARGIN_FRACTION

__all__ = [
    "DEEPSPEED",
    "FSDP",
    "MEGATRON",
    "MEGATRON_PLAIN",
    "PROFILES",
    "REFERENCE_TRAINER",
    "SCREEN_MARGIN_FRACTION",
    "Calibration",
    "EstimateColumns",
    "Failures",
    "RuntimeProfile",
    "Target",
    "corrected_time_s",
    "estimate_columns",
    "failures_of",
    "fit_calibration",
    "profile_for",
    "screen_margin_fraction",
    "screened_out",
    "stage_profiles",
    "stage_profiles_over_groups",
]
