"""Which checkpoints go when only the newest are kept."""

from __future__ import annotations

import os
from pathlib import Path

from planner.runtime.checkpoint_files import (
    MANIFEST,
    FileSize,
    Manifest,
    Position,
    damaged,
    outlived,
    parts_name,
    write_record,
)
from planner.spec import TrainingSpec
from planner.spec.checkpoint import checkpoint_layout, run_identity
from tests.unit.emit.samples import make_candidate, make_job


def save(folder: Path, name: str, *, at_s: int, finished: bool = True) -> Path:
    path = folder / name
    path.mkdir(exist_ok=True)
    (path / parts_name(0)).write_text("{}")
    (path / "states.pt").write_bytes(b"1234")
    training: TrainingSpec = make_job().training
    manifest = Manifest(
        format=1,
        layout=checkpoint_layout(make_candidate()),
        run=run_identity(training),
        position=Position(steps_done=1, samples_done=1, skipped_steps=0, schedule_step=1),
        ranks=(0,),
        files=(FileSize(name="states.pt", num_bytes=4),) if finished else (),
    )
    write_record(path / MANIFEST, manifest)
    for one in (path / MANIFEST, path):
        os.utime(one, (at_s, at_s))
    return path


def names(folder: Path, keep: int) -> set[str]:
    return {path.name for path in outlived(folder, keep=keep)}


def test_a_run_sent_back_to_an_earlier_step_keeps_what_it_saved_itself(tmp_path: Path) -> None:
    for at_s, step in enumerate((50, 80, 90, 100), start=1):
        save(tmp_path, f"global_step{step}", at_s=at_s)
    save(tmp_path, "global_step60", at_s=10)  # after `echo global_step50 > latest`
    assert names(tmp_path, 3) == {"global_step50", "global_step80"}
    save(tmp_path, "global_step70", at_s=11)
    assert names(tmp_path, 3) == {"global_step50", "global_step80", "global_step90"}
    assert names(tmp_path, 1) == {"global_step50", "global_step60", "global_step80", "global_step90", "global_step100"}


def test_torn_and_damaged_checkpoints_are_not_counted_as_kept(tmp_path: Path) -> None:
    save(tmp_path, "global_step10", at_s=1)
    save(tmp_path, "global_step20", at_s=2, finished=False)
    (save(tmp_path, "global_step30", at_s=3) / "states.pt").unlink()
    os.utime(tmp_path / "global_step30", (3, 3))
    save(tmp_path, "global_step40", at_s=4)
    assert names(tmp_path, 2) == set()
    save(tmp_path, "global_step50", at_s=5)
    assert names(tmp_path, 2) == {"global_step10", "global_step20", "global_step30"}
    assert names(tmp_path, 9) == set()


def test_advice_for_a_damaged_checkpoint_beside_another_damaged_one(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, f"global_step{step}", at_s=step)
    for step in (2, 3):
        (tmp_path / f"global_step{step}" / "states.pt").unlink()
    assert "go on from global_step1" in str(damaged(tmp_path, "global_step3", "its file states.pt is missing"))


def test_folders_of_other_programs_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "global_step1").mkdir()
    (tmp_path / "global_step1" / "mp_rank_00_model_states.pt").write_bytes(b"1")
    (tmp_path / "my_step2").mkdir()
    for step in (3, 4):
        save(tmp_path, f"global_step{step}", at_s=step)
    assert names(tmp_path, 1) == {"global_step3"}
