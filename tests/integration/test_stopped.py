"""A planning that is stopped: once ends what runs and keeps what there is, twice ends now; nothing is left running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from planner.rundir import trial_log_name
from tests.integration.commands import LIMIT_S, TINY_JOB, finish, start, wait_for_line
from tests.unit.cli.running import assert_three_lines

GONE_S = 60.0
# Trials long enough to be stopped in the middle of, with limits that a busy machine keeps.
THREE_TRIALS = (
    TINY_JOB.replace("zero_stage: [0, 1]", "zero_stage: [0]")
    .replace("steps: 1,", "steps: 40,")
    .replace("time_budget: 5m, timeout: 60s", "time_budget: 30m, timeout: 10m")
)


def _planning(tmp_path: Path, *flags: str) -> subprocess.Popen[str]:
    job = tmp_path / "job.yaml"
    if not job.exists():
        job.write_text(THREE_TRIALS)
    return start(["plan", str(job), "--out", str(tmp_path / "out"), *flags])


def _wait_for_second_trial(child: subprocess.Popen[str], folder: Path) -> None:
    """Wait until the first trial has ended and the second runs: its ranks write into a scratch folder."""
    wait_for_line(child, "   0  ")
    until_s = time.monotonic() + LIMIT_S
    while not list((folder / "logs").glob(f".{trial_log_name(1)}.*/*")):
        assert child.poll() is None and time.monotonic() < until_s
        time.sleep(0.01)


def _lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]


def _family(child: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(child.pid).children(recursive=True)


def _assert_gone(family: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(family, timeout=GONE_S)
    assert not [one for one in alive if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_stopped_once_keeps_what_ended_and_goes_on_later(tmp_path: Path, number: signal.Signals) -> None:
    child = _planning(tmp_path)
    _wait_for_second_trial(child, tmp_path / "out")
    family = _family(child)
    child.send_signal(number)
    code, out, err = finish(child)
    assert (code, out) == (130, "")
    assert_three_lines(err)
    assert "every trial that had ended is kept" in err and "--resume" in err and "Traceback" not in err
    _assert_gone(family)
    kept = _lines(tmp_path / "out")
    assert [one["number"] for one in kept] == list(range(len(kept))) and 1 <= len(kept) <= 2
    assert not (tmp_path / "out" / "plan.yaml").exists()
    if number is not signal.SIGINT:
        return
    code, out, err = finish(_planning(tmp_path, "--resume"))
    assert code == 0, err
    after = _lines(tmp_path / "out")
    assert after[: len(kept)] == kept
    tried = [str(one["key"]) for one in after]
    assert len(set(tried[:3])) == 3  # none of the search's is repeated; a close race may be run once more after it
    assert set(tried[3:]) <= set(tried[:3]) and len(tried) <= 5


def test_stopped_twice_ends_at_once(tmp_path: Path) -> None:
    child = _planning(tmp_path)
    _wait_for_second_trial(child, tmp_path / "out")
    family = _family(child)
    child.send_signal(signal.SIGINT)
    child.send_signal(signal.SIGINT)
    code, _, err = finish(child)
    assert code == 130
    assert_three_lines(err)
    assert "Traceback" not in err
    _assert_gone(family)
    assert _lines(tmp_path / "out")[0]["number"] == 0


def test_stop_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    """`nohup planner plan …` goes on when its terminal is closed."""
    job = tmp_path / "job.yaml"
    job.write_text(TINY_JOB.replace("mode: real", "mode: none"))
    handler = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        child = start(["plan", str(job), "--out", str(tmp_path / "out")])
    finally:
        signal.signal(signal.SIGHUP, handler)
    wait_for_line(child, "validate")
    child.send_signal(signal.SIGHUP)
    code, _, err = finish(child)
    assert code == 0, err


def test_killed_planner_leaves_no_process_and_no_lock(tmp_path: Path) -> None:
    child = _planning(tmp_path)
    wait_for_line(child, "   0  ")
    family = _family(child)
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()
    _assert_gone(family)
    code, out, err = finish(_planning(tmp_path, "--resume", "--max-trials", "2", "--json"))
    assert code == 0, err
    assert json.loads(out)["plan"]["search"]["num_trials"] == 2


def test_two_planners_in_one_folder_the_second_is_told_of_the_first(tmp_path: Path) -> None:
    first = _planning(tmp_path)
    wait_for_line(first, "at most")
    code, _, err = finish(_planning(tmp_path, "--resume"))
    assert code == 2 and f"process {first.pid}" in err and "another planner is at work" in err
    assert_three_lines(err)
    first.send_signal(signal.SIGINT)
    assert finish(first)[0] == 130


def test_reader_that_goes_away_in_the_middle_is_no_error(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"model": "gpt2", "seq_len": 128}\n' * 20_000)
    child = start(["estimate", "--from", str(rows)])
    assert child.stdout is not None and child.stdout.readline().startswith("{")
    child.stdout.close()
    child.stdout = None
    _, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (0, "")
