"""Emulation on one GPU: as real as a real world of one, and quick enough to plan a large model for a large cluster.

Run on one H200, in calls of a few minutes each:

    python3 -m pytest -m gpu -s tests/gpu/test_emulation_gpu.py -k world_of_one
    python3 -m pytest -m gpu -s tests/gpu/test_emulation_gpu.py -k "seventy_billion and zero3"
    python3 -m pytest -m gpu -s tests/gpu/test_emulation_gpu.py -k "seventy_billion and tensor8"
    python3 -m pytest -m gpu -s tests/gpu/test_emulation_gpu.py -k "seventy_billion and ranks"

With MESHPLAN_TEST_OUT set to a folder, every comparison, plan and trial is kept there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.app.emulation import EmulatedEvaluator, Stage
from planner.app.jobs import read_job
from planner.app.requests import PlanRequest
from planner.app.trials import open_pool, trial_task
from planner.rundir import RunDir
from planner.spec import (
    ActivationCheckpointing,
    BatchSplit,
    Candidate,
    DeviceKind,
    JobSpec,
    Measured,
    ParallelLayout,
    Precision,
)
from planner.trial import Machine, WarmPool

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(590)]

ROOT = Path(__file__).parents[2]
SMALL_JOB = ROOT / "configs" / "jobs" / "h200-1.3b.yaml"
LARGE_JOB = ROOT / "configs" / "jobs" / "llama-3.1-70b-8x8-h100.yaml"
MEMORY_TOLERANCE, TIME_TOLERANCE = 0.02, 0.03
PLAN_LIMIT_S = 300.0


def keep(name: str, text: str) -> None:
    """Leave something behind for whoever runs this on a machine that goes away."""
    print(text)
    folder = os.environ.get("MESHPLAN_TEST_OUT")
    if folder:
        (Path(folder) / name).write_text(text)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[JobSpec, Machine]:
    request = PlanRequest(
        job_path=SMALL_JOB,
        out_dir=tmp_path_factory.mktemp("job"),
        overrides=("cluster.gpu=auto", "training.global_batch_size=32", "trials.steps=6"),
    )
    return read_job(request)


@pytest.fixture(scope="module")
def pool(small: tuple[JobSpec, Machine]) -> Iterator[WarmPool]:
    with open_pool(DeviceKind.CUDA, job=small[0]) as warm:
        warm.wait_ready()
        yield warm


def candidate(job: JobSpec, *, zero: int, micro: int, checkpointing: str = "none") -> Candidate:
    return Candidate(
        layout=ParallelLayout(stage_layers=(job.model.num_layers,)),
        batch=BatchSplit(micro_batch_size=micro, gradient_accumulation_steps=32 // micro, data_parallel_size=1),
        zero_stage=zero,
        precision=Precision.BF16,
        activation_checkpointing=ActivationCheckpointing.parse(checkpointing),
    )


@pytest.mark.parametrize(
    ("zero", "micro", "checkpointing"), [(0, 8, "none"), (1, 8, "none"), (2, 8, "selective"), (3, 8, "full")]
)
def test_emulated_world_of_one_equals_the_real_one(
    small: tuple[JobSpec, Machine], pool: WarmPool, tmp_path: Path, zero: int, micro: int, checkpointing: str
) -> None:
    """Four micro-batches a step for real, two of them emulated and extrapolated: memory within 2 %, time within 3 %."""
    job, machine = small
    wanted = candidate(job, zero=zero, micro=micro, checkpointing=checkpointing)
    task = trial_task(wanted, job=job, machine=machine)
    real = pool.run(task, timeout_s=150.0, log_path=tmp_path / "real.log")
    assert isinstance(real, Measured), real
    same = pool.run(replace(task, emulated_rank=0), timeout_s=150.0, log_path=tmp_path / "same.log")
    assert isinstance(same, Measured), same
    run_dir = RunDir.create(tmp_path / "plan", "hash")
    evaluator = EmulatedEvaluator(
        Stage(job=job, machine=machine, gpu=job.cluster.gpu), pool=pool, run_dir=run_dir, on_start=lambda *_: None
    )
    short = evaluator.evaluate(0, wanted)
    assert isinstance(short, Measured), short
    rows = {"real": real, "emulated, all micro-batches": same, "emulated, as trials do": short}
    keep(f"world-of-one-zero{zero}.json", json.dumps({name: figures(end) for name, end in rows.items()}, indent=1))
    assert same.ranks[0].losses == pytest.approx(real.ranks[0].losses, rel=1e-3)
    for emulated in (same, short):
        seen, expected = emulated.ranks[0], real.ranks[0]
        assert seen.peak_allocated_bytes == pytest.approx(expected.peak_allocated_bytes, rel=MEMORY_TOLERANCE)
        assert seen.peak_reserved_bytes == pytest.approx(expected.peak_reserved_bytes, rel=MEMORY_TOLERANCE)
        assert emulated.step_time_s == pytest.approx(real.step_time_s, rel=TIME_TOLERANCE)
    # With what NCCL holds, computed, in the evaluator's figure.
    assert short.device_used_bytes == pytest.approx(real.device_used_bytes, rel=MEMORY_TOLERANCE)


def figures(measured: Measured) -> dict[str, Any]:
    rank = measured.ranks[0]
    emulation = rank.emulation
    return {
        "step_time_s": measured.step_time_s,
        "step_times_s": rank.step_times_s,
        "peak_allocated_bytes": rank.peak_allocated_bytes,
        "peak_reserved_bytes": rank.peak_reserved_bytes,
        "device_used_bytes": measured.device_used_bytes,
        "initialised_bytes": rank.initialised_bytes,
        "build_s": rank.build_s,
        "engine_s": rank.engine_s,
        "losses": rank.losses,
        "micro_batch_s": emulation.micro_batch_s if emulation else None,
        "step_end_s": emulation.step_end_s if emulation else None,
        "own_s": emulation.own_s if emulation else None,
        "collectives": sum(row.count for row in emulation.collectives) if emulation else None,
    }


SEVENTY_BILLION = {
    "zero3-x64": ("search.zero_stage=3", "search.tensor_parallel_size=1", "search.pipeline_parallel_size=1"),
    "tensor8-pipeline2-data4-zero1": (
        *("search.zero_stage=1", "search.tensor_parallel_size=8", "search.pipeline_parallel_size=2"),
    ),
    "what-the-model-ranks-best": (),
}


@pytest.mark.parametrize("gpu", ["h200-sxm-141gb"])
@pytest.mark.parametrize("space", SEVENTY_BILLION)
def test_seventy_billion_on_64_gpus_is_planned_in_five_minutes(tmp_path: Path, gpu: str, space: str) -> None:
    out = tmp_path / "plan"
    overrides = [word for value in (f"cluster.gpu={gpu}", *SEVENTY_BILLION[space]) for word in ("--set", value)]
    began_s = time.monotonic()
    words = ["plan", LARGE_JOB, "--trials", "emulated", "--time-budget", "120s", "--max-trials", "8", "--out", out]
    done = subprocess.run(
        [sys.executable, "-m", "planner", *map(str, words), *overrides],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    took_s = time.monotonic() - began_s
    written = [out / name for name in ("plan.yaml", "trials.jsonl")]
    parts = [done.stdout, done.stderr, f"took {took_s:.1f} s", *(file.read_text() for file in written if file.exists())]
    keep(f"70b-{space}.txt", "\n".join(parts))
    assert done.returncode == 0
    plan = yaml.safe_load((out / "plan.yaml").read_text())
    assert (plan["promise"]["memory_kind"], plan["promise"]["step_time_kind"]) == ("emulated", "emulated")
    assert took_s < PLAN_LIMIT_S
