"""One table of named rules: what the space may hold, what a DeepSpeed configuration may say, which keys exist when.

`space` applies the axis rules as masks over columns, `emit` writes by the tables of keys, the linter explains by
`check_config`. A rule says what is demanded, why, and where that was read or seen; it acts on nothing.
"""

from planner.rules.batch_rules import BATCH_RULES
from planner.rules.config_accelerate import MEANS as ACCELERATE_MEANS
from planner.rules.config_accelerate import accelerate_block
from planner.rules.config_batch import Batch, data_parallel_world, solve_batch
from planner.rules.config_context import (
    AUTO,
    ConfigContext,
    ConfigView,
    Consumer,
    Finding,
    ModelFacts,
    Severity,
    SyntaxFact,
    SyntaxKind,
)
from planner.rules.config_values import mentions_auto, plain_number
from planner.rules.known_keys import (
    DRIFTING_DEFAULTS,
    NEWEST_VERSION,
    OLDEST_VERSION,
    DriftingDefault,
    KeyHistory,
    KnownBlock,
    key_history,
    known_keys,
    known_releases,
    parse_release,
    parse_version,
)
from planner.rules.layout_rules import pipeline_parallel_refusal, tensor_parallel_refusal
from planner.rules.mode_rules import checkpointing_refusal, precisions_of
from planner.rules.patches import applied, merged
from planner.rules.rule import Rule, RuleContext, RuleStage
from planner.rules.table import AXIS_RULES, RULES, check_config, refusals
from planner.rules.tuning_rules import is_built_of_blocks

__all__ = [
    "ACCELERATE_MEANS",
    "AUTO",
    "AXIS_RULES",
    "BATCH_RULES",
    "DRIFTING_DEFAULTS",
    "NEWEST_VERSION",
    "OLDEST_VERSION",
    "RULES",
    "Batch",
    "ConfigContext",
    "ConfigView",
    "Consumer",
    "DriftingDefault",
    "Finding",
    "KeyHistory",
    "KnownBlock",
    "ModelFacts",
    "Rule",
    "RuleContext",
    "RuleStage",
    "Severity",
    "SyntaxFact",
    "SyntaxKind",
    "accelerate_block",
    "applied",
    "check_config",
    "checkpointing_refusal",
    "data_parallel_world",
    "is_built_of_blocks",
    "key_history",
    "known_keys",
    "known_releases",
    "mentions_auto",
    "merged",
    "parse_release",
    "parse_version",
    "pipeline_parallel_refusal",
    "plain_number",
    "precisions_of",
    "refusals",
    "solve_batch",
    "tensor_parallel_refusal",
]
