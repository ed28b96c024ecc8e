"""Rules about how the global batch is shared out. The global batch itself is never changed.

A gradient_accumulation_steps of 0 in the columns means that micro-batches do not fill the global batch. The rules
exclude one another, so that a layout is told one reason and not three forms of it.
"""

from __future__ import annotations

import numpy as np

from planner.rules.config_context import Severity
from planner.rules.rule import Rule, RuleContext
from planner.spec.columns import BoolColumn, CandidateColumns

_ARITHMETIC = "arithmetic"
_BATCH_ASSERTION = "DeepSpeed 0.19.8, runtime/config.py: _batch_assertion"


def _too_many_replicas(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    return columns.data_parallel_size > context.training.global_batch_size


def _replicas_indivisible(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    uneven = context.training.global_batch_size % np.maximum(columns.data_parallel_size, 1) != 0
    refused: BoolColumn = uneven & ~_too_many_replicas(columns, context)
    return refused


def _micro_batch_too_large(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    fed = columns.micro_batch_size * columns.data_parallel_size
    refused: BoolColumn = (fed > context.training.global_batch_size) & ~_too_many_replicas(columns, context)
    return refused


def _batch_identity_broken(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    """Broken for a reason that no other rule of this module (or an impossible world) has named."""
    consumed = columns.micro_batch_size * columns.gradient_accumulation_steps * columns.data_parallel_size
    named = (
        (columns.data_parallel_size < 1)
        | _too_many_replicas(columns, context)
        | _replicas_indivisible(columns, context)
        | _micro_batch_too_large(columns, context)
    )
    refused: BoolColumn = (consumed != context.training.global_batch_size) & ~named
    return refused


BATCH_RULES: tuple[Rule, ...] = (
    Rule(
        name="data-parallel-exceeds-batch",
        severity=Severity.ERROR,
        summary="every data-parallel rank needs at least one sequence of the global batch",
        source=_ARITHMETIC,
        axes=("data_parallel_size",),
        mask=_too_many_replicas,
        sentence=lambda c: (
            f"a global batch of {c.training.global_batch_size} sequences feeds at most "
            f"{c.training.global_batch_size} data-parallel ranks"
        ),
    ),
    Rule(
        name="data-parallel-divides-batch",
        severity=Severity.ERROR,
        summary="data_parallel_size must divide the global batch: every rank takes the same share",
        source=_ARITHMETIC,
        axes=("data_parallel_size",),
        mask=_replicas_indivisible,
        sentence=lambda c: (
            f"data_parallel_size must divide the global batch of {c.training.global_batch_size} sequences"
        ),
    ),
    Rule(
        name="micro-batch-too-large",
        severity=Severity.ERROR,
        summary="micro_batch_size x data_parallel_size must not exceed the global batch",
        source=_ARITHMETIC,
        axes=("micro_batch_size", "data_parallel_size"),
        mask=_micro_batch_too_large,
        sentence=lambda c: (
            f"micro_batch_size x data_parallel_size must not exceed the global batch of "
            f"{c.training.global_batch_size} sequences"
        ),
    ),
    Rule(
        name="batch-identity",
        severity=Severity.ERROR,
        summary="micro_batch_size x gradient_accumulation_steps x data_parallel_size must equal the global batch",
        source=_BATCH_ASSERTION,
        axes=("micro_batch_size", "gradient_accumulation_steps", "data_parallel_size"),
        mask=_batch_identity_broken,
        sentence=lambda c: (
            "micro_batch_size x gradient_accumulation_steps x data_parallel_size must equal the global batch of "
            f"{c.training.global_batch_size} sequences, with whole numbers"
        ),
    ),
)
