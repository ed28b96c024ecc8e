"""Trials to classify, made of the few facts a test is about."""

from __future__ import annotations

from planner.spec import (
    ActivationCheckpointing,
    BatchSplit,
    Candidate,
    DeviceKind,
    ModelFamily,
    ModelSpec,
    ParallelLayout,
    Phase,
    Precision,
    RankReport,
    TracedModule,
    TrainingSpec,
    TrialTask,
)
from planner.spec.worker import RankEnd, RankFailure, TrialEnd
from planner.trial import TrialFacts


def make_model(*, tokens_per_sample: int | None = None) -> ModelSpec:
    """A decoder, or (with `tokens_per_sample`) a module from a factory."""
    if tokens_per_sample is None:
        return ModelSpec(name="tiny", family=ModelFamily.DECODER, model_type="llama", config_json="{}", num_layers=2)
    traced = TracedModule(
        num_parameters=10,
        largest_parameter=5,
        saved_bytes_per_sample_fp32=40,
        fixed_saved_bytes=0,
        forward_flops_per_sample=20,
        tokens_per_sample=tokens_per_sample,
    )
    return ModelSpec(name="own", family=ModelFamily.MODULE, model_type="module", factory="own:make", traced=traced)


def make_task(
    *,
    device: DeviceKind = DeviceKind.CUDA,
    memory_limit_bytes: int = 0,
    model: ModelSpec | None = None,
    global_batch_size: int = 8,
) -> TrialTask:
    """Two data-parallel ranks, two micro-batches each."""
    return TrialTask(
        model=model or make_model(),
        training=TrainingSpec(seq_len=128, global_batch_size=global_batch_size),
        candidate=Candidate(
            layout=ParallelLayout(data_parallel_size=2),
            batch=BatchSplit(micro_batch_size=2, gradient_accumulation_steps=2, data_parallel_size=2),
            zero_stage=1,
            precision=Precision.BF16,
            activation_checkpointing=ActivationCheckpointing(),
        ),
        device=device,
        ds_config_json="{}",
        steps=3,
        memory_limit_bytes=memory_limit_bytes,
    )


def make_report(
    rank: int,
    *,
    step_times_s: tuple[float, ...] = (1.0, 1.1, 1.2),
    losses: tuple[float, ...] = (4.0, 3.9, 3.8, 3.7),
    sequences_per_step: int = 8,
    skipped_steps: int = 0,
) -> RankReport:
    """A rank that ran to its end."""
    return RankReport(
        rank=rank,
        initialised_bytes=100,
        peak_allocated_bytes=200 + rank,
        peak_reserved_bytes=300 + rank,
        device_used_bytes=400 + rank,
        host_peak_bytes=500,
        build_s=0.1,
        engine_s=0.2,
        step_times_s=step_times_s,
        forward_s=0.3,
        backward_s=0.5,
        optimizer_s=0.1,
        losses=losses,
        sequences_per_step=sequences_per_step,
        skipped_steps=skipped_steps,
        allocator_retries=0,
    )


def ended_well(rank: int, report: RankReport | None = None) -> RankEnd:
    """A rank that left a report."""
    return RankEnd(
        rank=rank,
        exit_code=0,
        killed=False,
        ended_at_s=20.0,
        phase=Phase.FINISH,
        steps_done=4,
        report=report or make_report(rank),
    )


def died(
    rank: int, *, exit_code: int, at_s: float = 10.0, killed: bool = False, phase: Phase = Phase.FORWARD, steps: int = 1
) -> RankEnd:
    """A rank that ended without a word."""
    return RankEnd(rank=rank, exit_code=exit_code, killed=killed, ended_at_s=at_s, phase=phase, steps_done=steps)


def ended_by_worker(rank: int, *, phase: Phase = Phase.BACKWARD, steps: int = 1) -> RankEnd:
    """A rank that the worker ended."""
    return died(rank, exit_code=-9, killed=True, at_s=11.0, phase=phase, steps=steps)


def raised(
    rank: int,
    exception: str,
    message: str,
    *,
    at_s: float = 10.0,
    chain: tuple[str, ...] = (),
    allocated_bytes: int = 0,
    capacity_bytes: int = 0,
) -> RankEnd:
    """A rank that ended with an exception."""
    return RankEnd(
        rank=rank,
        exit_code=1,
        killed=False,
        ended_at_s=at_s + 0.05,
        phase=Phase.BACKWARD,
        steps_done=1,
        failure=RankFailure(
            exception=exception,
            message=message,
            failed_at_s=at_s,
            chain=chain,
            allocated_bytes=allocated_bytes,
            capacity_bytes=capacity_bytes,
        ),
    )


def make_facts(
    *ranks: RankEnd,
    task: TrialTask | None = None,
    timed_out: bool = False,
    log_tails: tuple[str, ...] | None = None,
    kernel_oom_kills: int = 0,
) -> TrialFacts:
    """A trial whose ranks ended like this."""
    return TrialFacts(
        task=task or make_task(),
        timeout_s=30.0,
        end=TrialEnd(number=1, ranks=ranks, timed_out=timed_out, duration_s=12.0),
        log_tails=log_tails or tuple(f"log of rank {rank.rank}" for rank in ranks),
        kernel_oom_kills=kernel_oom_kills,
    )
