"""Two planners never work in one folder, and a dead one never keeps it."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from planner.errors import InputError
from planner.rundir import RunDir, names
from planner.rundir.lock import FolderLock

_HOLD = (
    "import sys, time; from pathlib import Path; from planner.rundir import RunDir;"
    "d = RunDir.open(Path(sys.argv[1]));\n"
    "with d.locked():\n    print('held', flush=True); time.sleep(60)"
)


def test_second_planner_is_refused_with_the_first_ones_process_until_it_is_killed(tmp_path: Path) -> None:
    run_dir = RunDir.create(tmp_path / "p", "h")
    with subprocess.Popen([sys.executable, "-c", _HOLD, str(run_dir.path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with pytest.raises(InputError, match="another planner") as refusal, run_dir.locked():
            pass
        assert f"process {holder.pid}" in refusal.value.why
        holder.send_signal(signal.SIGKILL)
    with run_dir.locked():
        pass


def test_lock_is_free_again_after_an_error_inside(tmp_path: Path) -> None:
    run_dir = RunDir.create(tmp_path / "p", "h")
    with pytest.raises(ZeroDivisionError), run_dir.locked():
        raise ZeroDivisionError
    with run_dir.locked(), pytest.raises(InputError, match=str(os.getpid())), run_dir.locked():
        pass


def test_reading_a_locked_folder_is_allowed(tmp_path: Path) -> None:
    run_dir = RunDir.create(tmp_path / "p", "h")
    with run_dir.locked():
        assert RunDir.open(run_dir.path).read_trials() == ()


def _no_flock(descriptor: int, operation: int) -> None:
    raise OSError(errno.ENOSYS, "no flock here")


@pytest.mark.parametrize(
    ("note", "refused"),
    [
        ({"pid": os.getpid(), "host": os.uname().nodename}, True),
        ({"pid": 1, "host": os.uname().nodename}, True),
        ({"pid": 2**22 + 5, "host": os.uname().nodename}, False),
        ({"pid": 5, "host": "some-other-host"}, True),
        ({}, False),
    ],
    ids=["alive", "alive-not-ours", "dead", "other-host", "half-written"],
)
def test_without_flock_the_note_decides(tmp_path: Path, note: dict[str, object], refused: bool) -> None:
    path = tmp_path / names.LOCK
    path.write_text(json.dumps(note))
    lock = FolderLock(path, flock=_no_flock)
    if refused:
        with pytest.raises(InputError, match="another planner"):
            lock.acquire()
    else:
        with lock:
            assert json.loads(path.read_text())["pid"] == os.getpid()
        assert path.read_text() == ""


def test_lock_failing_for_another_reason_is_an_input_error(tmp_path: Path) -> None:
    def broken(descriptor: int, operation: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(InputError, match="cannot lock"):
        FolderLock(tmp_path / names.LOCK, flock=broken).acquire()
