"""One table of named rules: what the space may hold, what a DeepSpeed configuration may say, which keys exist when.

`space` applies the axis rules as masks over columns, `emit` writes by the tables of keys, the linter explains by
`check_config`. A rule says what is demanded, why, and where that was read or seen; it acts on nothing.
"""

from planner.rules.batch_rules import BATCH_RULES
from planner.rules.config_context import ConfigContext, ConfigView, Consumer, Finding, Severity
from planner.rules.known_keys import (
    DRIFTING_DEFAULTS,
    NEWEST_VERSION,
    OLDEST_VERSION,
    DriftingDefault,
    KnownBlock,
    key_history,
    known_keys,
    parse_version,
)
from planner.rules.layout_rules import pipeline_parallel_refusal, tensor_parallel_refusal
from planner.rules.mode_rules import checkpointing_refusal, precisions_of
from planner.rules.rule import Rule, RuleContext, RuleStage
from planner.rules.table import AXIS_RULES, RULES, check_config, refusals

__all__ = [
    "AXIS_RULES",
    "BATCH_RULES",
    "DRIFTING_DEFAULTS",
    "NEWEST_VERSION",
    "OLDEST_VERSION",
    "RULES",
    "ConfigContext",
    "ConfigView",
    "Consumer",
    "DriftingDefault",
    "Finding",
    "KnownBlock",
    "Rule",
    "RuleContext",
    "RuleStage",
    "Severity",
    "check_config",
    "checkpointing_refusal",
    "key_history",
    "known_keys",
    "parse_version",
    "pipeline_parallel_refusal",
    "precisions_of",
    "refusals",
    "tensor_parallel_refusal",
]
