"""Which folders are taken, which are refused, and that a refused one is left untouched."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from planner.errors import InputError
from planner.rundir import RunDir, names
from planner.spec import Plan, TrialRecord
from planner.spec.plan import PLAN_FORMAT


def _content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_create_missing_parents_makes_a_folder_that_opens(tmp_path: Path) -> None:
    made = RunDir.create(tmp_path / "a" / "b", "hash1")
    assert RunDir.open(tmp_path / "a" / "b").job_hash == made.job_hash == "hash1"


def test_create_again_with_same_job_keeps_everything(tmp_path: Path, trial: Callable[[int], TrialRecord]) -> None:
    RunDir.create(tmp_path / "p", "hash1").append_trial(trial(0))
    assert RunDir.create(tmp_path / "p", "hash1").read_trials() == (trial(0),)


def test_create_in_folder_with_foreign_files_is_refused_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    before = _content(tmp_path)
    with pytest.raises(InputError, match="not a plan folder"):
        RunDir.create(tmp_path, "hash1")
    assert _content(tmp_path) == before


def test_create_where_a_planner_died_in_its_first_moment_succeeds(tmp_path: Path) -> None:
    (tmp_path / names.LOCK).touch()
    (tmp_path / f"{names.TEMPORARY_PREFIX}123-abc").write_text("{")
    assert RunDir.create(tmp_path, "hash1").job_hash == "hash1"


def test_create_over_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    with pytest.raises(InputError, match="is a file"):
        RunDir.create(tmp_path / "f", "hash1")
    with pytest.raises(InputError, match="cannot make"):
        RunDir.create(tmp_path / "f" / "below", "hash1")


def test_create_for_another_job_is_refused_and_touches_nothing(
    tmp_path: Path, trial: Callable[[int], TrialRecord]
) -> None:
    RunDir.create(tmp_path / "p", "hash1").append_trial(trial(0))
    before = _content(tmp_path)
    with pytest.raises(InputError, match="another job"):
        RunDir.create(tmp_path / "p", "hash2")
    assert _content(tmp_path) == before


def test_create_for_another_job_when_told_sets_the_old_trials_aside(
    tmp_path: Path, plan: Plan, trial: Callable[[int], TrialRecord]
) -> None:
    old = RunDir.create(tmp_path / "p", "../hash1")
    old.append_trial(trial(0))
    old.write_plan(plan)
    new = RunDir.create(tmp_path / "p", "hash2", other_job_allowed=True)
    assert new.read_trials() == ()
    assert RunDir.open(tmp_path / "p").job_hash == "hash2"
    assert (tmp_path / "p" / "trials-of-hash1.jsonl").exists()
    assert not (tmp_path / "p" / names.PLAN).exists()
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


def test_trials_set_aside_before_are_never_written_over(tmp_path: Path, trial: Callable[[int], TrialRecord]) -> None:
    for number, job in enumerate(("hash1", "hash2", "hash1", "hash2")):
        RunDir.create(tmp_path, job, other_job_allowed=True).append_trial(trial(number))
    aside = {path.name: path.read_text().count("\n") for path in tmp_path.glob("trials-of-*")}
    assert aside == {"trials-of-hash1.jsonl": 1, "trials-of-hash2.jsonl": 1, "trials-of-hash1-2.jsonl": 1}


def test_create_by_two_jobs_at_once_gives_the_folder_to_one(tmp_path: Path) -> None:
    def create(path: Path, job: str, start: Barrier) -> str | None:
        start.wait()
        try:
            return RunDir.create(path, job).job_hash
        except InputError:
            return None

    with ThreadPoolExecutor(2) as threads:
        for number in range(30):
            path, start = tmp_path / str(number), Barrier(2)
            made = [threads.submit(create, path, job, start) for job in ("hash1", "hash2")]
            winners = {one.result() for one in made} - {None}
            assert winners == {RunDir.open(path).job_hash}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\x00", b'{"format": "x", "job_hash": "h"}', b'"' * 9])
def test_open_damaged_identity_is_an_input_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / names.IDENTITY).write_bytes(content)
    with pytest.raises(InputError, match="damaged"):
        RunDir.open(tmp_path)


def test_open_newer_format_is_refused_with_its_number(tmp_path: Path) -> None:
    (tmp_path / names.IDENTITY).write_text(json.dumps({"format": PLAN_FORMAT + 1, "job_hash": "h"}))
    with pytest.raises(InputError, match="newer planner") as refusal:
        RunDir.create(tmp_path, "h")
    assert str(PLAN_FORMAT + 1) in refusal.value.why


@pytest.mark.parametrize("make", [lambda p: None, lambda p: p.mkdir(), lambda p: p.write_text("x")])
def test_open_what_is_no_plan_folder_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "p")
    with pytest.raises(InputError):
        RunDir.open(tmp_path / "p")


def test_open_copy_that_lost_hidden_files_is_known_by_its_plan(tmp_path: Path, plan: Plan) -> None:
    run_dir = RunDir.create(tmp_path / "p", plan.job_hash)
    run_dir.write_plan(plan)
    run_dir.file(names.IDENTITY).unlink()
    assert RunDir.open(tmp_path / "p").job_hash == plan.job_hash


def test_remove_plan_leaves_a_folder_without_a_plan_that_is_still_known(tmp_path: Path, plan: Plan) -> None:
    run_dir = RunDir.create(tmp_path / "plan", "hash")
    run_dir.remove_plan()  # there is none: no harm
    run_dir.write_plan(plan)
    run_dir.remove_plan()
    with pytest.raises(InputError, match=r"has no plan\.yaml"):
        RunDir.open(tmp_path / "plan").read_plan()


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "launch/../../x", "", "."])
def test_file_name_leading_out_of_the_folder_is_a_bug(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError):
        RunDir.create(tmp_path / "p", "h").file(name)


def test_read_text_of_a_missing_file_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no plan") as refusal:
        RunDir.create(tmp_path / "p", "h").read_plan()
    assert "--resume" in refusal.value.fix


def test_read_text_of_binary_is_an_input_error(tmp_path: Path) -> None:
    run_dir = RunDir.create(tmp_path / "p", "h")
    run_dir.file(names.JOB).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not text"):
        run_dir.read_text(names.JOB)


@pytest.mark.parametrize("target", ["/dev/zero", "pipe"])
@pytest.mark.parametrize("name", [names.PLAN, names.TRIALS, names.IDENTITY])
def test_pipes_and_devices_in_the_place_of_files_are_refused_at_once(tmp_path: Path, name: str, target: str) -> None:
    folder = RunDir.create(tmp_path / "plan", "hash").path
    os.mkfifo(tmp_path / "pipe")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(tmp_path / target)
    with pytest.raises(InputError, match="is not an ordinary file"):
        run_dir = RunDir.open(folder)
        run_dir.read_plan() if name == names.PLAN else run_dir.read_trials()


def test_log_that_is_a_pipe_has_no_end(tmp_path: Path) -> None:
    run_dir = RunDir.create(tmp_path / "plan", "hash")
    os.mkfifo(run_dir.log_file(0))
    assert run_dir.read_log_end(run_dir.log_file(0).name, most=100) == ""
