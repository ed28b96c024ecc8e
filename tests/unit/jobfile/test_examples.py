"""The shipped example jobs mean what their comments say."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.jobfile import load_job, resolve_job
from planner.resources import find_data_dir
from planner.spec import DeviceKind, JobSpec, Precision, SearchRanges, TrialMode, partition_layers

JOBS = find_data_dir("configs") / "jobs"


def _example(name: str) -> JobSpec:
    return resolve_job(load_job(JOBS / f"{name}.yaml"))


@pytest.mark.parametrize("path", sorted(JOBS.glob("*.yaml")), ids=lambda path: path.stem)
def test_example_opens_with_its_purpose_and_command(path: Path) -> None:
    text = path.read_text()
    assert text.startswith("# ")
    assert f"planner plan configs/jobs/{path.name}" in text


def test_quickstart_is_small_on_cpu_and_searches_several_axes() -> None:
    job = _example("quickstart")
    assert job.cluster.gpu.device is DeviceKind.CPU
    assert job.cluster.world_size == 2
    assert job.model.num_parameters < 2_000_000
    assert job.trials.mode is TrialMode.REAL
    assert job.trials.time_budget_s <= 90
    axes = (
        job.ranges.zero_stage,
        job.ranges.tensor_parallel_size,
        job.ranges.pipeline_parallel_size,
        job.ranges.micro_batch_size,
        job.ranges.activation_checkpointing,
        job.ranges.precision,
    )
    assert all(axis is not None and len(axis) > 1 for axis in axes)
    assert all(job.training.global_batch_size % size == 0 for size in job.ranges.micro_batch_size or ())


def test_h200_example_is_the_benchmark_setting() -> None:
    job = _example("h200-1.3b")
    assert (job.model.num_parameters, job.training.seq_len, job.cluster.world_size) == (1_345_423_360, 2048, 1)
    assert job.ranges.precision == (Precision.BF16,)
    assert all(job.training.global_batch_size % size == 0 for size in job.ranges.micro_batch_size or ())


@pytest.mark.parametrize(
    ("name", "model", "world"),
    [
        ("llama-3.1-8b-1-node", "llama-3.1-8b", 8),
        ("llama-3.1-70b-8x8-h100", "llama-3.1-70b", 64),
        ("llama-3.1-405b-128-nodes", "llama-3.1-405b", 1024),
    ],
)
def test_cluster_example_has_the_size_of_its_name(name: str, model: str, world: int) -> None:
    job = _example(name)
    assert (job.model.name, job.cluster.world_size) == (model, world)
    assert job.model.tensor_parallel_refusal == ""


def test_scale_example_asks_for_every_size_from_256_to_2048_nodes() -> None:
    job = _example("llama-3.1-405b-scale")
    assert job.node_counts == tuple(range(256, 2049, 8))
    assert job.cluster.nodes == 2048
    assert job.ranges == SearchRanges(precision=(Precision.BF16, Precision.FP16))


def test_405b_example_has_uneven_stages() -> None:
    job = _example("llama-3.1-405b-128-nodes")
    assert 16 in (job.ranges.pipeline_parallel_size or ())
    assert set(partition_layers(job.model.num_layers, 16)) == {7, 8}
