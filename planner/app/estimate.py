"""Memory and time of configurations that the user names, without a GPU: one, or a stream of many.

Joins `catalog`, `rules` and `cost`. Rows that share model, training and cluster are priced in one call.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np

from planner.app.estimate_row import Lookups, Question, Setting, read_row
from planner.cost import estimate_columns
from planner.errors import InputError
from planner.rules import AXIS_RULES, BATCH_RULES, RuleContext, Severity
from planner.spec import Estimate
from planner.spec.codec import to_plain
from planner.spec.columns import CandidateColumns

ROWS_AT_ONCE = 4096  # of a stream: enough to price together, little enough to answer as it is read
MAX_LINE_CHARACTERS = 1 << 20

# What a configuration may break: not the planner's own practice, and not the batch, which a row has solved already.
_STRUCTURAL_RULES = tuple(rule for rule in AXIS_RULES if rule.severity is Severity.ERROR and rule not in BATCH_RULES)


def estimate_one(row: dict[str, Any]) -> dict[str, Any]:
    """The result of one row, as `interface.md` has it. Raises InputError when the row is malformed."""
    return estimate_questions([read_row(row)])[0]


def estimate_rows(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """One result per line, in order; a malformed line answers `{"error", "why", "fix", "line"}` and the stream goes on.

    Blank lines are no rows and answer nothing; `line` counts them.
    """
    lookups = Lookups()
    rows = ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
    while chunk := list(islice(rows, ROWS_AT_ONCE)):
        read = [_read_line(number, line, lookups) for number, line in chunk]
        answers = iter(estimate_questions([question for question in read if isinstance(question, Question)]))
        yield from (next(answers) if isinstance(item, Question) else item for item in read)


def _read_line(number: int, line: str, lookups: Lookups) -> Question | dict[str, Any]:
    place = f"line {number}"
    try:
        if len(line) > MAX_LINE_CHARACTERS:
            raise InputError(f"{place} is too long", why="a row is at most 1 MiB", fix="check the file's line ends")
        return read_row(json.loads(line), lookups, place=place)
    except InputError as problem:
        said = problem.error if problem.error.startswith(place) else f"{place}: {problem.error}"
        return {"error": said, "why": problem.why, "fix": problem.fix, "line": number}
    except (ValueError, RecursionError) as problem:
        why, fix = str(problem)[:300], "write one object per line"
        return {"error": f"{place} is not a JSON object", "why": why, "fix": fix, "line": number}


def estimate_questions(questions: list[Question]) -> list[dict[str, Any]]:
    """One result per resolved row, in order."""
    answers: list[dict[str, Any]] = [_infeasible(question.reasons) for question in questions]
    by_setting: dict[Setting, list[int]] = {}
    for place, question in enumerate(questions):
        if question.axes:
            by_setting.setdefault(question.setting, []).append(place)
    for setting, places in by_setting.items():
        columns = _columns([questions[place] for place in places])
        for place, answer in zip(places, _priced(setting, columns)):
            answers[place] = answer
    return answers


def _columns(questions: list[Question]) -> CandidateColumns:
    table = np.array([[value for _, value in question.axes] for question in questions], dtype=np.int64)
    arrays = {name: table[:, index] for index, (name, _) in enumerate(questions[0].axes)}
    split = arrays.pop("tensor_sequence_parallel").astype(np.bool_)
    return CandidateColumns(tensor_sequence_parallel=split, **arrays)


def _priced(setting: Setting, columns: CandidateColumns) -> list[dict[str, Any]]:
    profile = setting.profile
    context = RuleContext(
        model=setting.model,
        training=setting.training,
        cluster=setting.cluster,
        runtime=profile.runtime,
        reference_trainer=False,
    )
    reasons = _reasons(columns, context)
    legal = np.array([not why for why in reasons], dtype=np.bool_)
    estimates = estimate_columns(
        columns.take(legal), model=setting.model, training=setting.training, cluster=setting.cluster, profile=profile
    )
    rows = iter(range(len(estimates)))
    return [_infeasible(why) if why else estimate_result(estimates.record_at(next(rows))) for why in reasons]


def _reasons(columns: CandidateColumns, context: RuleContext) -> list[tuple[str, ...]]:
    """For each row, the sentences of all rules that refuse it."""
    verdicts = [(rule, rule.refuses(columns, context)) for rule in _STRUCTURAL_RULES]
    broken = [(rule.explain(context), rows) for rule, rows in verdicts if rows.any()]
    return [tuple(sentence for sentence, rows in broken if rows[row]) for row in range(len(columns))]


def _infeasible(reasons: tuple[str, ...]) -> dict[str, Any]:
    return {"feasible": False, "fits": False, "reasons": list(reasons)}


def estimate_result(estimate: Estimate) -> dict[str, Any]:
    """The JSON form of an estimate: bytes and seconds."""
    memory = to_plain(estimate.memory)
    return {
        "feasible": True,
        "fits": estimate.fits,
        "reasons": [] if estimate.fits else [_why_not(estimate)],
        "memory": memory,
        "step_time_s": estimate.step_time_s,
        "time_breakdown": to_plain(estimate.time),
        "tokens_per_s": estimate.tokens_per_s,
        "tokens_per_s_per_gpu": estimate.tokens_per_s_per_gpu,
        "mfu": estimate.mfu_fraction,
        "kind": estimate.kind.value,
    }


def _why_not(estimate: Estimate) -> str:
    memory = estimate.memory
    if memory.high_bytes > memory.usable_bytes:
        return f"needs up to {memory.high_bytes} bytes of the device's {memory.usable_bytes} usable bytes"
    return f"needs {memory.host_bytes} bytes of the node's {memory.host_usable_bytes} bytes of host memory"
