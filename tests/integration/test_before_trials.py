"""What is refused before a trial is spent on it, and what no trials at all comes to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.running import Planner, planner_fixture

planner = planner_fixture
JOB = """\
model: {name: tiny-llama-cpu}
training: {seq_len: 64, global_batch_size: 16}
cluster: {gpu: cpu, nodes: 1, gpus_per_node: 2, memory_gib: 2}
search: {zero_stage: 0, tensor_parallel_size: 1, pipeline_parallel_size: 1, micro_batch_size: 4, precision: fp32}
"""


@pytest.mark.parametrize(
    ("launch", "overrides", "error"),
    [
        ("launch: {launcher: kubernetes}\nkubernetes: {image: a/b:1, name: Not_A_Name}", (), "kubernetes.name"),
        (
            "launch: {launcher: deepspeed}\nenvironment: {GREETING: 'say \"hi\"'}",
            ("--set", "cluster.nodes=2", "--trials", "emulated"),
            "launch.environment.GREETING",
        ),
        ('launch: {launcher: slurm}\nslurm: {comment: "two\\nlines"}', (), "slurm.comment"),
    ],
    ids=["kubernetes", "deepspeed", "slurm"],
)
def test_name_that_the_launcher_cannot_carry_is_refused_before_any_trial(
    planner: Planner, tmp_path: Path, launch: str, overrides: tuple[str, ...], error: str
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(f"{JOB}{launch}\n")
    run = planner("plan", str(job), "--out", str(tmp_path / "plan"), *overrides)
    assert run.exit_code in (2, 5)
    assert error in run.err
    assert not (tmp_path / "plan").exists()


def test_no_trials_in_the_file_is_a_plan_by_the_model(planner: Planner, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(f"{JOB}trials: {{max_trials: 0}}\n")
    run = planner("plan", str(job), "--out", str(tmp_path / "plan"), "--no-validate")
    assert run.exit_code == 0, run.err
    assert "max_trials is 0" in run.err
    assert "(computed)" in run.out
