"""What may vary: the legal candidates of a job, how many combinations each rule refused, and what would mend a job
that has none.

Judges by the masks of `planner.rules`; prices nothing, tries nothing.
"""

from planner.space.axes import (
    CHECKPOINTED_SHARES,
    MICRO_BATCH_LIMIT,
    AxisValues,
    LeftOutAxis,
    World,
    axis_values,
    checkpointing_codes,
    rule_context,
)
from planner.space.enumeration import Rejection, Space, enumerate_candidates
from planner.space.explanation import NamedLayout, explain_empty, nearest_miss, refusals_of
from planner.space.fallbacks import less_memory
from planner.space.refinement import LocalAxis, combine, distinct, joined_rows, local_axes

__all__ = [
    "CHECKPOINTED_SHARES",
    "MICRO_BATCH_LIMIT",
    "AxisValues",
    "LeftOutAxis",
    "LocalAxis",
    "NamedLayout",
    "Rejection",
    "Space",
    "World",
    "axis_values",
    "checkpointing_codes",
    "combine",
    "distinct",
    "enumerate_candidates",
    "explain_empty",
    "joined_rows",
    "less_memory",
    "local_axes",
    "nearest_miss",
    "refusals_of",
    "rule_context",
]
