"""Trials of scripts that know nothing of the planner: what is measured of good ones, and what is said of the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from planner.spec import Crashed, DeviceKind, Diverged, Measured, Outcome, Phase, ScriptCall, TimedOut
from planner.spec.script import CONFIG_MARK
from planner.trial import WarmPool
from tests.distributed.tasks import make_task, tiny_llama

SCRIPTS = Path(__file__).parent / "scripts"
LIMIT_S = 120.0


@pytest.fixture(scope="module")
def pool() -> Iterator[WarmPool]:
    with WarmPool(DeviceKind.CPU, whole_shell=True) as warm:
        warm.wait_ready()
        yield warm


def run(
    pool: WarmPool,
    folder: Path,
    behaviour: str,
    *,
    ranks: int = 1,
    zero_stage: int = 0,
    limit_s: float = LIMIT_S,
    is_module: bool = False,
) -> Outcome:
    task = make_task(tiny_llama(), data_parallel_size=ranks, global_batch_size=2 * ranks, zero_stage=zero_stage)
    words = ("training" if is_module else "training.py", "--config", CONFIG_MARK, "--as", behaviour)
    script = ScriptCall(words=words, folder=str(SCRIPTS), is_module=is_module)
    return pool.run(replace(task, script=script), timeout_s=limit_s, log_path=folder / "trial.log")


def test_script_of_two_ranks_is_measured_without_knowing(pool: WarmPool, tmp_path: Path) -> None:
    outcome = run(pool, tmp_path, "good", ranks=2)
    assert isinstance(outcome, Measured), outcome
    for report in outcome.ranks:
        assert report.sequences_per_step == 4 and len(report.step_times_s) == 3
        assert len(report.losses) == 4 and len(set(report.losses)) == 4  # it learns: no two steps alike
        assert min(report.step_times_s) > 0 and report.forward_s > 0 and report.backward_s > 0
    assert outcome.ranks[0].losses == outcome.ranks[1].losses


@pytest.mark.parametrize("behaviour", ["forks", "swallows-every-end"])
def test_script_that_does_it_its_own_way_is_measured_and_ended(pool: WarmPool, tmp_path: Path, behaviour: str) -> None:
    outcome = run(pool, tmp_path, behaviour)
    assert isinstance(outcome, Measured), outcome
    assert len(outcome.ranks[0].losses) == 4


def test_helper_that_a_script_left_in_its_own_session_ends_with_the_trial(pool: WarmPool, tmp_path: Path) -> None:
    assert isinstance(run(pool, tmp_path, "forks"), Measured)
    assert pool.worker_pid is not None
    assert psutil.Process(pool.worker_pid).children(recursive=True) == []
    marker = ["sleep", "98765", str(pool.worker_pid)]
    assert not [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == marker]


def test_script_that_shows_no_loss_is_measured_without_one(pool: WarmPool, tmp_path: Path) -> None:
    outcome = run(pool, tmp_path, "loss-backward", zero_stage=1)
    assert isinstance(outcome, Measured), outcome
    assert outcome.ranks[0].losses == () and outcome.ranks[0].sequences_per_step == 2


def test_module_is_run_as_python_would(pool: WarmPool, tmp_path: Path) -> None:
    assert isinstance(run(pool, tmp_path, "good", is_module=True), Measured)


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        ("never-initializes", "never called deepspeed.initialize"),
        (
            "prints-its-own-error",
            "exit code 3 and never called deepspeed.initialize; the last it printed: FATAL: the data",
        ),
        ("ends-early", "ended by itself after 1 of 4 optimizer steps"),
        ("leaves-at-once", "exit code 0 and left no report"),
        ("own-config", "micro-batch size 4 instead of 1"),
        ("feeds-other-batches", "fed each rank 6 sequences in one optimizer step"),
    ],
)
def test_script_that_gives_no_measurement_is_told_of(pool: WarmPool, tmp_path: Path, behaviour: str, said: str) -> None:
    outcome = run(pool, tmp_path, behaviour)
    assert isinstance(outcome, Crashed) and said in outcome.message, outcome


def test_script_whose_loss_is_no_number_has_diverged(pool: WarmPool, tmp_path: Path) -> None:
    assert isinstance(run(pool, tmp_path, "diverges"), Diverged)


def test_script_that_hangs_is_ended_at_its_limit(pool: WarmPool, tmp_path: Path) -> None:
    outcome = run(pool, tmp_path, "hangs", limit_s=3.0)
    assert isinstance(outcome, TimedOut) and outcome.phase in (Phase.START, Phase.BUILD_MODEL), outcome


def test_script_that_is_not_there_is_named(pool: WarmPool, tmp_path: Path) -> None:
    script = ScriptCall(words=("no_such.py", CONFIG_MARK), folder=str(SCRIPTS))
    task = replace(make_task(tiny_llama()), script=script)
    outcome = pool.run(task, timeout_s=LIMIT_S, log_path=tmp_path / "trial.log")
    assert isinstance(outcome, Crashed) and "there is no script no_such.py" in outcome.message, outcome


def test_pool_still_runs_the_planners_own_trials(pool: WarmPool, tmp_path: Path) -> None:
    run(pool, tmp_path, "swallows-every-end")
    outcome = pool.run(make_task(tiny_llama(), steps=1), timeout_s=LIMIT_S, log_path=tmp_path / "own.log")
    assert isinstance(outcome, Measured), outcome
