"""The one table of rules, and the questions asked of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.rules.batch_rules import BATCH_RULES
from planner.rules.config_accelerate import ACCELERATE_CONFIG_RULES
from planner.rules.config_batch import BATCH_CONFIG_RULES
from planner.rules.config_context import ConfigContext, ConfigView, Finding, Severity, SyntaxFact
from planner.rules.config_experts import EXPERT_CONFIG_RULES
from planner.rules.config_huggingface import HUGGINGFACE_CONFIG_RULES
from planner.rules.config_keys import KEY_RULES
from planner.rules.config_memory import MEMORY_CONFIG_RULES
from planner.rules.config_optimizer import OPTIMIZER_CONFIG_RULES
from planner.rules.config_parallel import PARALLEL_CONFIG_RULES
from planner.rules.config_precision import PRECISION_CONFIG_RULES
from planner.rules.config_syntax import SYNTAX_RULES
from planner.rules.config_values import VALUE_RULES
from planner.rules.config_zero import ZERO_CONFIG_RULES
from planner.rules.layout_rules import LAYOUT_RULES
from planner.rules.mode_rules import MODE_RULES
from planner.rules.rule import Rule, RuleContext, RuleStage
from planner.rules.tuning_rules import TUNING_RULES
from planner.spec.columns import BoolColumn, CandidateColumns

_STAGES = tuple(RuleStage)

# Rules about candidates, in the order in which the space is sieved: the first to refuse a combination counts it.
AXIS_RULES: tuple[Rule, ...] = tuple(
    sorted(
        (rule for rule in (*LAYOUT_RULES, *BATCH_RULES, *MODE_RULES, *TUNING_RULES) if rule.mask is not None),
        key=lambda rule: _STAGES.index(rule.stage),
    )
)

RULES: tuple[Rule, ...] = (
    *AXIS_RULES,
    *SYNTAX_RULES,
    *KEY_RULES,
    *VALUE_RULES,
    *BATCH_CONFIG_RULES,
    *ZERO_CONFIG_RULES,
    *PRECISION_CONFIG_RULES,
    *OPTIMIZER_CONFIG_RULES,
    *PARALLEL_CONFIG_RULES,
    *EXPERT_CONFIG_RULES,
    *MEMORY_CONFIG_RULES,
    *HUGGINGFACE_CONFIG_RULES,
    *ACCELERATE_CONFIG_RULES,
)

_SEVERITIES = tuple(Severity)


def refusals(columns: CandidateColumns, context: RuleContext) -> tuple[tuple[Rule, BoolColumn], ...]:
    """Every rule that refuses at least one row, in table order, with the rows it refuses."""
    verdicts = ((rule, rule.refuses(columns, context)) for rule in AXIS_RULES)
    return tuple((rule, refused) for rule, refused in verdicts if refused.any())


def check_config(
    config: Mapping[str, Any], context: ConfigContext, *, syntax: tuple[SyntaxFact, ...] = ()
) -> tuple[Finding, ...]:
    """What is wrong with a DeepSpeed configuration in its context, errors first.

    `config` may hold anything that JSON can hold; `syntax` is what its text showed beside it. Raises NotExpressible for
    a DeepSpeed older than the tables.
    """
    view = ConfigView(config=config, context=context, syntax=syntax)
    found = [finding for rule in RULES for finding in rule.findings(view)]
    return tuple(sorted(found, key=lambda finding: _SEVERITIES.index(finding.severity)))
