"""Floating-point work and memory traffic of one stage, and the time both take.

Owns the roofline: matrix products by their size, attention by its kernel, everything between them by its memory
traffic, and the host's launch rate as a floor. Leaves schedules and communication to `steptime`.
"""

from __future__ import annotations

import numpy as np

from planner.cost.axes import Axes
from planner.cost.inputs import Inputs
from planner.cost.parameters import StageShape
from planner.cost.profile import RuntimeProfile
from planner.cost.traffic import layer_traffic_bytes, loss_traffic_bytes
from planner.spec._record import record
from planner.spec.columns import FULL_CHECKPOINTING, PRECISIONS, SELECTIVE_CHECKPOINTING, FloatColumn
from planner.spec.hardware import GpuSpec
from planner.spec.kinds import DeviceKind, ModelFamily, Precision
from planner.spec.model import ModelSpec, TracedModule

# Share of the dense peak that large matrix products reach inside a training step: 0.69 at an A100's 312 TFLOP/s, and
# less the higher the peak, because power, caches and tails do not grow with it: (312 / peak) ^ 0.14 gives 0.59 on
# Hopper (H200 rows) and 0.51 on Blackwell (SimuMax's B200 rows).
_MATMUL_FRACTION, _REFERENCE_FLOPS_PER_S, _PEAK_EXPONENT = 0.69, 312.0e12, 0.14
# The same in plain fp32: 0.75 at an H200's 67 TFLOP/s, 0.92 at a V100's 15.7 (BERT's rows).
_MATMUL_FRACTION_FP32, _REFERENCE_FP32_FLOPS_PER_S, _MOST_FP32 = 0.75, 66.9e12, 0.95
# Of the products' time in a step without recompute: the two products of backward read and write more for their FLOP.
_FORWARD_SHARE = 0.30
_CPU_MATMUL_FRACTION = 0.6
# Flash attention, forward and backward together. Above Hopper's peak it falls behind, since the exponentials between
# its products run on units that did not grow: (989 / peak) ^ 0.3, 0.39 on Blackwell (SimuMax's rows of 131,072 tokens).
_ATTENTION_EXPONENT = 0.3
_EAGER_ATTENTION_FRACTION = 0.35  # batched products of head-size width
_BEFORE_AMPERE_FRACTION = 0.2  # no flash kernel there: torch's memory-efficient one
_MEMORY_FRACTION = 0.85  # of the memory bandwidth that streaming kernels reach
# Small products fill the device badly: x / (x + half) in tokens and in the width that tensor parallelism leaves; what
# fills a device grows with its peak: 128 at Hopper's 989 TFLOP/s.
_HALF_TOKENS, _HALF_WIDTH, _HOPPER_FLOPS_PER_S = 256.0, 160.0, 989.0e12


@record
class Work:
    """Seconds of one micro-batch on one rank of a stage. `flops`: of the model, forward and backward, no recompute, and
    no gradients of weights that are not trained."""

    forward: FloatColumn
    backward: FloatColumn
    recompute: FloatColumn
    flops: FloatColumn


