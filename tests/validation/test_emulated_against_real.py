"""The comparison of emulated and real trials: which layouts it takes, what its table says."""

from __future__ import annotations

from pathlib import Path

from planner.app.draft import draft_plan
from planner.app.jobs import read_job
from planner.app.progress import SilentProgress
from planner.app.requests import PlanRequest
from planner.spec import OutOfMemory, Phase
from tests.validation.emulated_against_real import figures, layouts_of, table

JOB = """\
model: {name: tiny-llama-cpu}
training: {seq_len: 64, global_batch_size: 8}
cluster: {gpu: cpu, nodes: 1, gpus_per_node: 4, memory_gib: 2}
search: {precision: fp32}
"""


def test_layouts_are_one_of_every_kind(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    job, _ = read_job(PlanRequest(job_path=path, out_dir=tmp_path / "plan"), console=SilentProgress())
    draft = draft_plan(job)
    chosen = layouts_of(draft)
    kinds = [(one.zero_stage, one.layout.tensor_parallel_size, one.layout.pipeline_parallel_size) for one in chosen]
    assert len(set(kinds)) == len(kinds)
    assert {kind[0] for kind in kinds} == {0, 1, 2, 3}
    assert {kind[1:] for kind in kinds} == {(1, 1), (2, 1), (1, 2), (2, 2), (1, 4)}  # two KV heads


def test_table_shows_ratios_and_how_a_trial_ended_otherwise() -> None:
    measured = {"step_time_s": 2.0, "peak_allocated_bytes": 2**30, "peak_reserved_bytes": 2**30, "device_used_bytes": 1}
    head = {"model": "m", "device": "gpu", "world_size": 2}
    emulated = measured | {"step_time_s": 1.5}
    out_of_memory = OutOfMemory(
        rank=1, phase=Phase.FORWARD, requested_bytes=1, allocated_bytes=1, capacity_bytes=1, log_tail=""
    )
    lost = figures(out_of_memory)
    rows = [
        head | {"key": "a", "real": measured, "emulated": emulated},
        head | {"key": "b", "real": lost, "emulated": measured},
    ]
    lines = table(rows).splitlines()
    assert lines[2].endswith("| 1.00 GiB | 1.00 GiB | 1.000 | 2.000 s | 1.500 s | 0.750 |")
    assert "OutOfMemory | measured" in lines[3]
