"""Whole or not at all, also when the disk refuses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from planner.errors import InputError
from planner.rundir import RunDir, names
from planner.rundir.atomic import write_whole
from tests.rights import folder_without_rights


def test_write_text_executable_follows_umask(tmp_path: Path) -> None:
    run_dir = RunDir.create(tmp_path / "p", "h")
    old = os.umask(0o027)
    try:
        script = run_dir.write_text(names.LAUNCH, "#!/bin/sh\n", executable=True)
        text = run_dir.write_text("launch/job.yaml", "a: ä\n")
    finally:
        os.umask(old)
    assert script.stat().st_mode & 0o777 == 0o750
    assert text.stat().st_mode & 0o777 == 0o640
    assert text.read_bytes() == "a: ä\n".encode()


def test_write_whole_refused_half_way_keeps_the_old_content(tmp_path: Path) -> None:
    target = tmp_path / "plan.yaml"
    target.write_bytes(b"old")
    code = (
        "import resource, signal, sys; from pathlib import Path; from planner.rundir.atomic import write_whole;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000));"
        "write_whole(Path(sys.argv[1]), b'n' * 5000)"
    )
    child = subprocess.run([sys.executable, "-c", code, str(target)], capture_output=True, text=True, check=False)
    assert "InputError" in child.stderr and "file size limit" in child.stderr
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["plan.yaml"]


def test_write_to_read_only_folder_is_an_input_error() -> None:
    with folder_without_rights() as folder, pytest.raises(InputError, match="cannot write"):
        write_whole(folder / "x", b"x")


def test_write_into_a_vanished_folder_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError) as refusal:
        write_whole(tmp_path / "gone" / "x", b"x")
    assert refusal.value.why == "the folder is gone"


def test_write_over_a_folder_is_an_input_error_and_leaves_no_temporary(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").mkdir()
    with pytest.raises(InputError, match="cannot write"):
        write_whole(tmp_path / "plan.yaml", b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["plan.yaml"]


def test_stale_temporaries_of_a_killed_writer_are_removed_by_the_next_planner(tmp_path: Path) -> None:
    run_dir = RunDir.create(tmp_path / "p", "h")
    run_dir.write_text("launch/keep.sh", "x")
    for folder in (run_dir.path, run_dir.path / "launch"):
        (folder / f"{names.TEMPORARY_PREFIX}99-ff").write_text("half")
    with run_dir.locked():
        left = sorted(path.name for path in run_dir.path.rglob("*") if path.is_file())
    assert left == sorted([names.IDENTITY, names.LOCK, "keep.sh"])


def test_write_whole_killed_at_random_moments_is_old_or_new(tmp_path: Path) -> None:
    target = tmp_path / "plan.yaml"
    code = (
        "import sys; from pathlib import Path; from planner.rundir.atomic import write_whole;"
        "print('go', flush=True);"
        "[write_whole(Path(sys.argv[1]), bytes([65 + i % 26]) * 200_000) for i in range(100_000)]"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(target)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"go\n"
        while not target.exists():
            pass
        child.send_signal(signal.SIGKILL)
    content = target.read_bytes()
    assert len(content) == 200_000 and len(set(content)) == 1


def test_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(pipe, b"content")
        assert os.read(reader, 100) == b"content"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
