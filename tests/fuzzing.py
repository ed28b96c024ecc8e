"""One property of a parser in two lanes: a few hundred inputs by default, a hundred thousand in the slow lane."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from planner.errors import PlannerError

FEW, MANY = 250, 100_000
# What texts of a YAML document are put together from.
YAML_PIECES = (
    *("[", "]", "{", "}", ":", "- ", "\n", "\n  ", "&a ", "*a", "!!x ", "a", "1", ", ", "'", '"', "|", ">", "#"),
    *("? ", "---\n", "\t"),
)


def lanes(strategy: Any, *, few: int = FEW) -> Callable[[Callable[[Any], None]], Any]:
    """The property in both lanes; `few` is for inputs that take long."""

    def wrap(body: Callable[[Any], None]) -> Any:
        checks = [HealthCheck.too_slow, HealthCheck.data_too_large]

        @pytest.mark.parametrize(
            "count", [few, pytest.param(MANY, marks=[pytest.mark.slow, pytest.mark.timeout(14_400)])]
        )
        def test(count: int) -> None:
            settings(max_examples=count, deadline=None, database=None, suppress_health_check=checks)(
                given(strategy)(body)
            )()

        test.__doc__ = body.__doc__
        return test

    return wrap


def only_planner_errors(work: Callable[[], object]) -> None:
    """Whatever the work refuses, it refuses in three sentences."""
    try:
        work()
    except PlannerError as error:
        assert error.error
        assert error.why
        assert error.fix
