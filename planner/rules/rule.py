"""What a rule is, and what it is judged in.

A rule has a stable name, a sentence for users and the place where DeepSpeed (or arithmetic) says so. It can speak in
two voices: `mask` marks the candidates of a space that it refuses, `check` finds its breach in a DeepSpeed
configuration. A rule with neither would be prose; there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum

import numpy as np

from planner.rules.config_context import Breach, ConfigView, Finding, Severity
from planner.spec import ClusterSpec, ModelSpec, Runtime, TrainingSpec
from planner.spec._record import record
from planner.spec.columns import BoolColumn, CandidateColumns

LAYOUT_AXES = frozenset(
    {
        "nodes",
        "data_parallel_size",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "sequence_parallel_size",
        "expert_parallel_size",
        "virtual_pipeline_size",
    }
)
BATCH_AXES = frozenset({"micro_batch_size", "gradient_accumulation_steps"})


class RuleStage(StrEnum):
    """What of a candidate must be known before a rule can judge it; the space is sieved in this order."""

    LAYOUT = "layout"
    BATCH = "batch"
    MODE = "mode"


@record
class RuleContext:
    """What the candidates are judged against.

    `world_sizes`: the numbers of GPUs a candidate may use in all (empty: any). `listed_axes`: axes whose values the
    user named; a rule that is only the planner's own practice then holds its tongue. `reference_trainer`: judged is
    what this product's own trainer can run; False for an estimate, which may be about anybody's code.
    """

    model: ModelSpec
    training: TrainingSpec
    cluster: ClusterSpec
    runtime: Runtime = Runtime.DEEPSPEED
    reference_trainer: bool = True
    world_sizes: tuple[int, ...] = ()
    listed_axes: frozenset[str] = frozenset()


@record
class Rule:
    """One rule. `severity` ERROR: refused by DeepSpeed or by arithmetic. WARNING: for a candidate, the planner's own
    practice, which a value that the user lists overrides; for a configuration, it does something else than written.

    `axes`: what `mask` reads, as users call it, the axis that the rule is about first; none: the job itself is refused.
    `sentence`: what is demanded, in the numbers of this job.
    """

    name: str
    severity: Severity
    summary: str
    source: str
    axes: tuple[str, ...] = ()
    mask: Callable[[CandidateColumns, RuleContext], BoolColumn] | None = None
    sentence: Callable[[RuleContext], str] | None = None
    check: Callable[[ConfigView], Iterable[Breach]] | None = None

    @property
    def stage(self) -> RuleStage:
        """The earliest stage of the sieve at which all axes of the rule are known."""
        if set(self.axes) <= LAYOUT_AXES:
            return RuleStage.LAYOUT
        return RuleStage.BATCH if set(self.axes) <= LAYOUT_AXES | BATCH_AXES else RuleStage.MODE

    def refuses(self, columns: CandidateColumns, context: RuleContext) -> BoolColumn:
        """True where a candidate breaks this rule in this context; all False for a rule about configurations only."""
        overruled = self.severity is not Severity.ERROR and bool(set(self.axes) & context.listed_axes)
        if self.mask is None or overruled:
            return np.zeros(len(columns), dtype=np.bool_)
        return self.mask(columns, context)

    def findings(self, view: ConfigView) -> tuple[Finding, ...]:
        """Where a configuration breaks this rule."""
        return tuple(
            Finding(
                code=self.name,
                severity=breach.severity or self.severity,
                key=breach.key,
                message=breach.message,
                why=breach.why or self.summary,
                fix=breach.fix,
                patch=breach.patch,
                line=breach.line,
            )
            for breach in (self.check(view) if self.check is not None else ())
        )

    def explain(self, context: RuleContext) -> str:
        """The sentence for a user, in the numbers of this job."""
        return self.sentence(context) if self.sentence is not None else self.summary


def everywhere(columns: CandidateColumns, flag: bool) -> BoolColumn:
    """One verdict for all rows."""
    return np.full(len(columns), flag, dtype=np.bool_)
