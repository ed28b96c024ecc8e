"""One candidate stage by stage agrees with its estimate."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.app.draft import draft_plan
from planner.app.uneven import price_uneven, setting_of
from planner.cost import REFERENCE_TRAINER, stage_profiles, stage_profiles_over_groups
from planner.jobfile import load_job, resolve_job
from planner.spec import JobSpec
from planner.spec.columns import candidate_at

JOBS = Path(__file__).parents[3] / "configs" / "jobs"


def _job(name: str) -> JobSpec:
    return resolve_job(load_job(JOBS / name), machine=None, traced=None)


@pytest.mark.parametrize("name", ["quickstart.yaml", "llama-3.1-70b-8x8-h100.yaml"])
def test_worst_stage_at_its_peak_is_the_estimates_breakdown(name: str) -> None:
    job = _job(name)
    draft = draft_plan(job)
    for row in range(0, len(draft.columns), 7):
        candidate = candidate_at(draft.columns, row, num_layers=job.model.num_layers)
        stages = stage_profiles(
            candidate, model=job.model, training=job.training, cluster=job.cluster, profile=REFERENCE_TRAINER
        )
        estimate = draft.row(row).estimate
        worst = next(stage for stage in stages if stage.index == estimate.memory.worst_stage)
        assert worst.peak == estimate.memory.breakdown
        assert len(stages) == min(candidate.layout.pipeline_parallel_size, 3)
        slowest_s = max(stage.forward_s + stage.backward_s for stage in stages)
        time = estimate.time
        worked_s = time.compute_s + time.recompute_s + time.tensor_parallel_s + time.host_s
        assert slowest_s * candidate.batch.gradient_accumulation_steps == pytest.approx(worked_s)


def test_moments_never_exceed_the_peak() -> None:
    job = _job("llama-3.1-70b-8x8-h100.yaml")
    draft = draft_plan(job)
    candidate = next(
        row.candidate
        for row in (draft.row(int(index)) for index in draft.order)
        if row.candidate.layout.pipeline_parallel_size > 2
    )
    for stage in stage_profiles(candidate, model=job.model, training=job.training, cluster=job.cluster):
        peak = _tensor_bytes(stage.peak)
        assert [name for name, _ in stage.moments] == ["loss", "first gradients", "end of backward", "optimizer step"]
        assert max(_tensor_bytes(held) for _, held in stage.moments) == peak
        assert all(held.allocator_slack_bytes == 0 for _, held in stage.moments)


def _tensor_bytes(held: object) -> int:
    kinds = ("parameters", "gradients", "optimizer", "activations", "buffers")
    return sum(int(getattr(held, f"{kind}_bytes")) for kind in kinds)


def test_stages_over_groups_of_nodes_are_those_of_the_price() -> None:
    job = _job("mixed-groups.yaml")
    draft = draft_plan(job)
    candidate = draft.row(int(draft.order[0])).candidate
    estimate = price_uneven(job, candidate)
    stages = stage_profiles_over_groups(candidate, setting_of(job))
    assert tuple(stage.layers for stage in stages) == candidate.layout.stage_layers
    assert {stage.device for stage in stages} == {group.gpu.name for group in job.cluster.groups}
    worst = next(stage for stage in stages if stage.index == estimate.memory.worst_stage)
    assert worst.peak == estimate.memory.breakdown
    total_s = [stage.forward_s + stage.backward_s for stage in stages]
    assert sum(total_s) - max(total_s) == pytest.approx(estimate.time.bubble_s)
