"""The command that a submitted search runs asks for what was asked here, field by field."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from planner.app.requests import PlanRequest
from planner.app.submit import NOT_PASSED, STUDY_URL, exported_variables, plan_command
from planner.spec import TrialMode
from tests.unit.cli.fakes import FakeUseCases
from tests.unit.cli.running import Cli, assert_three_lines

URL = "postgresql://me:s3cr3t@db/studies"
BASE = PlanRequest(job_path=Path("/jobs/q.yaml"), out_dir=Path("/plans/q"))
ASKED: dict[str, dict[str, Any]] = {
    "job_path": {"job_path": Path("/jobs/other job.yaml")},
    "out_dir": {"out_dir": Path("/plans/other plan")},
    "site_defaults": {"site_defaults": False},
    "overrides": {"overrides": ("a.b=1", "slurm={partition: gpu}")},
    "trial_mode": {"trial_mode": TrialMode.EMULATED},
    "max_trials": {"max_trials": 0},
    "time_budget_s": {"time_budget_s": 90.5},
    "seed": {"seed": 0},
    "storage": {"storage": URL},
    "join": {"storage": URL, "join": True},
    "pin": {"pin": "zero_stage=1"},
    "resume": {"resume": True},
    "validate": {"validate": False},
    "profile": {"profile": True},
    "survive": {"survive": 2},
}


def test_every_field_of_a_request_is_passed_on_or_has_its_reason() -> None:
    assert set(ASKED) | set(NOT_PASSED) == {field.name for field in fields(PlanRequest)}
    assert not set(ASKED) & set(NOT_PASSED)


@pytest.mark.parametrize("name", ASKED)
def test_field_comes_back_from_the_command(cli: Cli, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(STUDY_URL, URL)
    request = replace(BASE, **ASKED[name])
    words = plan_command(request)
    assert "s3cr3t" not in " ".join(words)
    product = FakeUseCases()
    cli(*words[words.index("planner") + 1 :], product=product)
    assert product.requests == [request]


def test_study_named_by_a_variable_that_is_not_set_is_refused(cli: Cli) -> None:
    product = FakeUseCases()
    run = cli("plan", "q.yaml", "--join", "env:NOWHERE_SET", product=product)
    assert (run.exit_code, product.requests) == (2, [])
    assert "--join names the variable 'NOWHERE_SET', which is not set" in run.err
    assert_three_lines(run.err)


@pytest.mark.parametrize(
    ("slurm", "exported"),
    [
        ((), f"ALL,{STUDY_URL}"),
        ((("export", "PATH,HOME=/x"),), f"PATH,HOME=/x,{STUDY_URL}"),
        ((("export", "NONE"),), STUDY_URL),
    ],
)
def test_variable_is_exported_beside_what_the_job_exports(slurm: tuple[tuple[str, str], ...], exported: str) -> None:
    assert exported_variables(slurm) == exported
