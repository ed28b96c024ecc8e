"""What of a job is changed for the trainer of a plan folder that may be moved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.app.write import portable_job
from tests.unit.emit.samples import make_job


@pytest.mark.parametrize(
    ("checkpoints", "told"),
    [
        ("{plan}/checkpoints", "checkpoints"),
        ("{plan}/../plan/runs/a", "runs/a"),
        ("/elsewhere/checkpoints", "/elsewhere/checkpoints"),
        ("", ""),
    ],
)
def test_checkpoints_inside_the_plan_folder_move_with_it(tmp_path: Path, checkpoints: str, told: str) -> None:
    plan = tmp_path / "plan"
    plan.mkdir()
    job = make_job()
    job = replace(job, training=replace(job.training, checkpoint_dir=checkpoints.format(plan=plan)))
    assert portable_job(job, plan).training.checkpoint_dir == told