def stage_work(shape: StageShape, *, axes: Axes, inputs: Inputs) -> Work:
    """Forward, backward and recompute seconds of one micro-batch on one stage.

    forward = matmul FLOP / (peak x efficiency) + attention FLOP / (peak x attention efficiency) + traffic / bandwidth;
    backward = (1 + trained share) x the products, 2.5 x flash attention (Dao 2023, arXiv 2307.08691, section 3.1),
    1.5 to 2 x traffic, and adding the gradients up; of a step's products 30 % is forward. Recompute: the forward of
    checkpointed layers; under selective checkpointing the traffic (Megatron: the attention).
    """
    model, gpu, profile = inputs.model, inputs.cluster.gpu, inputs.profile
    peak = _peak(axes, gpu=gpu, profile=profile)
    if model.traced is not None:
        return _traced_work(model.traced, axes=axes, peak=peak * _matmul_fraction(axes, gpu=gpu), gpu=gpu)
    layers = shape.layers + shape.encoder_layers
    product_rate = peak * _matmul_fraction(axes, gpu=gpu) * _size_efficiency(axes, model=model, peak=peak)
    dense, grouped = _layer_matmul_flops(model)
    layer_flops = axes.tokens * (dense + grouped) / axes.tensor
    matmul_s = axes.tokens * (dense + grouped / profile.grouped_fraction) / axes.tensor / product_rate
    head_flops = axes.tokens * 2.0 * model.hidden_size * model.vocab_size / axes.tensor * shape.has_head
    attention_flops = axes.tokens * _attention_flops(axes, model=model) / axes.tensor
    sixteen = np.where(axes.is_fp8, gpu.peak_bf16_flops_per_s or peak, peak)  # fp8 runs attention and head in 16 bit
    has_flash = gpu.peak_bf16_flops_per_s > 0 or gpu.device is DeviceKind.CPU  # from Ampere on
    share = _attention_fraction(axes, peak=sixteen, profile=profile, has_flash=has_flash)
    attention_s = attention_flops / (sixteen * share)
    bandwidth = gpu.memory_bandwidth_bytes_per_s * _MEMORY_FRACTION
    traffic_s = axes.tokens * layer_traffic_bytes(axes, model=model, profile=profile) / bandwidth
    loss_s = loss_traffic_bytes(axes, model=model, profile=profile) * shape.has_head / bandwidth
    head_s = head_flops / (product_rate * sixteen / peak)
    forward_s = matmul_s * _FORWARD_SHARE * 3.0 + attention_s + traffic_s
    selective_s = attention_s if profile.recomputes_attention_core else traffic_s
    is_selective = axes.checkpointed_layers == SELECTIVE_CHECKPOINTING
    again = 1.0 + (0.0 if inputs.training.lora_rank else inputs.training.trainable_fraction)
    accumulate_s = (dense + grouped) / 2.0 / axes.tensor * profile.gradient_copy_bytes / bandwidth
    backward_share = (1.0 - _FORWARD_SHARE) * 1.5
    attention_again = np.where(axes.is_eager, 2.0, 2.5)
    backward_layer_s = again * backward_share * matmul_s + attention_again * attention_s + accumulate_s
    backward_layer_s = backward_layer_s + profile.backward_traffic_factor * traffic_s
    return Work(
        forward=layers * forward_s + head_s + loss_s / 3.0,
        backward=layers * backward_layer_s + again * head_s + loss_s * 2.0 / 3.0,
        recompute=layers * np.where(is_selective, selective_s, recomputed_share(axes, layers=layers) * forward_s),
        flops=layers * ((1.0 + again) * layer_flops + 3.0 * attention_flops) + (1.0 + again) * head_flops,
    )


def _attention_fraction(axes: Axes, *, peak: FloatColumn, profile: RuntimeProfile, has_flash: bool) -> FloatColumn:
    """Share of the peak that attention's products reach; fp32 units are filled by any kernel."""
    flash = profile.attention_fraction * np.minimum(_HOPPER_FLOPS_PER_S / peak, 1.0) ** _ATTENTION_EXPONENT
    flash = flash * np.minimum(_REFERENCE_FLOPS_PER_S / peak, 1.0) ** profile.attention_exponent
    flash = flash if has_flash else np.full(len(axes), _BEFORE_AMPERE_FRACTION)
    return np.where(axes.is_fp32, 1.0, np.where(axes.is_eager, _EAGER_ATTENTION_FRACTION, flash))


def recomputed_share(axes: Axes, *, layers: FloatColumn) -> FloatColumn:
    """Share of a stage's layers whose whole forward pass runs again."""
    asked = np.maximum(axes.checkpointed_layers, 0.0) / np.maximum(layers, 1.0)
    return np.where(axes.checkpointed_layers == FULL_CHECKPOINTING, 1.0, np.minimum(asked, 1.0))


