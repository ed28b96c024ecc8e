"""`planner plan` with `--storage` and `--join` on a real PostgreSQL: real trials, two planners, one of them killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from pathlib import Path

from planner.spec import TrialRecord
from planner.spec.codec import from_plain
from tests.integration.commands import TINY_JOB, finish, start, wait_for_line

NUM_CANDIDATES = 6
# Trials long enough, on a machine with nothing else to do, for the second planner to join in time.
LONGER_JOB = TINY_JOB.replace("steps: 1,", "steps: 300,").replace("timeout: 60s", "timeout: 4m")


def _trials(folder: Path) -> list[TrialRecord]:
    lines = (folder / "trials.jsonl").read_text().splitlines()
    return [from_plain(TrialRecord, json.loads(line)) for line in lines]


def _kill(planner: subprocess.Popen[str]) -> None:
    os.killpg(planner.pid, signal.SIGKILL)
    planner.communicate()


def test_second_planner_finishes_what_a_killed_one_began(postgres_url: str, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(LONGER_JOB)
    first = start(["plan", str(job), "--storage", postgres_url, "--out", str(tmp_path / "a")])
    wait_for_line(first, "   0  ")  # the first trial ended
    second = start(["plan", str(job), "--join", postgres_url, "--out", str(tmp_path / "b")])
    wait_for_line(second, "holds ")
    wait_for_line(second, "   0  ")  # the first planner's trial arrived
    _kill(first)  # in the middle of another
    code, out, err = finish(second)
    assert code == 0, err
    assert "chosen" in out and "open%20sesame" not in out + err
    mine, theirs = _trials(tmp_path / "b"), _trials(tmp_path / "a")
    times = Counter(trial.key for trial in mine)
    assert len(times) == NUM_CANDIDATES and len({trial.number for trial in mine}) == len(mine)
    assert len(mine) <= NUM_CANDIDATES + 2  # a close race of the best two is run once more, nothing else twice
    kept = {(trial.key, trial.started_at_s): trial for trial in mine}
    assert theirs and all(kept[trial.key, trial.started_at_s].outcome == trial.outcome for trial in theirs)
    assert {trial.worker.rpartition("/")[2] for trial in mine} == {"a", "b"}
    for name in ("plan.yaml", "launch.sh"):
        assert "sesame" not in (tmp_path / "b" / name).read_text()

    back = start(["plan", str(job), "--storage", postgres_url, "--out", str(tmp_path / "a"), "--resume", "--json"])
    code, out, err = finish(back)
    assert code == 0, err
    assert {trial.key for trial in _trials(tmp_path / "a")} == {trial.key for trial in mine}
    assert json.loads(out)["key"] == json.loads(_plan_json(tmp_path / "b"))["key"]


def _plan_json(folder: Path) -> str:
    code, out, err = finish(start(["report", str(folder), "--json"]))
    assert code == 0, err
    return json.dumps({"key": json.loads(out)["plan"]["key"]})


def test_join_of_another_job_is_refused_before_anything_starts(postgres_url: str, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(LONGER_JOB)
    code, _, err = finish(start(["plan", str(job), "--join", postgres_url, "--out", str(tmp_path / "a")]))
    assert code == 2 and "no study of this job to join" in err and "it holds none at all" in err
    assert "sesame" not in err
