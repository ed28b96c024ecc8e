"""Floating-point work and memory traffic of one stage, and the time both take.

Owns the roofline: matrix products by their size, attention by its kernel, everything between them by its memory
traffic, and the host's launch rate as a floor. Leaves schedules and communication to `steptime`.
"""

from __future__ import annotations

import numpy as np

from planner.cost.axes import Axes
from planner.cost.parameters import StageShape
from planner.cost.profile import RuntimeProfile
from planner.spec._record import record
from planner.spec.columns import FULL_CHECKPOINTING, PRECISIONS, SELECTIVE_CHECKPOINTING, FloatColumn
from planner.spec.hardware import GpuSpec
from planner.spec.kinds import DeviceKind, ModelFamily, Precision
from planner.spec.model import ModelSpec, TracedModule

# Share of the dense peak that large matrix products reach inside a training step, power limits included, and the
# share that attention kernels reach. Fitted to the H200 rows and the published step times; see README.
_MATMUL_FRACTION, _ATTENTION_FRACTION = 0.70, 0.45
_CPU_MATMUL_FRACTION = 0.6
_MEMORY_FRACTION = 0.85  # of the memory bandwidth that streaming kernels reach
# A matrix product of fewer tokens than this fills the device badly: efficiency x tokens / (tokens + this).
_HALF_EFFICIENCY_ROWS = 256.0
_HALF_EFFICIENCY_WIDTH = 256.0


@record
class Work:
    """Seconds of one micro-batch on one rank of a stage."""

    forward: FloatColumn
    backward: FloatColumn
    recompute: FloatColumn
    host_floor: FloatColumn  # seconds the host needs to launch the kernels of all three
    flops: FloatColumn  # of the model, forward and backward, without recompute


def stage_work(shape: StageShape, *, axes: Axes, model: ModelSpec, gpu: GpuSpec, profile: RuntimeProfile) -> Work:
    """Forward, backward and recompute seconds of one micro-batch on one stage.

    forward = matmul FLOP / (peak x efficiency) + attention FLOP / (peak x attention efficiency) + traffic / bandwidth;
    backward = 2 x the products, 2.5 x flash attention, 2 x traffic (Dao 2023, arXiv 2307.08691, section 3.1);
    recompute: the forward of checkpointed layers, or only the traffic under selective checkpointing.
    """
    peak = _peak(axes, gpu=gpu)
    if model.traced is not None:
        return _traced_work(model.traced, axes=axes, peak=peak, gpu=gpu)
    layers = shape.layers + shape.encoder_layers
    size = _size_efficiency(axes, model=model)
    matmul_s = layers * axes.tokens * _layer_matmul_flops(model) / axes.tensor / (peak * size)
    head_flops = 2.0 * model.hidden_size * model.vocab_size * shape.has_head / axes.tensor
    head_s = axes.tokens * head_flops / (peak * size)
    attention_flops = layers * axes.tokens * _attention_flops(axes, model=model) / axes.tensor
    attention_s = attention_flops / (peak * _ATTENTION_FRACTION / _matmul_fraction(gpu))
    bandwidth = gpu.memory_bandwidth_bytes_per_s * _MEMORY_FRACTION
    traffic_s = layers * axes.tokens * _layer_traffic_bytes(axes, model=model, profile=profile) / bandwidth
    loss_s = axes.tokens * model.vocab_size * shape.has_head / axes.tensor * 30.0 / bandwidth
    layer_s = matmul_s + attention_s + traffic_s
    share = np.where(
        axes.checkpointed_layers == FULL_CHECKPOINTING,
        1.0,
        np.maximum(axes.checkpointed_layers, 0.0) / np.maximum(layers, 1.0),
    )
    selective = axes.checkpointed_layers == SELECTIVE_CHECKPOINTING
    recompute = np.where(selective, traffic_s, np.minimum(share, 1.0) * layer_s)
    kernels = layers * profile.kernels_per_layer * (3.0 + np.minimum(share, 1.0)) * profile.host_launch_s
    return Work(
        forward=layer_s + head_s + loss_s / 3,
        backward=2.0 * matmul_s + 2.5 * attention_s + 2.0 * traffic_s + 2.0 * head_s + loss_s * 2 / 3,
        recompute=recompute,
        host_floor=kernels,
        flops=3.0
        * (
            layers * axes.tokens * _layer_matmul_flops(model) / axes.tensor + axes.tokens * head_flops + attention_flops
        ),
    )


def _matmul_fraction(gpu: GpuSpec) -> float:
    return _CPU_MATMUL_FRACTION if gpu.device is DeviceKind.CPU else _MATMUL_FRACTION


