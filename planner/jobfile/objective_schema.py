"""What a job file may say of its aim: one word, or the day by which the training has to be done."""

from __future__ import annotations

import re
from datetime import date
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from planner.catalog.documents import describe
from planner.catalog.strict import StrictModel, complain
from planner.errors import did_you_mean
from planner.jobfile.quantities import duration_of_text
from planner.spec import Objective

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_MAX_S = 100 * 365.0 * 86_400
_WORDS = tuple(word for word in Objective if word is not Objective.DEADLINE)


def parse_date(value: Any) -> date | None:
    """An ISO date; a validator for pydantic. What is taken back with null is None."""
    if value is None:
        return None
    try:
        if isinstance(value, str) and _DAY.fullmatch(value):
            return date.fromisoformat(value)
    except ValueError:
        pass  # the message below says it for every form
    raise complain(f"must be a date, found {describe(value)}", fix="write it like 2027-03-01")


def parse_due(value: Any) -> date | float | None:
    """A date, or the seconds of a duration such as `30d`. A bare number is neither: 20270301 was meant as a day."""
    if isinstance(value, str) and _DAY.fullmatch(value):
        return parse_date(value)
    seconds = duration_of_text(value) if isinstance(value, str) else None
    if seconds is None:
        fix = "write it like 2027-03-01 or 30d"
        raise complain(f"must be a date or a duration with its unit, found {describe(value)}", fix=fix)
    if not 1 <= seconds <= _MAX_S:
        raise complain(f"must be from a second to 100 years, found {describe(value)}", fix="write it like 30d")
    return round(seconds, 6)  # as it is written back


class ObjectiveChoice(StrictModel):
    """`word`: what a plain objective is; `deadline` where there is one."""

    word: Objective = Objective.THROUGHPUT
    deadline: Annotated[Any, BeforeValidator(parse_due)] = Field(
        default=None, description="the day by which all steps are done (2027-03-01), or how long they may take (30d)"
    )
    start: Annotated[Any, BeforeValidator(parse_date)] = Field(
        default=None, description="the day the training starts; left out: the day it is planned"
    )

    @model_validator(mode="after")
    def _start_belongs_to_a_day(self) -> ObjectiveChoice:
        if self.start is not None and not isinstance(self.deadline, date):
            raise complain("has a start that changes nothing", fix="give the deadline as a date, or remove start")
        if self.start is not None and self.start >= self.deadline:
            raise complain(f"ends on {self.deadline}, before it starts", fix="correct deadline or start")
        return self


def parse_objective(value: Any) -> Any:
    """A word, or a mapping with `deadline`."""
    if isinstance(value, ObjectiveChoice):
        return value
    if isinstance(value, dict):
        unknown = [key for key in value if key not in ("deadline", "start")]
        if unknown:
            raise complain(f"has the unknown key {unknown[0]!r}", fix=did_you_mean(unknown[0], ("deadline", "start")))
        if value.get("deadline") is None:
            raise complain("names no deadline", fix="write objective: {deadline: 2027-03-01}, or one word")
        return {"word": Objective.DEADLINE, **value}
    if value == Objective.DEADLINE.value:
        raise complain("names no day", fix="write objective: {deadline: 2027-03-01} or {deadline: 30d}")
    if not isinstance(value, str) or value not in _WORDS:
        words = ", ".join(_WORDS)
        raise complain(
            f"must be one of {words} or {{deadline: 2027-03-01}}, found {describe(value)}",
            fix=did_you_mean(value, _WORDS) if isinstance(value, str) else f"use one of: {words}",
        )
    return {"word": Objective(value)}


ObjectiveSection = Annotated[ObjectiveChoice, BeforeValidator(parse_objective)]
