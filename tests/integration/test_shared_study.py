"""Several planners on one study, each a process of its own: nothing is lost, nothing is tried twice, all agree."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from planner.rundir import RunDir
from planner.spec import Measured, TrialRecord
from tests.integration.study_worker import JOB_HASH, SOME, speed_of

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 120


def _start(url: str, folder: Path, *flags: str, pause_s: float = 0.03) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.integration.study_worker", url, str(folder), str(pause_s), *flags]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _finish(worker: subprocess.Popen[str]) -> list[str]:
    out, err = worker.communicate(timeout=LIMIT_S)
    assert worker.returncode == 0, err
    return out.splitlines()


def _trials(folder: Path) -> tuple[TrialRecord, ...]:
    return RunDir.create(folder, JOB_HASH).read_trials()


def _ended(lines: list[str]) -> list[str]:
    return [line.removeprefix("end ") for line in lines if line.startswith("end ")]


@pytest.fixture(params=["sqlite", pytest.param("journal", marks=pytest.mark.slow), "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    return f"{request.param}:///{tmp_path}/shared.study"


def test_three_planners_share_a_study_without_a_trial_lost_or_repeated(url: str, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "abc"]
    outputs = [_finish(worker) for worker in [_start(url, folder) for folder in folders]]
    tried = Counter(key for lines in outputs for key in _ended(lines))
    assert tried == Counter(one.key for one in SOME)
    best = max(SOME, key=speed_of).key
    assert {lines[-1].split(":")[0] for lines in outputs} == {f"winner {best} of {len(SOME)}"}
    for folder in folders:
        trials = _trials(folder)
        assert {trial.key: _speed(trial) for trial in trials} == {one.key: speed_of(one) for one in SOME}
        assert len({trial.number for trial in trials}) == len(SOME)


def test_killed_planner_gives_its_trial_back(url: str, tmp_path: Path) -> None:
    doomed = _start(url, tmp_path / "doomed", pause_s=0.6)
    assert doomed.stdout is not None
    lines: list[str] = []
    while sum(line.startswith("begin") for line in lines) < 3:
        lines.append(doomed.stdout.readline().strip())
    survivor = _start(url, tmp_path / "survivor", "--join", pause_s=0.05)
    lines += [doomed.stdout.readline().strip() for _ in range(2)]  # the third ends, the fourth begins
    doomed.kill()
    doomed.wait()
    ended, cut_off = _ended(lines), lines[-1].removeprefix("begin ")
    assert len(ended) == 3 and cut_off not in ended
    rest = _ended(_finish(survivor))
    assert cut_off in rest
    assert Counter(ended) + Counter(rest) == Counter(one.key for one in SOME)
    assert {trial.key for trial in _trials(tmp_path / "survivor")} == {one.key for one in SOME}
    again = _ended(_finish(_start(url, tmp_path / "doomed", pause_s=0.05)))
    assert again == [] and {trial.key for trial in _trials(tmp_path / "doomed")} == {one.key for one in SOME}


def test_study_that_was_lost_is_rebuilt_from_one_planners_trials(tmp_path: Path) -> None:
    first, second = f"sqlite:///{tmp_path}/first.db", f"sqlite:///{tmp_path}/second.db"
    _finish(_start(first, tmp_path / "a", pause_s=0.0))
    assert _ended(_finish(_start(second, tmp_path / "a", pause_s=0.0))) == []
    assert _ended(_finish(_start(second, tmp_path / "b", "--join", pause_s=0.0))) == []
    assert {trial.key for trial in _trials(tmp_path / "b")} == {one.key for one in SOME}


def test_join_without_a_study_says_what_is_there(tmp_path: Path) -> None:
    worker = _start(f"sqlite:///{tmp_path}/none.db", tmp_path / "a", "--join")
    _, err = worker.communicate(timeout=LIMIT_S)
    assert worker.returncode != 0 and "no study of this job to join" in err and "--storage in place of --join" in err


def _speed(trial: TrialRecord) -> float:
    assert isinstance(trial.outcome, Measured)
    return trial.outcome.tokens_per_s
