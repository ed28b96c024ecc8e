"""Records that a plan folder holds, made small."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from planner.spec import (
    ActivationCheckpointing,
    BatchSplit,
    Candidate,
    Crashed,
    Estimate,
    Launcher,
    MemoryBreakdown,
    MemoryEstimate,
    ParallelLayout,
    Phase,
    Plan,
    Precision,
    Promise,
    Provenance,
    SearchSummary,
    TimeBreakdown,
    TrialRecord,
)
from planner.spec.plan import PLAN_FORMAT


def _candidate() -> Candidate:
    return Candidate(
        layout=ParallelLayout(data_parallel_size=2, stage_layers=(4,)),
        batch=BatchSplit(micro_batch_size=2, gradient_accumulation_steps=4, data_parallel_size=2),
        zero_stage=1,
        precision=Precision.BF16,
        activation_checkpointing=ActivationCheckpointing.parse("layers:3"),
    )


@pytest.fixture
def trial() -> Callable[[int], TrialRecord]:
    """A trial record of the given number, its log with every awkward character."""

    def make(number: int) -> TrialRecord:
        outcome = Crashed(
            rank=0, phase=Phase.FORWARD, exit_code=-11, message="no\nluck \u2028 \x00 \ud7ff é", log_tail="x\n" * 20
        )
        return TrialRecord(
            number=number,
            key=_candidate().key,
            candidate=_candidate(),
            outcome=outcome,
            started_at_s=1.5e9 + 0.1 + number,
            duration_s=0.3,
            machine="m",
        )

    return make


@pytest.fixture
def plan() -> Plan:
    breakdown = MemoryBreakdown(
        parameters_bytes=1,
        gradients_bytes=2,
        optimizer_bytes=3,
        activations_bytes=4,
        buffers_bytes=5,
        allocator_slack_bytes=6,
        communication_bytes=7,
        context_bytes=8,
    )
    memory = MemoryEstimate(
        allocated_bytes=10,
        reserved_bytes=20,
        device_used_bytes=36,
        usable_bytes=10**12,
        worst_stage=0,
        breakdown=breakdown,
        low_bytes=20,
        high_bytes=40,
        host_bytes=0,
        host_usable_bytes=0,
        disk_bytes=0,
    )
    time = TimeBreakdown(
        compute_s=0.1,
        recompute_s=0.0,
        tensor_parallel_s=1e-9,
        data_parallel_s=1e300,
        pipeline_s=0.0,
        bubble_s=0.0,
        optimizer_s=0.0,
        offload_s=0.0,
        host_s=float("inf"),
    )
    estimate = Estimate(
        memory=memory,
        time=time,
        step_time_s=0.1,
        tokens_per_s=1234.5678901234567,
        tokens_per_s_per_gpu=1.0,
        mfu_fraction=0.4,
        fits=True,
        kind=Provenance.COMPUTED,
    )
    promise = Promise(
        step_time_s=0.1,
        step_time_kind=Provenance.MEASURED,
        tokens_per_s=1234.5,
        device_used_bytes=36,
        memory_kind=Provenance.MEASURED,
        usable_bytes=10**12,
        first_losses=(10.25, 9.125),
    )
    return Plan(
        format=PLAN_FORMAT,
        planner_version="0.1.0",
        job_hash="abc123",
        candidate=_candidate(),
        key=_candidate().key,
        promise=promise,
        estimate=estimate,
        trial_number=3,
        runner_up=None,
        search=SearchSummary(
            num_candidates=4,
            num_screened=1,
            num_trials=3,
            num_out_of_memory=1,
            rejected=(("pipeline-zero", 3),),
            left_out_axes=(),
            trials_note="1e5: yes, no, null, 0x10, ~, é, '\"",
        ),
        validation=(),
        launcher=Launcher.TORCHRUN,
        versions=(("torch", "2.13"), ("python", "3.10"), ("empty", "")),
        hardware=(("gpu", "cpu"),),
        machine="m",
    )
