"""A sweep that was kept is read back as a search problem, and every sweep that is kept is searched well."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from planner.jobfile import dump_job
from planner.search import run_search
from planner.spec import Measured, TrialRecord
from planner.spec.codec import to_plain
from tests.benchmarks.sweep_gpu import JOB, candidates_of, without_log
from tests.unit.jobfile.jobs import job_of
from tests.unit.search.builders import out_of_memory, trial
from tests.unit.search.kept_sweeps import load_kept_sweeps
from tests.unit.search.landscapes import memory_ports, outcome_of

MAX_REGRET = 0.01  # or two standard errors, where they are more


def _keep(folder: Path, *, parts: int) -> None:
    """A sweep of the benchmark job, its figures made up: larger micro-batches are faster, 32 is too large."""
    job = job_of(folder, JOB.read_text())
    usable = job.cluster.gpu.memory_usable_bytes
    for part in range(1, parts + 1):
        trials: list[TrialRecord] = []
        for number, candidate in enumerate(candidates_of(job, part=part, parts=parts)):
            micro = candidate.batch.micro_batch_size
            speed = 30_000.0 * micro / (micro + 1.0)
            outcome = out_of_memory() if micro == 32 else outcome_of(speed, usable * micro / 20, usable_bytes=usable)
            trials.append(trial(number, candidate, without_log(outcome)))
        head = json.dumps({"job": dump_job(job), "part": f"{part}/{parts}"})
        text = "\n".join([head, *(json.dumps(to_plain(one)) for one in trials)]) + "\n"
        (folder / f"sweep-{part}.jsonl").write_text(text)


def test_kept_sweep_in_parts_is_one_problem_with_every_candidate_once(tmp_path: Path) -> None:
    _keep(tmp_path, parts=2)
    (sweep,) = load_kept_sweeps(tmp_path)
    assert len(sweep.columns) == 60 and sweep.num_trials == 9
    out = sweep.memory_bytes > sweep.usable_bytes
    assert (sweep.columns.micro_batch_size[out] == 32).all() and int(out.sum()) == 12
    assert sweep.best_tokens_per_s == pytest.approx(30_000.0 * 16 / 17)
    assert np.isfinite(sweep.priors.tokens_per_s).all()


def test_search_of_a_kept_sweep_ends_near_its_best(tmp_path: Path) -> None:
    _keep(tmp_path, parts=1)
    (sweep,) = load_kept_sweeps(tmp_path)
    result = run_search(sweep.problem(seed=0), ports=memory_ports(sweep))
    assert result.choice is not None and len(result.trials) <= sweep.num_trials
    assert sweep.regret(result.choice.winner.candidate) <= 0.05


@pytest.mark.parametrize("sweep", load_kept_sweeps(), ids=lambda sweep: sweep.name)
def test_search_ends_within_one_percent_of_the_best_of_a_sweep_that_was_run(sweep) -> None:  # type: ignore[no-untyped-def]
    regrets = []
    for seed in range(20):
        result = run_search(sweep.problem(seed=seed), ports=memory_ports(sweep))
        regrets.append(sweep.regret(result.choice.winner.candidate) if result.choice else 1.0)
    assert float(np.median(regrets)) <= MAX_REGRET


def test_outcome_is_kept_without_its_log() -> None:
    assert without_log(replace(out_of_memory(), log_tail="/home/me")).log_tail == ""  # type: ignore[union-attr]
    assert isinstance(without_log(outcome_of(1.0, 1.0)), Measured)
