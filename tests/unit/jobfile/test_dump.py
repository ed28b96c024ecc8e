"""`job.yaml` means the job wherever it is read, and the hash names what matters of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.errors import InputError
from planner.jobfile import dump_job, job_hash, load_job, resolve_job
from planner.resources import find_data_dir
from planner.spec import JobSpec, LaunchSpec, TrialPolicy
from tests.unit.jobfile.jobs import MINIMAL, job_of, write_job
from tests.unit.jobfile.test_resolve import FULL, H200, TRACED

EXAMPLES = sorted((find_data_dir("configs") / "jobs").glob("*.yaml"))


def _again(folder: Path, job: JobSpec) -> JobSpec:
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    return resolve_job(load_job(write_job(elsewhere, dump_job(job))))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_dump_job_example_loads_back_equal(tmp_path: Path, path: Path) -> None:
    job_file = load_job(path)
    job = resolve_job(job_file, machine=H200, traced=TRACED if job_file.factory else None)
    assert _again(tmp_path, job) == job
    assert job_hash(_again(tmp_path, job)) == job_hash(job)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "lion", "muon"])
def test_dump_job_with_every_key_loads_back_equal(tmp_path: Path, optimizer: str) -> None:
    text = FULL.replace(
        "{name: adamw, lr: 3.0e-4, betas: [0.9, 0.95], weight_decay: 0.1, eps: 1e-9}", f"{{name: {optimizer}}}"
    )
    job = job_of(tmp_path, text)
    assert _again(tmp_path, job) == job


def test_dump_job_of_this_machine_and_of_a_factory_loads_back_without_either(tmp_path: Path) -> None:
    text = MINIMAL.replace("gpu: cpu", "gpu: auto").replace("name: tiny-llama-cpu", "factory: 'a.b:c'")
    job = resolve_job(load_job(write_job(tmp_path, text)), machine=H200, traced=TRACED)
    again = load_job(write_job(tmp_path, dump_job(job), "again.yaml"))
    assert (again.needs_machine, again.factory) == (False, "")
    assert resolve_job(again) == job


def test_dump_job_awkward_texts_survive(tmp_path: Path) -> None:
    awkward = "a\"b'c\\d\ne\tf{deepspeed_config} é 😀 \u2028 #: - ? & * ! % @ ` | >"
    job = job_of(tmp_path, MINIMAL)
    launch = LaunchSpec(environment=(("A", awkward), ("B", ""), ("C", "null"), ("D", "012"), ("E", "\x7f\x85\ufeff")))
    assert _again(tmp_path, replace(job, launch=launch)).launch == launch


def test_job_hash_ignores_budget_launcher_and_prose(tmp_path: Path) -> None:
    job = job_of(tmp_path, FULL)
    same = replace(
        job,
        trials=TrialPolicy(),
        launch=LaunchSpec(command=job.launch.command, environment=job.launch.environment, python_path=("/elsewhere",)),
        cluster=replace(job.cluster, name="other", gpu=replace(job.cluster.gpu, source="another words")),
    )
    assert job_hash(same) == job_hash(job)


@pytest.mark.parametrize(
    "override",
    [
        "training.seq_len=4096",
        "training.global_batch_size=256",
        "training.optimizer.lr=1e-5",
        "cluster.nodes=4",
        "cluster.inter_node_link=ethernet-100",
        "search.zero_stage=[1]",
        "search.precision=bf16",
        "memory_headroom=0.2",
        "objective=throughput",
        "environment.A=2",
        "model.name=llama-3.1-70b",
    ],
)
def test_job_hash_sees_what_changes_measurement_or_choice(tmp_path: Path, override: str) -> None:
    assert job_hash(job_of(tmp_path, FULL, override)) != job_hash(job_of(tmp_path, FULL))


def test_job_hash_of_this_machine_does_not_follow_its_free_memory(tmp_path: Path) -> None:
    job_file = load_job(write_job(tmp_path, MINIMAL.replace("gpu: cpu", "gpu: auto")))
    first = resolve_job(job_file, machine=H200)
    later = resolve_job(job_file, machine=replace(H200, usable_bytes=H200.usable_bytes - 12_345))
    assert first != later
    assert job_hash(first) == job_hash(later)


def test_job_hash_is_the_same_in_every_process(tmp_path: Path) -> None:
    import subprocess
    import sys

    path = write_job(tmp_path, FULL)
    code = (
        "import sys; from pathlib import Path; from planner.jobfile import *;"
        "print(job_hash(resolve_job(load_job(Path(sys.argv[1])))))"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", code, str(path)],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[3])},
        ).stdout
        for seed in ("1", "2")
    }
    assert hashes == {job_hash(job_of(tmp_path, FULL)) + "\n"}


@pytest.mark.parametrize("said", ["[2, 4]", "[2, 3, 7]", "{from: 2, to: 20, step: 3}"])
def test_dump_job_of_several_cluster_sizes_loads_back_equal(tmp_path: Path, said: str) -> None:
    job = job_of(tmp_path, MINIMAL.replace("gpu: cpu", f"gpu: cpu, nodes: {said}"))
    assert len(job.node_counts) >= 2
    assert _again(tmp_path, job) == job
    one = job_of(tmp_path, MINIMAL.replace("gpu: cpu", f"gpu: cpu, nodes: {job.cluster.nodes}"))
    assert job_hash(job) != job_hash(one)


def test_cluster_sizes_beside_other_figures_are_refused(tmp_path: Path) -> None:
    text = dump_job(job_of(tmp_path, MINIMAL.replace("gpu: cpu", "gpu: cpu, nodes: [2, 4]")))
    assert "    nodes: 4\n" in text
    with pytest.raises(InputError, match=r"goes up to 4, but cluster\.resolved has 5 nodes"):
        resolve_job(load_job(write_job(tmp_path, text.replace("    nodes: 4\n", "    nodes: 5\n"), "other.yaml")))
