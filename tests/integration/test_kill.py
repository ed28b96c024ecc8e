"""Kill -9 of the planner at any moment of a real search: nothing that had ended is lost, nothing runs on."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from tests.integration.children import (
    ROOT,
    TINY_JOB,
    command,
    processes_that_mention,
    read_plan,
    read_trials,
    succeed,
    write_job,
)

LARGER = TINY_JOB.replace("checkpointing: none", "checkpointing: [none, full, selective]").replace("9", "27")


def _start(job: Path, plan_dir: Path) -> subprocess.Popen[bytes]:
    words = command("plan", job, "--out", plan_dir, "--resume", "--no-validate", "--quiet")
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)


def _ended(plan_dir: Path) -> list[dict[str, object]]:
    return read_trials(plan_dir) if (plan_dir / "trials.jsonl").exists() else []


def _kill(job: Path, plan_dir: Path, *, trials: int, delay_s: float) -> None:
    """Run until so many more trials have ended and `delay_s` on, then kill the planner itself and nothing else."""
    wanted, process = len(_ended(plan_dir)) + trials, _start(job, plan_dir)
    try:
        deadline = time.monotonic() + 120
        while len(_ended(plan_dir)) < wanted and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(delay_s)
    finally:
        process.kill()
        _, errors = process.communicate()
    assert process.returncode in (0, -signal.SIGKILL), errors


def _settle(plan_dir: Path) -> None:
    for _ in range(200):
        if not processes_that_mention(str(plan_dir)):
            return
        time.sleep(0.05)
    pytest.fail(f"still running: {processes_that_mention(str(plan_dir))}")


def _check_whole(plan_dir: Path) -> None:
    """Every file that is there is whole."""
    for path in plan_dir.glob("*.json"):
        json.loads(path.read_text())
    for path in plan_dir.glob("*.yaml"):
        assert yaml.safe_load(path.read_text())
    if (plan_dir / "trials.jsonl").exists():
        for line in (plan_dir / "trials.jsonl").read_bytes().splitlines(keepends=True)[:-1]:
            json.loads(line)


def _storm(job: Path, *, num_candidates: int, moments: list[tuple[int, float]]) -> None:
    plan_dir = job.parent / "plan"
    kept: list[dict[str, object]] = []
    for trials, delay_s in moments:
        _kill(job, plan_dir, trials=trials, delay_s=delay_s)
        _settle(plan_dir)
        _check_whole(plan_dir)
        assert _ended(plan_dir)[: len(kept)] == kept
        assert len(_ended(plan_dir)) >= min(len(kept) + trials, num_candidates)
        kept = _ended(plan_dir)
    succeed("plan", job, "--out", plan_dir, "--resume", "--no-validate")
    trials_now = read_trials(plan_dir)
    assert trials_now[: len(kept)] == kept
    keys = [trial["key"] for trial in trials_now]
    assert len(set(keys)) == len(keys) == num_candidates
    assert [trial["number"] for trial in trials_now] == list(range(num_candidates))
    assert read_plan(plan_dir)["key"] in keys
    assert not list(plan_dir.glob(".meshplan-tmp-*"))
    _settle(plan_dir)


def test_kills_during_a_search_lose_no_trial_and_repeat_none(tmp_path: Path) -> None:
    chance = random.Random(7)  # noqa: S311
    moments = [(1, chance.uniform(0.0, 1.5)) for _ in range(2)]
    _storm(write_job(tmp_path), num_candidates=9, moments=moments)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [1, 2])
def test_kills_at_ten_random_moments_lose_no_trial_and_repeat_none(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311
    moments = [(chance.randint(0, 1), chance.uniform(0.0, 5.0)) for _ in range(10)]
    _storm(write_job(tmp_path, LARGER), num_candidates=27, moments=moments)
