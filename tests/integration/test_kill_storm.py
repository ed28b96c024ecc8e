"""A hundred kills at random moments lose nothing: no trial that ended, no file half-written, no plan that is not whole.

Slow lane. The moments are drawn from a seed that is printed with a failure.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from planner.rundir import RunDir, names
from planner.spec import TrialRecord
from tests.integration.commands import ROOT, TINY_JOB, finish, start
from tests.integration.study_worker import JOB_HASH, SOME

NUM_KILLS = 100
PLAN_FILES = (names.JOB, names.DS_CONFIG, names.TASK, names.LAUNCH, names.REPORT_HTML, names.REPORT_MARKDOWN)
LONG_JOB = TINY_JOB.replace("zero_stage: [0, 1], ", "zero_stage: [0, 1, 2, 3], ").replace(
    "max_trials: 6", "max_trials: 12"
)


def _kept(folder: Path, before: tuple[TrialRecord, ...]) -> tuple[TrialRecord, ...]:
    """The trials after a kill: all from before are there, unchanged and in their order."""
    if not (folder / names.IDENTITY).exists():
        assert not before
        return ()
    trials = RunDir.open(folder).read_trials()
    assert trials[: len(before)] == before
    assert len({trial.key for trial in trials}) == len(trials)
    assert [trial.number for trial in trials] == list(range(len(trials)))
    return trials


def _assert_whole(folder: Path) -> None:
    """A folder that has a plan has all of it; without one, no file is half-written either."""
    for path in folder.glob("*.json"):
        json.loads(path.read_text())
    if (folder / names.PLAN).exists():
        RunDir.open(folder).read_plan()
        assert not [name for name in PLAN_FILES if not (folder / name).stat().st_size]


def _assert_nothing_runs(family: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not [one for one in alive if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_hundred_kills_of_a_planner_at_random_moments_lose_nothing(tmp_path: Path) -> None:
    seed = int(time.time())
    moments = random.Random(seed)  # noqa: S311 - not for secrets
    print(f"seed {seed}")
    (tmp_path / "job.yaml").write_text(LONG_JOB)
    num_kills, num_plans, folder, trials = 0, 0, tmp_path / "plan-0", ()
    while num_kills < NUM_KILLS:
        child = start(["plan", str(tmp_path / "job.yaml"), "--out", str(folder), "--resume", "--quiet"])
        try:
            _, err = child.communicate(timeout=moments.uniform(0.3, 14.0))
        except subprocess.TimeoutExpired:
            family = psutil.Process(child.pid).children(recursive=True)
            os.kill(child.pid, signal.SIGKILL)
            child.communicate()
            num_kills += 1
            trials = _kept(folder, trials)
            _assert_whole(folder)
            _assert_nothing_runs(family)
            continue
        assert child.returncode == 0, err
        _assert_whole(folder)
        assert len(_kept(folder, trials)) == 12 and (folder / names.PLAN).exists()
        num_plans += 1
        folder, trials = tmp_path / f"plan-{num_plans}", ()
    code, _, err = finish(start(["plan", str(tmp_path / "job.yaml"), "--out", str(folder), "--resume"]))
    assert code == 0, err
    assert len(_kept(folder, trials)) == 12


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_hundred_kills_of_planners_on_one_study_lose_and_repeat_nothing(postgres_url: str, tmp_path: Path) -> None:
    """Three folders, one of them killed every moment: what any of them had ended is in the others, unchanged."""
    seed = int(time.time())
    moments = random.Random(seed)  # noqa: S311 - not for secrets
    print(f"seed {seed}")
    command = [sys.executable, "-m", "tests.integration.study_worker", postgres_url]
    folders = [tmp_path / name for name in "abc"]
    running: dict[Path, subprocess.Popen[bytes]] = {}
    ended: dict[tuple[str, float], TrialRecord] = {}
    for _ in range(NUM_KILLS):
        for folder in folders:
            if folder not in running or running[folder].poll() is not None:
                running[folder] = subprocess.Popen([*command, str(folder), "1.0"], cwd=ROOT, stdout=subprocess.DEVNULL)
        time.sleep(moments.uniform(0.2, 3.0))
        doomed = moments.choice(folders)
        running[doomed].kill()
        running[doomed].wait()
        if (doomed / names.IDENTITY).exists():
            ended |= {_identity(trial): trial for trial in RunDir.create(doomed, JOB_HASH).read_trials()}
    for folder in folders:
        if running[folder].poll() is None:
            running[folder].wait(timeout=120)
        last = subprocess.run([*command, str(folder), "0.1"], cwd=ROOT, capture_output=True, timeout=300, check=False)
        assert last.returncode == 0, last.stderr.decode()
        trials = RunDir.create(folder, JOB_HASH).read_trials()
        assert {trial.key for trial in trials} == {one.key for one in SOME}
        found = {_identity(trial): trial.outcome for trial in trials}
        assert all(found[identity] == trial.outcome for identity, trial in ended.items())


def _identity(trial: TrialRecord) -> tuple[str, float]:
    return trial.key, trial.started_at_s
