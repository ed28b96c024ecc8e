"""Kill -9 at random moments: no trial lost, none repeated but the one cut off, every file whole."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from planner.rundir import RunDir, names
from planner.search import run_search
from tests.unit.search.kill_child import LANDSCAPE_SEED
from tests.unit.search.landscapes import ONE_NODE, TableEvaluator, make_landscape, memory_ports


def _start(folder: Path, diary: Path, max_trials: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.unit.search.kill_child", str(folder), str(diary), str(max_trials)]
    root = Path(__file__).parents[3]
    return subprocess.Popen(command, cwd=root, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)})


def _lines(diary: Path) -> list[list[str]]:
    return [line.split() for line in diary.read_text().splitlines()] if diary.exists() else []


def _kill_at_random(folder: Path, diary: Path, *, max_trials: int, rng: random.Random) -> None:
    """Kill a search somewhere within its first dozen trials, or (one time in five) while it starts."""
    num_before = len(_lines(diary))
    with _start(folder, diary, max_trials) as child:
        if rng.random() < 0.2:
            time.sleep(rng.uniform(0.1, 0.8))
        else:
            while len(_lines(diary)) <= num_before and child.poll() is None:
                time.sleep(0.005)
            time.sleep(rng.uniform(0.0, 0.4))
        child.send_signal(signal.SIGKILL)


def _check_whole(folder: Path, diary: Path, *, num_kills: int) -> None:
    """All that was said to be durable is there, in order, and no file is half-written.

    A kill may fall between a trial's writing and its line in the diary, so each may hide one line.
    """
    if not (folder / names.IDENTITY).exists():
        return
    run_dir = RunDir.open(folder)
    numbers = [trial.number for trial in run_dir.read_trials()]
    durable = [int(line[1]) for line in _lines(diary) if line[0] == "durable"]
    assert numbers == list(range(len(numbers)))
    assert set(durable) <= set(numbers) and len(numbers) <= len(durable) + num_kills
    if (folder / names.REPORT_MARKDOWN).exists():
        assert len(set(run_dir.read_text(names.REPORT_MARKDOWN).split())) == 1


def _storm(tmp_path: Path, *, num_kills: int, max_trials: int, seed: int) -> None:
    folder, diary, rng = tmp_path / "plan", tmp_path / "diary", random.Random(seed)  # noqa: S311
    for kill in range(num_kills):
        _kill_at_random(folder, diary, max_trials=max_trials, rng=rng)
        _check_whole(folder, diary, num_kills=kill + 1)
    assert _start(folder, diary, max_trials).wait() == 0
    trials = RunDir.open(folder).read_trials()
    assert [trial.number for trial in trials] == list(range(max_trials))

    started = Counter((line[1], line[2]) for line in _lines(diary) if line[0] == "start")
    assert len(started) == max_trials  # a trial run again is the same candidate under the same number
    assert sum(started.values()) - max_trials <= num_kills
    assert not list(folder.rglob(f"{names.TEMPORARY_PREFIX}*"))
    with sqlite3.connect(folder / names.STUDY_SQLITE) as study:
        assert study.execute("PRAGMA integrity_check").fetchone() == ("ok",)

    landscape = make_landscape(ONE_NODE, seed=LANDSCAPE_SEED)
    space = landscape.problem(max_trials=max_trials, early_end=False)
    undisturbed = run_search(space, ports=memory_ports(TableEvaluator(landscape)))
    assert [trial.key for trial in trials] == [trial.key for trial in undisturbed.trials]


def test_four_kills_lose_nothing_and_the_search_ends_as_if_undisturbed(tmp_path: Path) -> None:
    _storm(tmp_path, num_kills=4, max_trials=24, seed=3)


@pytest.mark.slow
def test_a_hundred_kills_lose_nothing(tmp_path: Path) -> None:
    _storm(tmp_path, num_kills=100, max_trials=350, seed=int(time.time()))