def _peak(axes: Axes, *, gpu: GpuSpec) -> FloatColumn:
    """FLOP/s that a large product reaches in each row's precision; fp32 where the device lacks the type."""
    peaks = np.array([gpu.peak_flops_per_s(precision) or gpu.peak_fp32_flops_per_s for precision in PRECISIONS])
    peaks[PRECISIONS.index(Precision.FP8)] = gpu.peak_fp8_flops_per_s * 0.7 or peaks[PRECISIONS.index(Precision.BF16)]
    return peaks[axes.precision.astype(np.int64)] * _matmul_fraction(gpu)


def _size_efficiency(axes: Axes, *, model: ModelSpec) -> FloatColumn:
    """x / (x + half) in rows (tokens) and in the split width of the products: small ones fill few multiprocessors."""
    rows = axes.tokens / (axes.tokens + _HALF_EFFICIENCY_ROWS)
    width = max(model.hidden_size, 1) / axes.tensor
    return rows * width / (width + _HALF_EFFICIENCY_WIDTH)


def _layer_matmul_flops(model: ModelSpec) -> float:
    """Forward FLOP per token and layer: 2 per weight that the token meets (experts: the routed and the shared)."""
    moe_share = model.num_moe_layers / model.num_layers if model.num_layers else 0.0
    counts = model.counts
    moe = counts.router_per_layer + counts.shared_experts_per_layer + model.num_experts_per_token * counts.expert
    weights = counts.attention_per_layer + (1.0 - moe_share) * counts.mlp_per_layer + moe_share * moe
    return 2.0 * weights


def _attention_flops(axes: Axes, *, model: ModelSpec) -> FloatColumn:
    """Forward FLOP per token and layer: 2 x 2 x keys x width; half of it for a causal kernel that skips the mask."""
    keys = axes.tokens * axes.sequence / axes.micro_batch
    if model.sliding_window:
        keys = np.minimum(keys, float(model.sliding_window))
    width = model.num_heads * ((model.qk_head_size or model.head_size) + (model.v_head_size or model.head_size)) / 2.0
    causal = model.family is ModelFamily.DECODER
    seen = np.where(axes.is_eager, 1.0, 0.5 if causal else 1.0)
    return 4.0 * width * keys * seen


def _layer_traffic_bytes(axes: Axes, *, model: ModelSpec, profile: RuntimeProfile) -> FloatColumn:
    """Bytes read and written per token and layer by what is not a matrix product, forward.

    Hugging Face eager in 16 bit: RMSNorm 36h, two of them; residuals 2 x 6h; rotary 18 (a + g); gate 10f. LayerNorm
    and fused norms 4h. Eager attention adds 24 bytes a score.
    """
    hidden, ffn = float(model.hidden_size), float(model.ffn_hidden_size)
    moe_share = model.num_moe_layers / model.num_layers if model.num_layers else 0.0
    routed = float(model.num_experts_per_token + model.num_shared_experts) * model.expert_ffn_hidden_size
    ffn = ffn * (1.0 - moe_share) + routed * moe_share
    hidden_routed = moe_share * model.num_experts_per_token * 14.0 * hidden
    norm = 36.0 if model.rms_norm else 8.0
    whole = (2.0 * norm + 12.0) * hidden + hidden_routed
    split = 18.0 * (model.num_heads + model.num_kv_heads) * model.head_size + (10.0 if model.gated_mlp else 12.0) * ffn
    split_share = np.where(axes.sequence_split, axes.tensor, 1.0)
    keys = axes.tokens * axes.sequence / axes.micro_batch
    scores = np.where(axes.is_eager, 24.0 * model.num_heads * keys, 0.0) / axes.tensor
    fused = profile.elementwise_fraction * (0.45 if profile.compiled else 1.0)
    return (whole / split_share + split / axes.tensor) * fused * axes.element_bytes / 2.0 + scores


def _traced_work(traced: TracedModule, *, axes: Axes, peak: FloatColumn, gpu: GpuSpec) -> Work:
    flops = axes.micro_batch * traced.forward_flops_per_sample
    traffic = 3.0 * axes.micro_batch * traced.saved_bytes_per_sample_fp32 * axes.element_bytes / 4.0
    forward = flops / peak + traffic / gpu.memory_bandwidth_bytes_per_s
    nothing = np.zeros_like(forward)
    return Work(forward=forward, backward=2.0 * forward, recompute=nothing, host_floor=nothing, flops=3.0 * flops)
