"""Disks that are full or may not be written: three lines, exit 2, and what was there is still there and whole."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from planner.rundir import RunDir
from tests.integration.commands import TINY_JOB, finish, start
from tests.integration.running import Planner, planner_fixture
from tests.rights import folder_without_rights
from tests.unit.cli.running import assert_three_lines

planner = planner_fixture
UNTRIED = TINY_JOB.replace("mode: real", "mode: none")


@contextmanager
def _small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of its own in memory; left out where this machine does not allow mounting."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"mounting is not allowed here: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def _job(tmp_path: Path, text: str) -> str:
    (tmp_path / "job.yaml").write_text(text)
    return str(tmp_path / "job.yaml")


@pytest.mark.parametrize("size", ["4k", "8k", "16k", "24k", "36k"])
def test_full_disk_while_the_plan_is_written(planner: Planner, tmp_path: Path, size: str) -> None:
    with _small_disk(tmp_path / "disk", size) as disk:
        words = ("plan", _job(tmp_path, UNTRIED), "--out", str(disk / "out"), "--no-validate")
        run = planner(*words)
        assert run.exit_code == 2, run
        assert_three_lines(run.err)
        assert "the disk is full" in run.err and "free some space" in run.err
        out = disk / "out"
        assert not (out / "plan.yaml").exists()
        assert not [path for path in out.glob("*") if path.name.startswith(".meshplan-tmp")]
        subprocess.run(["mount", "-o", "remount,size=1m", str(disk)], check=True)
        assert planner(*words, "--resume").exit_code == 0
        RunDir.open(out).read_plan()


def test_full_disk_in_the_middle_of_a_search_keeps_the_trials(tmp_path: Path) -> None:
    with _small_disk(tmp_path / "disk", "200k") as disk:
        words = ["plan", _job(tmp_path, TINY_JOB), "--out", str(disk / "out")]
        code, _, err = finish(start(words))
        assert code == 2, err
        assert_three_lines(err)
        assert "the disk is full" in err or "disk is full" in err
        kept = RunDir.open(disk / "out").read_trials()
        subprocess.run(["mount", "-o", "remount,size=16m", str(disk)], check=True)
        code, _, err = finish(start([*words, "--resume"]))
        assert code == 0, err
        after = RunDir.open(disk / "out").read_trials()
        assert after[: len(kept)] == kept and len({trial.key for trial in after}) == len(after) == 6


def test_file_size_limit_of_the_shell_ends_in_three_lines(tmp_path: Path) -> None:
    limits = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048));"
    program = f"{limits} import sys; from planner.cli import main; main(sys.argv[1:])"
    words = ["plan", _job(tmp_path, UNTRIED), "--out", str(tmp_path / "out"), "--no-validate"]
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2, done.stderr
    assert_three_lines(done.stderr)
    assert "a file size limit was reached" in done.stderr and "ulimit" in done.stderr
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 2048


def test_folder_that_may_not_be_written(planner: Planner, tmp_path: Path) -> None:
    job = _job(tmp_path, UNTRIED)
    ours = [path for path in (tmp_path, *tmp_path.parents) if path.name.startswith(("test_", "popen-", "pytest-"))]
    for path in ours:  # pytest makes them for their owner alone
        path.chmod(path.stat().st_mode | 0o055)
    # Once with rights: everything is imported then, also from a Python that only its owner may read.
    assert planner("plan", job, "--out", str(tmp_path / "warm"), "--no-validate").exit_code == 0
    with folder_without_rights() as folder:
        for out in (folder, folder / "new"):
            run = planner("plan", job, "--out", str(out), "--no-validate")
            assert run.exit_code == 2, run
            assert_three_lines(run.err)
            assert "this user may not write there" in run.err and "--out" in run.err


def test_plan_on_a_read_only_file_system_can_be_read_and_not_written(planner: Planner, tmp_path: Path) -> None:
    with _small_disk(tmp_path / "disk", "2m") as disk:
        words = ("plan", _job(tmp_path, UNTRIED), "--out", str(disk / "out"), "--no-validate")
        assert planner(*words).exit_code == 0
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        assert planner("report", str(disk / "out")).exit_code == 0
        for verb in (words, ("emit", str(disk / "out"), "--launcher", "slurm")):
            run = planner(*verb)
            assert run.exit_code == 2, run
            assert_three_lines(run.err)
            assert "the file system is read-only" in run.err and "--out" in run.err
