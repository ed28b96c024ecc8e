"""Reports to render: a small job that was tried on a CPU, and a big one decided by the model alone."""

from __future__ import annotations

import dataclasses

from planner.report import (
    CandidateMap,
    CandidateRow,
    ErrorCase,
    ExplainedLine,
    FileText,
    MappedCandidate,
    NearMiss,
    RejectionRow,
    ReportInput,
    Sensitivity,
    TrialLog,
)
from planner.spec import (
    ActivationCheckpointing,
    BatchSplit,
    Candidate,
    ClusterSpec,
    Crashed,
    DeviceKind,
    Estimate,
    GpuSpec,
    JobSpec,
    Launcher,
    LinkSpec,
    Measured,
    MemoryBreakdown,
    MemoryEstimate,
    ModelFamily,
    ModelSpec,
    OutOfMemory,
    ParallelLayout,
    Phase,
    Plan,
    Precision,
    Promise,
    Provenance,
    RankReport,
    RunnerUp,
    SearchSummary,
    StageProfile,
    TimeBreakdown,
    TrainingSpec,
    TrialRecord,
    ValidationStep,
    partition_layers,
)

MIB = 2**20
GIB = 2**30


def make_candidate(
    *, data: int = 2, tensor: int = 1, pipeline: int = 1, zero_stage: int = 1, micro: int = 4, layers: int = 4
) -> Candidate:
    """A candidate at a global batch of 16 x data."""
    return Candidate(
        layout=ParallelLayout(
            data_parallel_size=data,
            tensor_parallel_size=tensor,
            pipeline_parallel_size=pipeline,
            stage_layers=partition_layers(layers, pipeline),
        ),
        batch=BatchSplit(micro_batch_size=micro, gradient_accumulation_steps=16 // micro, data_parallel_size=data),
        zero_stage=zero_stage,
        precision=Precision.BF16,
        activation_checkpointing=ActivationCheckpointing.parse("full"),
    )


def make_estimate(*, step_time_s: float = 0.4, device_used_bytes: int = 300 * MIB, usable_bytes: int = GIB) -> Estimate:
    """Breakdowns that sum, in eighths of the memory and tenths of the time."""
    eighth, tenth = device_used_bytes // 8, step_time_s / 10
    breakdown = MemoryBreakdown(
        parameters_bytes=eighth,
        gradients_bytes=eighth,
        optimizer_bytes=2 * eighth,
        activations_bytes=2 * eighth,
        buffers_bytes=eighth,
        allocator_slack_bytes=device_used_bytes - 7 * eighth,
        communication_bytes=0,
        context_bytes=0,
    )
    memory = MemoryEstimate(
        allocated_bytes=6 * eighth,
        reserved_bytes=7 * eighth,
        device_used_bytes=device_used_bytes,
        usable_bytes=usable_bytes,
        worst_stage=0,
        breakdown=breakdown,
        low_bytes=6 * eighth,
        high_bytes=device_used_bytes,
        host_bytes=2 * GIB,
        host_usable_bytes=8 * GIB,
        disk_bytes=0,
    )
    time = TimeBreakdown(
        compute_s=5 * tenth,
        recompute_s=2 * tenth,
        tensor_parallel_s=0.0,
        data_parallel_s=2 * tenth,
        pipeline_s=0.0,
        bubble_s=0.0,
        optimizer_s=tenth,
        offload_s=0.0,
        host_s=0.0,
    )
    return Estimate(
        memory=memory,
        time=time,
        step_time_s=step_time_s,
        tokens_per_s=1024 / step_time_s,
        tokens_per_s_per_gpu=512 / step_time_s,
        mfu_fraction=0.31,
        fits=device_used_bytes <= usable_bytes,
        kind=Provenance.COMPUTED,
    )


def make_stages(estimate: Estimate, *, num_stages: int = 1) -> tuple[StageProfile, ...]:
    """First, middle and last stage alike but for their layers; forward passes take 10 ms, backward ones 20."""
    peak = estimate.memory.breakdown
    held = dataclasses.replace(peak, allocator_slack_bytes=0)
    moments = ("loss", "first gradients", "end of backward", "optimizer step")
    return tuple(
        StageProfile(
            index=index,
            layers=2,
            in_flight=1.0,
            forward_s=0.01,
            backward_s=0.02,
            peak=peak,
            moments=tuple((name, held) for name in moments),
        )
        for index in sorted({0, min(1, num_stages - 1), num_stages - 1})
    )


def make_row(candidate: Candidate, estimate: Estimate) -> CandidateRow:
    """A candidate with what the model says of it."""
    return CandidateRow(key=candidate.key, candidate=candidate, estimate=estimate)


def make_measured(
    *, step_time_s: float, device_used_bytes: int, num_ranks: int = 2, spread_s: float = 0.01
) -> Measured:
    """A trial that ran; the ranks use the same memory."""
    ranks = tuple(
        RankReport(
            rank=rank,
            initialised_bytes=device_used_bytes // 2,
            peak_allocated_bytes=device_used_bytes * 8 // 10,
            peak_reserved_bytes=device_used_bytes * 9 // 10,
            device_used_bytes=device_used_bytes - rank * MIB,
            host_peak_bytes=GIB,
            build_s=0.5,
            engine_s=0.4,
            step_times_s=(step_time_s,) * 5,
            forward_s=step_time_s * 0.3,
            backward_s=step_time_s * 0.5,
            optimizer_s=step_time_s * 0.1,
            losses=(6.93, 6.91, 6.88),
            sequences_per_step=32,
            skipped_steps=0,
            allocator_retries=0,
        )
        for rank in range(num_ranks)
    )
    return Measured(step_time_s=step_time_s, step_time_spread_s=spread_s, tokens_per_s=1024 / step_time_s, ranks=ranks)


def make_trial(number: int, candidate: Candidate, outcome: object) -> TrialRecord:
    """A trial as it ended, after 3.2 s."""
    return TrialRecord(
        number=number,
        key=candidate.key,
        candidate=candidate,
        outcome=outcome,  # type: ignore[arg-type]
        started_at_s=1.8e9 + number * 4,
        duration_s=3.2,
        machine="cpu-2-cores",
        log_name=f"trial-{number:04d}.log",
    )


def make_job(*, device: DeviceKind = DeviceKind.CPU, nodes: int = 1, gpus_per_node: int = 2) -> JobSpec:
    """A tiny Llama on a CPU, or a 70B one on H100s."""
    on_cpu = device is DeviceKind.CPU
    size = GIB if on_cpu else 80 * GIB
    gpu = GpuSpec(
        name="cpu-process" if on_cpu else "h100-sxm-80gb",
        device=device,
        memory_nominal_bytes=size,
        memory_usable_bytes=size if on_cpu else size * 99 // 100,
        memory_bandwidth_bytes_per_s=3.35e12,
        peak_fp32_flops_per_s=6.7e13,
        peak_fp16_flops_per_s=9.89e14,
        peak_bf16_flops_per_s=9.89e14,
    )
    link = LinkSpec(name="link", bandwidth_bytes_per_s=4e11, latency_s=5e-6)
    layers = 4 if on_cpu else 80
    return JobSpec(
        model=ModelSpec(
            name="llama-tiny" if on_cpu else "llama-3.1-70b",
            family=ModelFamily.DECODER,
            model_type="llama",
            config_json="{}",
            num_layers=layers,
        ),
        training=TrainingSpec(seq_len=32, global_batch_size=32),
        cluster=ClusterSpec(
            gpu=gpu,
            nodes=nodes,
            gpus_per_node=gpus_per_node,
            intra_node_link=link,
            inter_node_link=link,
            host_memory_bytes=8 * GIB,
        ),
    )


def quickstart_report() -> ReportInput:
    """Six trials on two CPU processes: measured, out of memory, crashed; the winner is trial 3."""
    winner = make_candidate(micro=8)
    second = make_candidate(micro=4, zero_stage=2)
    tensor = make_candidate(data=1, tensor=2)
    big, broken = make_candidate(micro=16, zero_stage=0), make_candidate(pipeline=2, data=1)
    out_of_memory = OutOfMemory(
        rank=1,
        phase=Phase.BACKWARD,
        requested_bytes=64 * MIB,
        allocated_bytes=990 * MIB,
        capacity_bytes=GIB,
        log_tail="…",
    )
    crashed = Crashed(rank=0, phase=Phase.TRAIN_BATCH, exit_code=-11, message="segmentation fault", log_tail="…")
    trials = (
        make_trial(0, second, make_measured(step_time_s=0.43, device_used_bytes=310 * MIB)),
        make_trial(1, tensor, make_measured(step_time_s=0.61, device_used_bytes=205 * MIB)),
        make_trial(2, big, out_of_memory),
        make_trial(3, winner, make_measured(step_time_s=0.40, device_used_bytes=412 * MIB)),
        make_trial(4, broken, crashed),
    )
    slower = make_estimate(step_time_s=0.45, device_used_bytes=280 * MIB)
    untried = make_candidate(zero_stage=3, micro=2)
    return ReportInput(
        plan=_plan(trials[3], second),
        job=make_job(),
        plan_dir="plans/quick start",
        launch_script="plans/quick start/launch.sh",
        trials=trials,
        tried=(
            CandidateRow(key=winner.key, candidate=winner, estimate=make_estimate()),
            CandidateRow(key=second.key, candidate=second, estimate=slower),
        ),
        untried=(CandidateRow(key=untried.key, candidate=untried, estimate=slower),),
        rejections=(
            RejectionRow(rule="pipeline-needs-zero-0-or-1", count=24, sentence="Pipelines run with ZeRO 0 or 1 only."),
            RejectionRow(rule="batch-identity", count=60, sentence="The micro-batch must divide the global batch."),
        ),
        config_lines=(
            ExplainedLine(key="train_batch_size", value="32", why="the job's global batch, never changed"),
            ExplainedLine(key="zero_optimization.stage", value="1", why="the chosen ZeRO stage"),
        ),
        stages=make_stages(make_estimate()),
        candidates=_candidates(winner, second, untried),
        runner_up=make_row(second, slower),
        near_miss=NearMiss(row=make_row(big, make_estimate(step_time_s=0.3)), over_bytes=64 * MIB, is_faster=True),
        sensitivity=Sensitivity(
            rival=make_row(untried, slower), lead_fraction=0.12, within=((0.2, 3),), cases=(), residual_fraction=0.04
        ),
        logs=(TrialLog(number=3, text="step 1\nstep 2"), TrialLog(number=4, text="Segmentation fault", is_cut=True)),
        files=(
            FileText(
                path="launch.sh",
                does="starts the run",
                lines=("#!/usr/bin/env bash", "exec python"),
                whys=("run by bash", "the trainer"),
            ),
        ),
    )


def _candidates(winner: Candidate, second: Candidate, untried: Candidate) -> CandidateMap:
    """Four candidates, least memory first, the last too large."""
    huge = make_candidate(micro=16, zero_stage=1)
    estimates = ((untried, 0.5, 200), (second, 0.45, 280), (winner, 0.4, 300), (huge, 0.3, 1500))
    return CandidateMap(
        shown=tuple(
            MappedCandidate(
                row=make_row(candidate, make_estimate(step_time_s=step_s, device_used_bytes=size * MIB)),
                fits=size <= 1024,
                is_on_frontier=size <= 1024,
            )
            for candidate, step_s, size in estimates
        ),
        num_legal=96,
        num_fit=92,
    )


def _plan(winning: TrialRecord, second: Candidate) -> Plan:
    outcome = winning.outcome
    assert isinstance(outcome, Measured)
    return Plan(
        format=1,
        planner_version="0.1.0",
        job_hash="0123abcd",
        candidate=winning.candidate,
        key=winning.key,
        promise=Promise(
            step_time_s=outcome.step_time_s,
            step_time_kind=Provenance.MEASURED,
            tokens_per_s=outcome.tokens_per_s,
            device_used_bytes=outcome.device_used_bytes,
            memory_kind=Provenance.MEASURED,
            usable_bytes=GIB,
            first_losses=(6.93, 6.91, 6.88),
        ),
        estimate=make_estimate(),
        trial_number=winning.number,
        runner_up=RunnerUp(key=second.key, tokens_per_s=1024 / 0.43, kind=Provenance.MEASURED),
        search=SearchSummary(
            num_candidates=96,
            num_screened=4,
            num_trials=5,
            num_out_of_memory=1,
            rejected=(("batch-identity", 60), ("pipeline-needs-zero-0-or-1", 24)),
            left_out_axes=(("precision", "changes numerics, so it is searched only when the job lists it"),),
            trials_note="All trials ran as 2 processes on this machine's CPU.",
        ),
        validation=(
            ValidationStep(name="rules", passed=True, detail="no finding"),
            ValidationStep(name="parse", passed=True, detail="DeepSpeed 0.19.8 took the config for 2 ranks"),
        ),
        launcher=Launcher.TORCHRUN,
        versions=(("torch", "2.13.0"), ("deepspeed", "0.19.8")),
        hardware=(("cpu cores", "2"), ("host memory", "8 GiB")),
        machine="cpu-2-cores",
    )


def cluster_report() -> ReportInput:
    """64 H100s and no trial: every figure computed, a pipeline, no runner-up's measurement."""
    candidate = make_candidate(data=8, tensor=4, pipeline=2, layers=80)
    other = make_candidate(data=4, tensor=8, pipeline=2, layers=80)
    estimate = make_estimate(step_time_s=6.4, device_used_bytes=61 * GIB, usable_bytes=79 * GIB)
    slower = make_estimate(step_time_s=6.9, device_used_bytes=52 * GIB, usable_bytes=79 * GIB)
    quick = quickstart_report().plan
    return ReportInput(
        plan=Plan(
            format=1,
            planner_version="0.1.0",
            job_hash="89ef",
            candidate=candidate,
            key=candidate.key,
            promise=Promise(
                step_time_s=6.4,
                step_time_kind=Provenance.COMPUTED,
                tokens_per_s=estimate.tokens_per_s,
                device_used_bytes=61 * GIB,
                memory_kind=Provenance.COMPUTED,
                usable_bytes=79 * GIB,
            ),
            estimate=estimate,
            trial_number=-1,
            runner_up=RunnerUp(key=other.key, tokens_per_s=slower.tokens_per_s, kind=Provenance.COMPUTED),
            search=SearchSummary(
                num_candidates=1480,
                num_screened=300,
                num_trials=0,
                num_out_of_memory=0,
                rejected=(),
                left_out_axes=(),
                trials_note="This machine has no GPU of the cluster's kind, so no trial was run.",
            ),
            validation=(),
            launcher=Launcher.SLURM,
            versions=quick.versions,
            hardware=(),
            machine="",
        ),
        job=make_job(device=DeviceKind.CUDA, nodes=8, gpus_per_node=8),
        plan_dir="plans/llama70b",
        launch_script="plans/llama70b/launch.sh",
        untried=(CandidateRow(key=other.key, candidate=other, estimate=slower),),
        stages=make_stages(estimate, num_stages=2),
        runner_up=make_row(other, slower),
        sensitivity=Sensitivity(
            rival=make_row(other, slower),
            lead_fraction=0.08,
            within=((0.05, 0), (0.2, 2)),
            cases=(
                ErrorCase(change="computing takes 15% longer", best=make_row(candidate, estimate), loss_fraction=0.0),
                ErrorCase(change="memory is 5% more", best=make_row(other, slower), loss_fraction=0.08),
            ),
        ),
    )
