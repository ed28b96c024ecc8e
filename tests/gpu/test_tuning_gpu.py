"""The settings of one layout on one GPU: equal losses, and the memory or speed that they are there for.

Run on one H200 (about four minutes, most of it compiling):

    python3 -m pytest -m gpu -s tests/gpu/test_tuning_gpu.py

With MESHPLAN_TEST_OUT set to a folder, what each trial showed is kept there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from planner.app.jobs import read_job
from planner.app.progress import SilentProgress
from planner.app.requests import PlanRequest
from planner.app.trials import open_pool, trial_task, trial_timeout_s
from planner.spec import (
    ActivationCheckpointing,
    Allocator,
    BatchSplit,
    Candidate,
    CrossEntropy,
    JobSpec,
    Measured,
    OffloadDevice,
    OptimizerKernel,
    ParallelLayout,
    Precision,
    Pruned,
    TorchCompile,
    Tuning,
)
from planner.spec.codec import to_plain
from planner.trial import Machine, WarmPool

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(580)]
JOB = """\
model: {name: llama-1.3b}
training: {seq_len: 2048, global_batch_size: 16}
cluster: {gpu: auto, nodes: 1, gpus_per_node: 1}
search: {zero_stage: [0, 1, 2, 3], precision: bf16}
trials: {mode: real, steps: 4, timeout: 120s}
"""
LOSS_TOLERANCE = 0.01  # of bf16 training over five steps, in which rounding differs


class Bench:
    """Runs candidates of the job and keeps what they showed."""

    def __init__(self, job: JobSpec, machine: Machine, pool: WarmPool, folder: Path) -> None:
        self.job, self.machine, self.pool, self.folder = job, machine, pool, folder
        self._kept: dict[str, Measured] = {}

    def run(self, candidate: Candidate) -> Measured:
        """The trial of a candidate, each once."""
        if candidate.key not in self._kept:
            outcome = self.pool.run(
                trial_task(candidate, job=self.job, machine=self.machine),
                timeout_s=trial_timeout_s(candidate, job=self.job),
                log_path=self.folder / f"{candidate.key}.log",
            )
            assert isinstance(outcome, Measured), outcome
            self._kept[candidate.key] = outcome
            _keep(candidate, outcome)
        return self._kept[candidate.key]


def _keep(candidate: Candidate, outcome: Measured) -> None:
    report = outcome.ranks[0]
    gib = 2**30
    print(
        f"\n{candidate.key}: {outcome.tokens_per_s:,.0f} tokens/s, allocated {report.peak_allocated_bytes / gib:.2f}, "
        f"reserved {report.peak_reserved_bytes / gib:.2f} GiB, compiled in {report.compile_s:.0f} s, "
        f"losses {[round(loss, 4) for loss in report.losses]}"
    )
    if folder := os.environ.get("MESHPLAN_TEST_OUT"):
        path = Path(folder) / f"{candidate.key}.json"
        path.write_text(json.dumps(to_plain(outcome), allow_nan=False) + "\n")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("tuning")
    path = folder / "job.yaml"
    path.write_text(JOB)
    request = PlanRequest(job_path=path, out_dir=folder, site_defaults=False)
    job, machine = read_job(request, console=SilentProgress())
    with open_pool(job.cluster.gpu.device, job=job) as pool:
        yield Bench(job, machine, pool, folder)


def candidate(*, zero: int = 0, micro: int = 8, checkpointing: str = "none", **tuning: object) -> Candidate:
    """A way to run the job's sixteen sequences."""
    return Candidate(
        layout=ParallelLayout(stage_layers=(24,)),
        batch=BatchSplit(micro_batch_size=micro, gradient_accumulation_steps=16 // micro, data_parallel_size=1),
        zero_stage=zero,
        precision=Precision.BF16,
        activation_checkpointing=ActivationCheckpointing.parse(checkpointing),
        tuning=Tuning(**tuning),  # type: ignore[arg-type]
    )


def losses(measured: Measured, *, number: int = 5) -> tuple[float, ...]:
    return measured.ranks[0].losses[:number]


@pytest.mark.parametrize("zero", [0, 2, 3])
def test_chunked_loss_same_losses_and_less_memory(bench: Bench, zero: int) -> None:
    whole = bench.run(candidate(zero=zero))
    chunked = bench.run(candidate(zero=zero, cross_entropy=CrossEntropy.CHUNKED))
    assert losses(chunked) == pytest.approx(losses(whole), rel=LOSS_TOLERANCE)
    assert chunked.peak_reserved_bytes < whole.peak_reserved_bytes
    assert chunked.step_time_s < 1.05 * whole.step_time_s


@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
def test_compiled_layers_same_losses_and_faster(bench: Bench, checkpointing: str) -> None:
    eager = bench.run(candidate(zero=2, checkpointing=checkpointing))
    compiled = bench.run(candidate(zero=2, checkpointing=checkpointing, torch_compile=TorchCompile.LAYER))
    assert losses(compiled) == pytest.approx(losses(eager), rel=LOSS_TOLERANCE)
    assert compiled.step_time_s < eager.step_time_s
    assert compiled.ranks[0].compile_s > 0


def test_compiling_again_is_quick_because_the_cache_is_shared(bench: Bench) -> None:
    first = bench.run(candidate(zero=2, torch_compile=TorchCompile.LAYER))
    again = bench.run(candidate(zero=2, torch_compile=TorchCompile.LAYER, allocator=Allocator.EXPANDABLE_SEGMENTS))
    assert again.ranks[0].compile_s < max(0.7 * first.ranks[0].compile_s, 20.0)


def test_expandable_segments_reserve_less_for_the_same_tensors(bench: Bench) -> None:
    plain = bench.run(candidate(zero=2))
    expandable = bench.run(candidate(zero=2, allocator=Allocator.EXPANDABLE_SEGMENTS))
    assert losses(expandable) == pytest.approx(losses(plain), rel=LOSS_TOLERANCE)
    slack = expandable.peak_reserved_bytes - expandable.ranks[0].peak_allocated_bytes
    assert slack < plain.peak_reserved_bytes - plain.ranks[0].peak_allocated_bytes


def test_unfused_optimizer_is_slower_than_fused(bench: Bench) -> None:
    fused = bench.run(candidate(zero=0))
    unfused = bench.run(candidate(zero=0, optimizer_kernel=OptimizerKernel.UNFUSED))
    assert losses(unfused) == pytest.approx(losses(fused), rel=LOSS_TOLERANCE)
    assert unfused.step_time_s > 0.99 * fused.step_time_s


def test_offloaded_states_leave_the_device(bench: Bench) -> None:
    kept = bench.run(candidate(zero=2))
    offloaded = bench.run(replace(candidate(zero=2), offload_optimizer=OffloadDevice.CPU))
    assert losses(offloaded) == pytest.approx(losses(kept), rel=LOSS_TOLERANCE)
    assert offloaded.ranks[0].peak_allocated_bytes < kept.ranks[0].peak_allocated_bytes - 12 * 2**30


def test_profile_and_checkpoint_of_a_last_trial(bench: Bench, tmp_path: Path) -> None:
    task = trial_task(candidate(zero=2), job=bench.job, machine=bench.machine)
    asked = replace(task, profile_dir=str(tmp_path / "profile"), check_checkpoint=True)
    outcome = bench.pool.run(asked, timeout_s=400.0, log_path=tmp_path / "trial.log")
    assert isinstance(outcome, Measured), outcome
    assert outcome.ranks[0].checkpoint_peak_bytes > 0
    names = {path.name for path in (tmp_path / "profile").iterdir()}
    assert {"memory-rank0.pickle", "trace-rank0.json", "memory-rank0.jsonl"} <= names


def test_hopeless_trial_is_given_up_on_the_gpu(bench: Bench, tmp_path: Path) -> None:
    task = trial_task(candidate(zero=2), job=bench.job, machine=bench.machine)
    outcome = bench.pool.run(replace(task, hopeless_step_s=1e-3), timeout_s=120.0, log_path=tmp_path / "trial.log")
    assert isinstance(outcome, Pruned) and len(outcome.ranks[0].step_times_s) == 1
