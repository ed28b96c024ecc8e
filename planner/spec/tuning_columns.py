"""Settings in a `tuning` column: each read, asked for and changed for all rows at once. The codes are `tuning`'s."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.spec.tuning import MASK, SHIFTS, TUNING_VALUES


def setting_codes(column: NDArray[np.int64], name: str) -> NDArray[np.int64]:
    """Of a `tuning` column, each row's place of one setting in `TUNING_VALUES`."""
    codes: NDArray[np.int64] = (column >> SHIFTS[name]) & MASK
    return codes


def has_setting(column: NDArray[np.int64], name: str, value: Any) -> NDArray[np.bool_]:
    """Where a `tuning` column has this value of a setting."""
    place = TUNING_VALUES[name].index(value)
    if not column.any():  # the usual case, in spaces of 10^5 rows
        return np.full(len(column), place == 0, dtype=np.bool_)
    found: NDArray[np.bool_] = setting_codes(column, name) == place
    return found


def setting_values(column: NDArray[np.int64], name: str) -> NDArray[np.float64]:
    """The values of a setting that is a number, row by row."""
    if not column.any():
        return np.full(len(column), TUNING_VALUES[name][0], dtype=np.float64)
    return np.array(TUNING_VALUES[name], dtype=np.float64)[setting_codes(column, name)]


def with_setting(column: NDArray[np.int64], name: str, value: Any) -> NDArray[np.int64]:
    """A `tuning` column with one setting at this value in every row."""
    code = TUNING_VALUES[name].index(value)
    changed: NDArray[np.int64] = (column & ~(MASK << SHIFTS[name])) | (code << SHIFTS[name])
    return changed
