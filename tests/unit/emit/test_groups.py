"""Start files of a pipeline over two kinds of nodes: who is which node is said, asked for, and kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.emit import EmittedFile, LaunchPaths, render_launch, stage_groups
from planner.errors import NotExpressible
from planner.spec import ActivationCheckpointing, BatchSplit, Candidate, JobSpec, Launcher, ParallelLayout, Precision
from tests.unit.emit.fakes import FakeMachine
from tests.unit.jobfile.jobs import job_of

JOB = """\
model: {name: llama-3.2-1b}
training: {seq_len: 1024, global_batch_size: 64}
cluster: {groups: [{gpu: a100-80gb, nodes: 1, gpus_per_node: 2}, {gpu: h100, nodes: 1, gpus_per_node: 2}]}
"""
CANDIDATE = Candidate(
    layout=ParallelLayout(data_parallel_size=2, pipeline_parallel_size=2, stage_layers=(5, 11)),
    batch=BatchSplit(micro_batch_size=2, gradient_accumulation_steps=16, data_parallel_size=2),
    zero_stage=1,
    precision=Precision.BF16,
    activation_checkpointing=ActivationCheckpointing(),
)


@pytest.fixture(name="job")
def job_fixture(tmp_path: Path) -> JobSpec:
    return job_of(tmp_path, JOB)


def _files(job: JobSpec, launcher: Launcher) -> tuple[EmittedFile, ...]:
    return render_launch(job, CANDIDATE, launcher=launcher, paths=LaunchPaths())


def _written(folder: Path, files: tuple[EmittedFile, ...]) -> Path:
    for file in files:
        path = folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text)
    return folder / files[0].path


def test_groups_are_told_in_the_order_of_the_ranks(job: JobSpec) -> None:
    assert stage_groups(job, CANDIDATE) == (
        "node 0 is a100-sxm-80gb: stage 0 with 5 layers",
        "node 1 is h100-sxm-80gb: stage 1 with 11 layers",
    )


@pytest.mark.parametrize("launcher", [Launcher.TORCHRUN, Launcher.DEEPSPEED, Launcher.SLURM])
def test_script_says_which_node_is_which_before_it_starts_anything(
    job: JobSpec, launcher: Launcher, tmp_path: Path
) -> None:
    machine = FakeMachine(tmp_path / "fakes")
    script = _written(tmp_path / "plan", _files(job, launcher))
    ended = machine.run(script)
    assert ended.returncode == 2 and machine.take_calls() == []
    for words in stage_groups(job, CANDIDATE):
        assert words in ended.stderr and words in script.read_text()


def test_slurm_numbers_the_nodes_as_they_were_named(job: JobSpec, tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path / "fakes")
    script = _written(tmp_path / "plan", _files(job, Launcher.SLURM))
    for name, rank in (("zebra", "0"), ("ant", "1")):
        ended = machine.run(script, "--steps", "3", NODES_0="zebra", NODES_1="ant", FAKE_NODE=name)
        assert ended.returncode == 0, ended.stderr
        call = machine.take_calls()[-1]
        assert call["env"]["NODE_RANK"] == rank
        assert call["env"]["MASTER_ADDR"] == "zebra"
        assert call["argv"][-2:] == ["--steps", "3"]


def test_slurm_refuses_another_number_of_nodes(job: JobSpec, tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path / "fakes")
    script = _written(tmp_path / "plan", _files(job, Launcher.SLURM))
    ended = machine.run(script, NODES_0="a,b", NODES_1="c")
    assert ended.returncode == 2 and "3 were named" in ended.stderr


@pytest.mark.parametrize("launcher", [Launcher.KUBERNETES, Launcher.SRUN])
def test_launchers_that_number_nodes_themselves_are_refused(job: JobSpec, launcher: Launcher) -> None:
    with pytest.raises(NotExpressible, match="several kinds of nodes"):
        _files(job, launcher)
