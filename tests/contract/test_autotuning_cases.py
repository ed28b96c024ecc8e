"""What went wrong with other tuners (tests/data/cases/autotuning.yaml), each held against what the planner does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.app.draft import draft_plan
from planner.emit import LaunchPaths, render_launch
from planner.errors import NoFeasiblePlan
from planner.jobfile import load_job, resolve_job
from planner.rules import ConfigContext, check_config
from planner.rundir.filesystem import network_filesystem
from planner.search import run_search
from planner.search.history import observe
from planner.search.pruning import proven_out_of_memory
from planner.space import enumerate_candidates
from planner.spec import Candidate, JobSpec, Launcher, Outcome, TrialPolicy
from planner.spec.columns import candidate_at
from planner.trial.environment import worker_environment
from tests.unit.search.builders import candidate, crashed, measured, out_of_memory, problem
from tests.unit.search.landscapes import USABLE_BYTES, memory_ports

CASES = {
    case["id"]: case for case in yaml.safe_load((Path(__file__).parents[1] / "data/cases/autotuning.yaml").read_text())
}
# Answered elsewhere: the test that does.
ELSEWHERE = {
    "AUT-13": "tests/unit/trial/test_classify.py (a rank that consumed another batch ends the trial); every rank is "
    "forked with one task",
    "AUT-15": "tests/distributed/test_worker_trials.py (a trial after an out-of-memory one runs unharmed); "
    "tests/unit/trial/test_devices.py",
    "AUT-21": "tests/distributed/test_worker_lifetime.py (a process of its own for each trial)",
    "AUT-03": "cluster.groups of a job (tests/unit/jobfile), and world-uses-all-gpus below",
    "AUT-12": "tests/integration/test_kill_storm.py (only what had ended is kept on --resume)",
}


def plan_job(folder: Path, text: str) -> JobSpec:
    path = folder / "job.yaml"
    path.write_text(text)
    return resolve_job(load_job(path, (), site_defaults=False), machine=None, traced=None)


class Limit:
    """Larger micro-batches are faster, up to one that the memory does not hold. Keeps what was tried."""

    def __init__(self, largest: int) -> None:
        self.largest = largest
        self.tried: list[Candidate] = []

    def evaluate(self, number: int, tried: Candidate) -> Outcome:
        self.tried.append(tried)
        micro = tried.batch.micro_batch_size
        if micro > self.largest:
            return out_of_memory(excess=micro / self.largest - 1.0)
        return measured(1000.0 * micro / (micro + 4.0), memory_share=0.9 * micro / self.largest)


def micro_batches(sizes: tuple[int, ...], *, global_batch_size: int) -> tuple[Candidate, ...]:
    return tuple(candidate(micro=size, gas=global_batch_size // size) for size in sizes)


def search(sizes: tuple[int, ...], limit: Limit, *, global_batch_size: int, max_trials: int) -> Any:
    space = problem(
        micro_batches(sizes, global_batch_size=global_batch_size),
        tokens_per_s=tuple(900.0 * size / (size + 4.0) for size in sizes),
        memory_share=tuple(0.7 * size / sizes[-1] for size in sizes),
        policy=TrialPolicy(max_trials=max_trials, time_budget_s=1e9),
    )
    return run_search(space, ports=memory_ports(limit))


def test_every_case_is_answered() -> None:
    here = {name.partition("[")[0] for name in globals()}
    for number in CASES:
        assert number in ELSEWHERE or f"test_{number.replace('-', '_').lower()}" in " ".join(here), number


def test_aut_02_trials_and_start_scripts_use_no_ssh_and_a_blank_in_a_key_is_found(tmp_path: Path) -> None:
    job = plan_job(
        tmp_path,
        "model: {name: gpt2}\ntraining: {seq_len: 512, global_batch_size: 8}\n"
        "cluster: {gpu: h100, nodes: 1, gpus_per_node: 2}\n",
    )
    first = draft_plan(job).row(0).candidate
    for launcher in (Launcher.TORCHRUN, Launcher.DEEPSPEED):
        (script, *_rest) = render_launch(
            job, first, launcher=launcher, paths=LaunchPaths(script="launch.sh", python="python3")
        )
        assert "ssh" not in script.text
    environment = worker_environment(job.cluster.gpu.device, {"PATH": "/bin", "PDSH_RCMD_TYPE": "ssh"})
    assert "PDSH_RCMD_TYPE" not in environment
    findings = check_config({"train_batch_size": 8, "gradient_accumulation_steps ": 1}, ConfigContext(world_size=2))
    assert any("gradient_accumulation_steps" in finding.message for finding in findings)


def test_aut_10_the_largest_that_fits_is_found_when_it_is_the_bound() -> None:
    limit = Limit(largest=16)
    result = search((1, 2, 4, 8, 16), limit, global_batch_size=16, max_trials=5)
    assert result.choice.winner.candidate.batch.micro_batch_size == 16


def test_aut_20_after_running_out_the_search_ends_next_to_the_limit_not_at_half() -> None:
    sizes = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
    limit = Limit(largest=100)
    result = search(sizes, limit, global_batch_size=384, max_trials=6)
    assert result.choice.winner.candidate.batch.micro_batch_size == 96
    assert len(limit.tried) <= 6


def test_aut_17_a_resumed_search_repeats_nothing() -> None:
    sizes = tuple(range(1, 25))
    space = problem(
        tuple(candidate(micro=size, gas=1) for size in sizes),
        policy=TrialPolicy(max_trials=6, time_budget_s=1e9, sampler="random"),
    )
    limit = Limit(largest=100)
    first = run_search(space, ports=memory_ports(limit))
    longer = replace(space, policy=replace(space.policy, max_trials=12))
    again = run_search(longer, ports=memory_ports(limit), done=first.trials)
    keys = [trial.key for trial in again.trials]
    assert len(keys) == len(set(keys)) == 12


def test_aut_19_sqlite_is_not_used_on_a_network_file_system() -> None:
    mounts = "server:/export /home nfs4 rw 0 0\n/dev/sda1 / ext4 rw 0 0\n"
    assert network_filesystem(Path("/home/me/plan"), mounts=mounts) == "nfs4"


def test_aut_23_every_candidate_keeps_the_global_batch(tmp_path: Path) -> None:
    text = (
        "model: {name: gpt2}\ntraining: {seq_len: 512, global_batch_size: 32}\n"
        "cluster: {gpu: h100, nodes: 1, gpus_per_node: 1}\nsearch: {zero_stage: 0, activation_checkpointing: none}\n"
    )
    columns = enumerate_candidates(plan_job(tmp_path, text)).columns
    batches = [candidate_at(columns, row, num_layers=12).batch for row in range(len(columns))]
    assert {batch.global_batch_size for batch in batches} == {32}
    assert {(batch.micro_batch_size, batch.gradient_accumulation_steps) for batch in batches} >= {(32, 1), (16, 2)}


def test_aut_24_a_model_that_fits_nowhere_is_refused_with_need_and_have_and_what_would_do(tmp_path: Path) -> None:
    text = (
        "model: {name: deepseek-v3}\ntraining: {seq_len: 4096, global_batch_size: 64}\n"
        "cluster: {gpu: h200, nodes: 1, gpus_per_node: 2}\n"
    )
    with pytest.raises(NoFeasiblePlan) as caught:
        draft_plan(plan_job(tmp_path, text))
    assert "needs at least" in caught.value.why and "usable" in caught.value.why and caught.value.fix
    assert caught.value.exit_code == 3


def test_aut_25_no_candidate_takes_more_gpus_than_there_are_and_each_refusal_is_counted(tmp_path: Path) -> None:
    text = (
        "model: {name: llama-3.1-70b}\ntraining: {seq_len: 4096, global_batch_size: 64}\n"
        "cluster: {gpu: h100, nodes: 4, gpus_per_node: 8}\nsearch: {tensor_parallel_size: [1, 3, 8]}\n"
    )
    job = plan_job(tmp_path, text)
    space = enumerate_candidates(job)
    columns = space.columns
    worlds = columns.data_parallel_size * columns.tensor_parallel_size * columns.pipeline_parallel_size
    assert (worlds == 32).all()
    assert space.num_combinations == len(columns) + sum(one.count for one in space.rejections)
    assert all(one.sentence for one in space.rejections)


def test_aut_27_failures_are_told_apart_by_cause_and_memory_prunes_larger_ones() -> None:
    class Mixed(Limit):
        def evaluate(self, number: int, tried: Candidate) -> Outcome:
            return crashed() if tried.batch.micro_batch_size == 2 else super().evaluate(number, tried)

    result = search((1, 2, 4, 8, 16, 32), Mixed(largest=4), global_batch_size=64, max_trials=6)
    assert {type(trial.outcome).__name__ for trial in result.trials} == {"Crashed", "Measured", "OutOfMemory"}
    sizes = micro_batches((4, 8, 16), global_batch_size=64)
    seen = observe(1, out_of_memory(), usable_bytes=USABLE_BYTES)
    assert proven_out_of_memory(problem(sizes).columns, (seen,)).tolist() == [False, True, True]
