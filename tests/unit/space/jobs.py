"""Jobs to enumerate: models by shape, clusters by size, nothing downloaded."""

from __future__ import annotations

from planner.spec import (
    ClusterSpec,
    Deadline,
    DeviceKind,
    GpuSpec,
    JobSpec,
    LinkSpec,
    ModelFamily,
    ModelSpec,
    Objective,
    OptimizerName,
    OptimizerSpec,
    ParameterCounts,
    SearchRanges,
    TracedModule,
    TrainingSpec,
)

LINK = LinkSpec(name="link", bandwidth_bytes_per_s=1e11, latency_s=1e-6)


def gpu(*, device: DeviceKind = DeviceKind.CUDA, fp16: float = 1e15, bf16: float = 1e15) -> GpuSpec:
    return GpuSpec(
        name="gpu",
        device=device,
        memory_nominal_bytes=80 * 2**30,
        memory_usable_bytes=79 * 2**30,
        memory_bandwidth_bytes_per_s=3e12,
        peak_fp32_flops_per_s=6e13,
        peak_fp16_flops_per_s=fp16,
        peak_bf16_flops_per_s=bf16,
        peak_fp8_flops_per_s=2e15,
    )


def cluster(nodes: int = 1, gpus_per_node: int = 8, *, device: GpuSpec | None = None) -> ClusterSpec:
    return ClusterSpec(
        gpu=device or gpu(),
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        intra_node_link=LINK,
        inter_node_link=LINK,
        host_memory_bytes=2**40,
    )


def decoder(**shape: object) -> ModelSpec:
    """A Llama 70B by shape, changed where `shape` says so."""
    usual: dict[str, object] = {
        "name": "decoder",
        "family": ModelFamily.DECODER,
        "model_type": "llama",
        "config_json": "{}",
        "num_layers": 80,
        "hidden_size": 8192,
        "num_heads": 64,
        "num_kv_heads": 8,
        "head_size": 128,
        "ffn_hidden_size": 28672,
        "vocab_size": 128256,
    }
    return ModelSpec(**{**usual, **shape})  # type: ignore[arg-type]


def llama_405b() -> ModelSpec:
    return decoder(name="llama-3.1-405b", num_layers=126, hidden_size=16384, num_heads=128, ffn_hidden_size=53248)


def module() -> ModelSpec:
    """An arbitrary nn.Module."""
    traced = TracedModule(
        num_parameters=1000,
        largest_parameter=100,
        saved_bytes_per_sample_fp32=1000,
        fixed_saved_bytes=0,
        forward_flops_per_sample=1000,
        tokens_per_sample=1,
    )
    return ModelSpec(
        name="towers", family=ModelFamily.MODULE, model_type="module", factory="package.module:function", traced=traced
    )


def gpt2_like() -> ModelSpec:
    """Learned positions and an odd vocabulary."""
    return decoder(
        name="gpt2",
        model_type="gpt2",
        num_layers=12,
        num_heads=12,
        num_kv_heads=12,
        ffn_hidden_size=3072,
        vocab_size=50257,
        max_seq_len=1024,
        counts=ParameterCounts(position_embedding=1024 * 768),
    )


def job(
    model: ModelSpec | None = None,
    *,
    on: ClusterSpec | None = None,
    global_batch_size: int = 512,
    objective: Objective = Objective.THROUGHPUT,
    **ranges: object,
) -> JobSpec:
    """A job whose search lists exactly the axes given in `ranges`."""
    return JobSpec(
        model=model or decoder(),
        training=TrainingSpec(seq_len=1024, global_batch_size=global_batch_size),
        cluster=on or cluster(),
        ranges=SearchRanges(**ranges),  # type: ignore[arg-type]
        objective=objective,
        deadline=Deadline(within_s=1e6) if objective is Objective.DEADLINE else None,
    )


def training(*, seq_len: int = 1024, global_batch_size: int = 64, optimizer: str = "adamw") -> TrainingSpec:
    return TrainingSpec(
        seq_len=seq_len,
        global_batch_size=global_batch_size,
        optimizer=OptimizerSpec(name=OptimizerName(optimizer)),
    )
