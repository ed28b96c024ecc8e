"""`trials: {submit: slurm}`: the search runs inside the allocation, and the login node gets its plan or its error."""

from __future__ import annotations

from pathlib import Path

from tests.integration.children import TINY_JOB, planner, read_plan, read_trials
from tests.integration.cluster_fakes import fake_cluster

OPTIONS = ("--set", "trials.submit=slurm", "--set", "slurm={partition: gpu, time: '01:00:00'}")


def test_search_is_submitted_as_one_job_and_its_plan_comes_back(tmp_path: Path) -> None:
    job, folder = tmp_path / "job.yaml", tmp_path / "my plans" / "tiny"
    job.write_text(TINY_JOB)
    cluster = fake_cluster(tmp_path / "bin")
    words = ("--max-trials", "2", "--json", "--storage", f"sqlite:///{tmp_path}/study.db", *OPTIONS)
    run = planner("plan", job, "--out", folder, *words, environment=cluster)
    assert run.exit_code == 0, run
    assert run.document["key"] == read_plan(folder)["key"]
    assert (tmp_path / "study.db").is_file()
    assert len(read_trials(folder)) == 2 and "Slurm job 77" in run.err
    script = (tmp_path / "my plans" / "tiny.slurm" / "search.sbatch").read_text()
    for line in ("--nodes=1", "--partition=gpu", "--time=01:00:00", "--exclusive"):
        assert f"#SBATCH {line}\n" in script
    assert "gpus-per-node" not in script  # the job is for CPUs
    again = planner("plan", job, "--out", folder, "--max-trials", "2", *OPTIONS, environment=cluster)
    assert again.exit_code == 2 and "already holds 2 trials" in again.err, again


def test_password_of_a_study_is_in_no_file_and_on_no_command_line(tmp_path: Path) -> None:
    """The submitted planner is given the whole URL and fails at it: no database answers there."""
    job, folder, said = tmp_path / "job.yaml", tmp_path / "plan", tmp_path / "said"
    job.write_text(TINY_JOB)
    cluster = fake_cluster(tmp_path / "bin")
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.rename(tmp_path / "bin" / "real-sbatch")
    sbatch.write_text(f'#!/usr/bin/env bash\nprintf "%s\\n" "$*" >"{said}"\nexec real-sbatch "$@"\n')
    sbatch.chmod(0o755)
    url = "postgresql://me:s3cr3t-word@127.0.0.1:9/studies"
    run = planner("plan", job, "--out", folder, "--storage", url, *OPTIONS, environment=cluster)
    assert run.exit_code == 2 and "me:***@127.0.0.1:9/studies" in run.err, run
    assert "--export=ALL,MESHPLAN_STUDY_URL" in said.read_text()
    assert "s3cr3t" not in run.err + run.out
    script = tmp_path / "plan.slurm" / "search.sbatch"
    assert "--storage env:MESHPLAN_STUDY_URL" in script.read_text() and script.stat().st_mode & 0o077 == 0
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        assert b"s3cr3t" not in path.read_bytes(), path


def test_search_cannot_be_submitted_where_there_is_no_slurm(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(TINY_JOB)
    run = planner("plan", job, "--out", tmp_path / "plan", *OPTIONS, environment={"PATH": "/usr/bin:/bin"})
    assert run.exit_code == 4 and "sbatch is not on the PATH" in run.err, run


def test_job_that_does_not_say_its_gpus_cannot_ask_for_them(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(TINY_JOB.replace("gpu: cpu, nodes: 1, gpus_per_node: 2, memory_gib: 2", "gpu: auto"))
    cluster = fake_cluster(tmp_path / "bin")
    run = planner("plan", job, "--out", tmp_path / "plan", *OPTIONS, environment=cluster)
    assert run.exit_code == 2 and "how many GPUs a node has" in run.err, run
