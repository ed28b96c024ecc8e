"""Whatever is wrong with what a user gives: three lines with the mend, the right exit code, at once; nothing lost."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.integration.running import Planner, planner_fixture
from tests.integration.wrong_inputs import ESTIMATES, FLAGS, JOB, JOB_FILES, MEANINGS, OTHERS, Wrong, job, unreadable
from tests.rights import as_nobody
from tests.unit.cli.running import assert_three_lines

planner = planner_fixture
MOST_S = 10.0  # of processor time in this process, on a machine that is busy with other things


def assert_ends_well(planner: Planner, wrong: Wrong, folder: Path) -> None:
    if wrong.make is not None:
        wrong.make(folder)
    before, started_s = _names(folder), time.process_time()
    run = planner(*(word.replace("{}", str(folder)) for word in wrong.words))
    assert time.process_time() - started_s < MOST_S
    assert run.exit_code == wrong.code, run
    assert run.out == ""
    assert_three_lines(run.err)
    error, _, fix = run.err.splitlines()[-3:]
    assert wrong.error in error and wrong.fix in fix, run.err
    assert "Traceback" not in run.err and len(run.err) < 4000
    assert _names(folder) - before <= {"out", "s.db"}
    assert not list((folder / "out").glob("plan.yaml")) if (folder / "out").is_dir() else True


def _names(folder: Path) -> set[str]:
    return {entry.name for entry in os.scandir(folder)}


def _named(*tables: tuple[Wrong, ...]) -> list[object]:
    return [pytest.param(wrong, id=wrong.name) for table in tables for wrong in table]


def test_the_list_is_as_long_as_promised() -> None:
    names = [
        (wrong.words[0], wrong.name) for table in (JOB_FILES, MEANINGS, FLAGS, ESTIMATES, OTHERS) for wrong in table
    ]
    assert len(set(names)) == len(names) >= 100


@pytest.mark.parametrize("wrong", _named(JOB_FILES))
def test_wrong_job_file(planner: Planner, wrong: Wrong, tmp_path: Path) -> None:
    assert_ends_well(planner, wrong, tmp_path)


@pytest.mark.parametrize("wrong", _named(MEANINGS))
def test_job_that_cannot_be(planner: Planner, wrong: Wrong, tmp_path: Path) -> None:
    assert_ends_well(planner, wrong, tmp_path)


@pytest.mark.parametrize("wrong", _named(FLAGS))
def test_wrong_flag(planner: Planner, wrong: Wrong, tmp_path: Path) -> None:
    assert_ends_well(planner, wrong, tmp_path)


@pytest.mark.parametrize("wrong", _named(ESTIMATES))
def test_wrong_estimate(planner: Planner, wrong: Wrong, tmp_path: Path) -> None:
    assert_ends_well(planner, wrong, tmp_path)


@pytest.mark.parametrize("wrong", _named(OTHERS))
def test_wrong_word_of_another_verb(planner: Planner, wrong: Wrong, tmp_path: Path) -> None:
    assert_ends_well(planner, wrong, tmp_path)


def test_job_file_without_rights(planner: Planner, tmp_path: Path) -> None:
    job(JOB)(tmp_path)
    assert planner("plan", str(tmp_path / "job.yaml"), "--dry-run").exit_code == 0  # everything is imported then
    unreadable(tmp_path)
    tmp_path.chmod(0o755)
    with as_nobody():
        run = planner("plan", str(tmp_path / "job.yaml"))
    assert run.exit_code == 2 and "cannot be read" in run.err
    assert_three_lines(run.err)


@pytest.mark.parametrize("variable", ["MESHPLAN_CONFIGS", "MESHPLAN_SITE_CONFIGS"])
def test_catalog_folder_that_is_none(
    planner: Planner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, str(tmp_path / "none"))
    run = planner("list", "gpus")
    assert run.exit_code == 2 and f"{variable} names" in run.err and "unset" in run.err
    assert_three_lines(run.err)


def test_catalog_entry_that_is_garbage(planner: Planner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gpus").mkdir()
    (tmp_path / "gpus" / "mine.yaml").write_text("memory: [\n")
    monkeypatch.setenv("MESHPLAN_CONFIGS", str(tmp_path))
    run = planner("list", "gpus")
    assert run.exit_code == 2 and "mine.yaml" in run.err
    assert_three_lines(run.err)


def test_plan_folder_of_another_job_keeps_its_plan(planner: Planner, tmp_path: Path) -> None:
    job(JOB)(tmp_path)
    words = ("plan", str(tmp_path / "job.yaml"), "--out", str(tmp_path / "out"), "--no-validate")
    assert planner(*words).exit_code == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    run = planner(*words, "--set", "training.seq_len=64")
    assert run.exit_code == 2 and "holds the plan of another job" in run.err and "--out" in run.err
    assert_three_lines(run.err)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_damaged_rows_answer_in_place_and_the_stream_goes_on(planner: Planner, tmp_path: Path) -> None:
    good = b'{"model": "gpt2", "seq_len": 128}\n'
    bad = [b"\xff\xfe\0", b"[1]", b"{", b'{"model": "gpt2"}', b'{"seq_len": 1e999, "model": "gpt2"}', b"[" * 10**5]
    bad += [b'{"model": "gpt2", "seq_len": NaN}', b'{"model": {}, "seq_len": 8}', b'{"model": "gpt2", "seq_len": 1%s}']
    bad[-1] = bad[-1] % (b"0" * 5000)
    rows = tmp_path / "rows.jsonl"
    blank = b"\n \n"  # no row, as readers of JSON lines have it
    rows.write_bytes(good + b"\n".join(bad) + blank + good)
    run = planner("estimate", "--from", str(rows))
    lines = run.out.splitlines()
    assert (run.exit_code, len(lines)) == (0, len(bad) + 2)
    assert '"feasible": true' in lines[0] and lines[0] == lines[-1]
    assert all(line.startswith('{"error": ') and '"fix": ' in line for line in lines[1:-1])