def _matmul_fraction(axes: Axes, *, gpu: GpuSpec) -> FloatColumn:
    if gpu.device is DeviceKind.CPU:
        return np.full(len(axes), _CPU_MATMUL_FRACTION)
    peak = max(gpu.peak_bf16_flops_per_s, gpu.peak_fp16_flops_per_s, _REFERENCE_FLOPS_PER_S)
    tensor_cores = _MATMUL_FRACTION * (_REFERENCE_FLOPS_PER_S / peak) ** _PEAK_EXPONENT
    plain = _MATMUL_FRACTION_FP32 * (_REFERENCE_FP32_FLOPS_PER_S / gpu.peak_fp32_flops_per_s) ** _PEAK_EXPONENT
    return np.asarray(np.where(axes.is_fp32, min(plain, _MOST_FP32), tensor_cores), dtype=np.float64)


def _peak(axes: Axes, *, gpu: GpuSpec, profile: RuntimeProfile) -> FloatColumn:
    """Dense peak FLOP/s in each row's precision; where the device lacks the type, that of fp32."""
    peaks = np.array([gpu.peak_flops_per_s(precision) or gpu.peak_fp32_flops_per_s for precision in PRECISIONS])
    sixteen = gpu.peak_bf16_flops_per_s or gpu.peak_fp32_flops_per_s
    peaks[PRECISIONS.index(Precision.FP8)] = max(gpu.peak_fp8_flops_per_s * profile.fp8_fraction, sixteen)
    return np.asarray(peaks[axes.precision.astype(np.int64)], dtype=np.float64)


def _size_efficiency(axes: Axes, *, model: ModelSpec, peak: FloatColumn) -> FloatColumn:
    """x / (x + half) in rows (tokens) and in the split width: small products fill few multiprocessors."""
    width = max(model.hidden_size, 1) / np.sqrt(axes.tensor)
    grown = peak / _HOPPER_FLOPS_PER_S
    rows, columns = _HALF_TOKENS * grown, _HALF_WIDTH * grown
    return axes.tokens / (axes.tokens + rows) * width / (width + columns)


def _layer_matmul_flops(model: ModelSpec) -> tuple[float, float]:
    """Forward FLOP per token and average layer, dense and grouped: 2 per weight that the token meets. An
    encoder-decoder's layers are averaged over both stacks."""
    moe_share = model.num_moe_layers / model.num_layers if model.num_layers else 0.0
    counts = model.counts
    shared = moe_share * (counts.router_per_layer + counts.shared_experts_per_layer)
    dense = counts.attention_per_layer + (1.0 - moe_share) * counts.mlp_per_layer + shared
    if model.num_encoder_layers:
        dense = (dense * model.num_layers + counts.encoder) / (model.num_layers + model.num_encoder_layers)
    return 2.0 * dense, 2.0 * moe_share * model.num_experts_per_token * counts.expert


def _attention_flops(axes: Axes, *, model: ModelSpec) -> FloatColumn:
    """Forward FLOP per token and layer: 2 x 2 x keys x width; half of it for a causal kernel that skips the mask."""
    keys = axes.tokens * axes.sequence / axes.micro_batch
    if model.sliding_window:
        keys = np.minimum(keys, float(model.sliding_window))
    width = model.num_heads * ((model.qk_head_size or model.head_size) + (model.v_head_size or model.head_size)) / 2.0
    causal = 0.5 if model.family is ModelFamily.DECODER else 1.0
    return 4.0 * width * keys * np.where(axes.is_eager, 1.0, causal)


def _traced_work(traced: TracedModule, *, axes: Axes, peak: FloatColumn, gpu: GpuSpec) -> Work:
    """FLOP as traced at the peak's usual share; each saved byte is written once and read twice."""
    flops = axes.micro_batch * traced.forward_flops_per_sample
    traffic = 3.0 * axes.micro_batch * traced.saved_bytes_per_sample_fp32 * axes.element_bytes / 4.0
    forward = flops / peak + traffic / gpu.memory_bandwidth_bytes_per_s
    return Work(forward=forward, backward=2.0 * forward, recompute=np.zeros_like(forward), flops=3.0 * flops)
