"""Every example job is planned by the model alone; the quickstart and the factories with real trials elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.rundir import RunDir
from tests.integration.commands import ROOT
from tests.integration.running import Planner, planner_fixture

planner = planner_fixture
JOBS = sorted((ROOT / "configs" / "jobs").glob("*.yaml"))
LARGE = ("llama-3.1-405b-scale",)  # hundreds of cluster sizes: seconds of work


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in JOBS if path.stem not in LARGE])
def test_example_is_planned_by_the_model(planner: Planner, tmp_path: Path, path: Path) -> None:
    words = ("plan", str(path), "--out", str(tmp_path / "out"), "--trials", "none", "--no-validate", "--json")
    run = planner(*words)
    assert run.exit_code == 0, run
    plan = RunDir.open(tmp_path / "out").read_plan()
    assert plan.key == json.loads(run.out)["key"] and plan.packages
    assert (tmp_path / "out" / "launch.sh").stat().st_mode & 0o100


def test_example_for_every_kind_of_user_is_there() -> None:
    assert len(JOBS) >= 10
    text = "".join(path.read_text() for path in JOBS)
    for word in ("factory:", "launcher: slurm", "gpu: auto", "extends:", "fewest_gpus", "objective: cost", "t5-large"):
        assert word in text
