"""Emulated trials on the warm worker: as real as real ones where both can be had, and enough of a long step."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.spec import Crashed, DeviceKind, EmulationReport, Measured, Outcome, OutOfMemory, TrialTask
from planner.trial import WarmPool
from tests.distributed.emulation_runs import task_of, with_micro_batches
from tests.distributed.layouts import ADAMW, make_task

MIB = 1 << 20


@pytest.fixture(scope="module")
def pool() -> Iterator[WarmPool]:
    with WarmPool(DeviceKind.CPU, model_types=("llama",)) as warm:
        yield warm


def run(pool: WarmPool, task: TrialTask, folder: Path, *, rank: int | None) -> Outcome:
    return pool.run(replace(task, emulated_rank=rank), timeout_s=140.0, log_path=folder / "trial.log")


def emulate(pool: WarmPool, task: TrialTask, folder: Path, *, rank: int = 0) -> EmulationReport:
    outcome = run(pool, task, folder, rank=rank)
    assert isinstance(outcome, Measured), outcome
    (report,) = outcome.ranks
    assert report.emulation is not None
    return report.emulation


def wider(task: TrialTask) -> TrialTask:
    """A model whose memory stands out from what any process takes."""
    config = json.loads(task.model.config_json)
    config |= {"hidden_size": 128, "intermediate_size": 512, "vocab_size": 8192}
    model = replace(task.model, config_json=json.dumps(config), vocab_size=8192)
    return replace(task, model=model, steps=1)


@pytest.mark.parametrize("zero", [2, 3])
def test_trial_emulated_world_of_one_equals_the_real_one(pool: WarmPool, tmp_path: Path, zero: int) -> None:
    task = wider(make_task("llama", zero=zero, optimizer=ADAMW))
    real, emulated = run(pool, task, tmp_path, rank=None), run(pool, task, tmp_path, rank=0)
    assert isinstance(real, Measured)
    assert isinstance(emulated, Measured)
    assert emulated.ranks[0].losses == real.ranks[0].losses
    assert emulated.ranks[0].sequences_per_step == real.ranks[0].sequences_per_step
    assert real.ranks[0].peak_allocated_bytes > 30 * MIB
    # Resident memory goes up and down with malloc's mood; tensors are equal to the byte (`test_emulation`).
    assert emulated.ranks[0].peak_allocated_bytes == pytest.approx(real.ranks[0].peak_allocated_bytes, rel=0.4)


def calls_of_step(report: EmulationReport, micro_batches: int) -> Counter[Any]:
    """How often each collective happens in a step of so many micro-batches."""
    counted: Counter[Any] = Counter()
    for row in report.collectives:
        key = (row.kind, row.dtype, row.num_bytes, report.groups[row.group])
        counted[key] += row.count * (micro_batches if row.each_micro_batch else 1)
    return counted


@pytest.mark.parametrize(
    ("axes", "rank"),
    [
        ({"data": 4, "zero": 1, "precision": "bf16"}, 0),
        ({"data": 4, "zero": 2}, 1),
        ({"data": 4, "zero": 3}, 3),
        ({"pipeline": 4, "tensor": 2, "zero": 1}, 2),
    ],
)
def test_few_micro_batches_tell_what_a_step_of_many_sends(
    pool: WarmPool, tmp_path: Path, axes: dict[str, Any], rank: int
) -> None:
    task = replace(task_of({"micro_batch_size": 1, **axes}), steps=2)
    few = 3 if "pipeline" in axes else 1 if axes["zero"] == 3 else 2
    short = emulate(pool, with_micro_batches(task, few), tmp_path, rank=rank)
    long = emulate(pool, with_micro_batches(task, 9), tmp_path, rank=rank)
    assert (short.micro_batches, long.micro_batches) == (few, 9)
    assert sum(calls_of_step(long, 9).values()) > 5
    assert calls_of_step(short, 9) == calls_of_step(long, 9)


@pytest.mark.parametrize("rank", [0, 4, 8, 12])
def test_every_stage_of_a_pipeline_runs_with_partitioned_activations(pool: WarmPool, tmp_path: Path, rank: int) -> None:
    task = make_task(
        "llama", pipeline=4, tensor=2, data=2, zero=1, precision="bf16", optimizer=ADAMW, micro_batch_size=1, steps=2
    )
    report = emulate(pool, task, tmp_path, rank=rank)
    between = {report.groups[row.group] for row in report.collectives if row.kind in ("send", "receive")}
    assert between == {(rank, peer) for peer in (rank - 4, rank + 4) if 0 <= peer < 16}
    assert report.micro_batch_s > 0.0


@pytest.mark.parametrize("rank", [0, 4095])
def test_ranks_of_a_world_no_machine_has_run_in_one_process(pool: WarmPool, tmp_path: Path, rank: int) -> None:
    """The last rank's shards of small parameters are nothing but padding."""
    task = make_task("llama", zero=3, data=1, precision="bf16", optimizer=ADAMW, micro_batch_size=1, steps=2)
    large = replace(
        task,
        candidate=replace(
            task.candidate,
            layout=replace(task.candidate.layout, data_parallel_size=4096),
            batch=replace(task.candidate.batch, data_parallel_size=4096),
        ),
    )
    report = emulate(pool, with_micro_batches(large, 2), tmp_path, rank=rank)
    assert report.groups == (tuple(range(4096)),)


def test_emulated_rank_that_exceeds_its_limit_is_out_of_memory(pool: WarmPool, tmp_path: Path) -> None:
    task = wider(make_task("llama", zero=1, data=4, optimizer=ADAMW))
    outcome = run(pool, replace(task, memory_limit_bytes=30 * MIB), tmp_path, rank=2)
    assert isinstance(outcome, OutOfMemory)


def test_layout_that_the_runtime_refuses_is_refused_emulated_too(pool: WarmPool, tmp_path: Path) -> None:
    outcome = run(pool, make_task("llama", tensor=8, optimizer=ADAMW), tmp_path, rank=0)  # of 4 heads
    assert isinstance(outcome, Crashed)
    assert "cannot be split over 8 tensor-parallel ranks" in outcome.message
