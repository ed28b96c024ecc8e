"""Which candidates are not worth a trial because their memory cannot suffice."""

from __future__ import annotations

from planner.cost.columns import EstimateColumns
from planner.spec.columns import BoolColumn

# A candidate is not tried when its `low_bytes` exceeds the usable memory by this share. On the H200 rows the lower
# bound never exceeded what the run really needed by more than 1 %; the margin is that with as much again for models
# unlike them. See README, "Screening".
SCREEN_MARGIN_FRACTION = 0.03


def screened_out(estimates: EstimateColumns) -> BoolColumn:
    """True where even the lower bound of the memory exceeds the device, or the host, by the margin."""
    margin = 1.0 + SCREEN_MARGIN_FRACTION
    over_device = estimates.low_bytes > estimates.usable_bytes * margin
    return over_device | (estimates.host_bytes > estimates.host_usable_bytes * margin)
