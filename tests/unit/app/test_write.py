"""What of a job is changed for the trainer of a plan folder that may be moved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.app.write import portable_job
from planner.spec import Launcher
from tests.unit.emit.samples import make_job


def test_plan_inside_the_plan_folder_finds_its_checkpoints_above(tmp_path: Path) -> None:
    job = make_job()
    job = replace(job, training=replace(job.training, checkpoint_dir=f"{tmp_path}/checkpoints"))
    assert portable_job(job, tmp_path, folder="survive/2").training.checkpoint_dir == "../../checkpoints"


def test_checkpoints_keep_their_place_where_pods_see_the_plan_folder_read_only(tmp_path: Path) -> None:
    job = make_job()
    place = f"{tmp_path}/checkpoints"  # on a volume that is mounted at the same path
    job = replace(job, training=replace(job.training, checkpoint_dir=place))
    job = replace(job, launch=replace(job.launch, launcher=Launcher.KUBERNETES))
    assert portable_job(job, tmp_path).training.checkpoint_dir == place


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
