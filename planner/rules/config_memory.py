"""What a configuration costs in memory without saying so: buckets, offloaded states, weights gathered at saving.

Owns the warnings about size that a configuration alone (with the GPU's memory, where it is told) can show. What a
training run needs in all is the cost model's business.
"""

from __future__ import annotations

from collections.abc import Iterable

from planner.rules.config_context import AUTO, Breach, ConfigView, Consumer, Severity
from planner.rules.patches import put
from planner.rules.rule import Rule

_ZERO = "zero_optimization"
_GB = 10**9

_DEFAULT_BUCKET = 500_000_000  # elements; DeepSpeed 0.19.8, zero/config.py: reduce_bucket_size, allgather_bucket_size
_DEFAULT_PREFETCH = 50_000_000  # elements; the same file: stage3_prefetch_bucket_size
_LARGE_PREFETCH = 4 * _DEFAULT_PREFETCH
_LARGE_SHARE = 0.1  # of the GPU's memory; buffers of more than this cost more than ZeRO saves on a small model
_SMALLER_BUCKET = 50_000_000  # elements: 100 MB in 16 bit, still large enough to fill a link
# fp32 master, two Adam moments (12 bytes), 16-bit weights and gradients (4), and the copies that pinning makes
_HOST_BYTES_PER_PARAMETER = 18
_PINNED_FACTOR = 1.5


def _element_bytes(view: ConfigView) -> int:
    """Of gradients and gathered weights: 2 in 16-bit training, 4 otherwise; `auto` is taken for 16 bit."""
    for block in ("fp16", "bf16", "bfloat16"):
        if view.get(f"{block}.enabled") == AUTO or view.flag(f"{block}.enabled"):
            return 2
    return 4


def _large_buckets(view: ConfigView) -> Iterable[Breach]:
    if view.zero_stage == 0:
        return
    size = _element_bytes(view)
    limits = {"reduce_bucket_size": _DEFAULT_BUCKET, "allgather_bucket_size": _DEFAULT_BUCKET}
    if view.zero_stage == 3:
        limits |= {"stage3_prefetch_bucket_size": _LARGE_PREFETCH, "prefetch_bucket_size": _LARGE_PREFETCH}
    for name, limit in limits.items():
        elements = view.number(f"{_ZERO}.{name}")
        if elements > limit:
            yield Breach(
                key=f"{_ZERO}.{name}",
                message=f"{name} {elements:g} is {elements * size / _GB:.3g} GB of GPU memory a buffer "
                f"({size} bytes an element), more than DeepSpeed's default",
                fix="write the default or less, unless memory is plenty: "
                + (f"{_DEFAULT_PREFETCH}" if "prefetch" in name else f"{_DEFAULT_BUCKET}"),
            )


def _buffers_on_gpu(view: ConfigView) -> Iterable[Breach]:
    """Reduce bucket (twice when communication overlaps) and all-gather bucket, held against the GPU."""
    total = view.context.gpu_memory_bytes
    if not total or view.zero_stage not in (1, 2):
        return
    size = _element_bytes(view)
    overlaps = view.flag(f"{_ZERO}.overlap_comm")
    reduce_bytes = view.number(f"{_ZERO}.reduce_bucket_size", _DEFAULT_BUCKET) * size * (2 if overlaps else 1)
    gather_bytes = view.number(f"{_ZERO}.allgather_bucket_size", _DEFAULT_BUCKET) * size
    share = (reduce_bytes + gather_bytes) / total
    if share > _LARGE_SHARE:
        yield Breach(
            key=f"{_ZERO}.reduce_bucket_size",
            message=f"ZeRO's buffers take {share * total / _GB:.3g} GB of the GPU's {total / _GB:.3g} GB: "
            f"reduce bucket {reduce_bytes / _GB:.3g} GB"
            + (" (doubled by overlap_comm)" if overlaps else "")
            + f", all-gather bucket {gather_bytes / _GB:.3g} GB",
            fix=f"write reduce_bucket_size and allgather_bucket_size {_SMALLER_BUCKET} or smaller",
            patch={
                _ZERO: {"reduce_bucket_size": _SMALLER_BUCKET, "allgather_bucket_size": _SMALLER_BUCKET},
            },
        )


def _thresholds_at_zero(view: ConfigView) -> Iterable[Breach]:
    if view.zero_stage != 3:
        return
    names = [
        name
        for name in ("max_live_parameters", "max_reuse_distance")
        if any(view.get(f"{_ZERO}.{prefix}{name}") == 0 for prefix in ("", "stage3_"))
    ]
    if names:
        written = next(
            f"{_ZERO}.{prefix}{names[0]}" for prefix in ("", "stage3_") if view.get(f"{_ZERO}.{prefix}{names[0]}") == 0
        )
        yield Breach(
            key=written,
            message=f"{' and '.join(names)} 0: every parameter is given back after use and gathered again, the least "
            "memory for the most communication",
            fix="leave them out for DeepSpeed's 1e9, unless memory is short",
        )


def _host_memory(view: ConfigView) -> Iterable[Breach]:
    if view.zero_stage != 3 or view.offload_param != "cpu" or view.offload_optimizer != "cpu":
        return  # what is offloaded to NVMe passes through host memory in buffers
    yield Breach(
        key=f"{_ZERO}.offload_optimizer",
        message=f"all states live in host memory: about {_HOST_BYTES_PER_PARAMETER} bytes a parameter over all nodes, "
        f"{_PINNED_FACTOR} times that when pinned (7 billion parameters: "
        f"{7 * _HOST_BYTES_PER_PARAMETER} to {7 * _HOST_BYTES_PER_PARAMETER * _PINNED_FACTOR:.0f} GB)",
        fix="see that the nodes have it, or ranks end with exit code -9; `planner estimate` has a model's figure",
    )


def _unsaved_weights(view: ConfigView) -> Iterable[Breach]:
    if view.zero_stage != 3 or view.context.consumer is not Consumer.HUGGINGFACE:
        return
    for name in ("stage3_gather_16bit_weights_on_model_save", "gather_16bit_weights_on_model_save"):
        key = f"{_ZERO}.{name}"
        if view.get(key) is False:
            yield Breach(
                key=key,
                message="save_model writes no usable 16-bit weights: a rank has only its shard, and gathering is off",
                fix="write true, or turn checkpoints into weights with zero_to_fp32.py",
                patch=put(key, True),
            )


def _native_moe(view: ConfigView) -> Iterable[Breach]:
    if not view.context.native_moe:
        return
    if view.zero_stage == 3:
        yield Breach(
            key=f"{_ZERO}.stage",
            message="DeepSpeed's own MoE layers at stage 3",
            fix="write stage 2, or use expert_parallel (AutoEP)",
            patch=put(f"{_ZERO}.stage", 2),
        )
    for name in ("contiguous_gradients", "reduce_scatter"):
        if view.zero_stage == 2 and not view.flag(f"{_ZERO}.{name}", True):
            yield Breach(
                key=f"{_ZERO}.{name}",
                message=f"DeepSpeed's own MoE layers at stage 2 with {name} false",
                fix=f"write {name}: true",
                patch=put(f"{_ZERO}.{name}", True),
            )


def _elastic_checkpoint(view: ConfigView) -> Iterable[Breach]:
    key = f"{_ZERO}.elastic_checkpoint"
    if view.zero_stage == 3 and view.flag(key):
        yield Breach(
            key=key,
            message="elastic_checkpoint has no effect at stage 3 any more",
            fix="convert checkpoints with ds_to_universal.py and write checkpoint.load_universal: true",
            patch=put(key, False),
        )


MEMORY_CONFIG_RULES: tuple[Rule, ...] = (
    Rule(
        name="buffers-exceed-default",
        severity=Severity.INFO,
        summary="buckets are allocated whole, however small the model",
        source="DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py, partitioned_param_coordinator.py; arithmetic",
        check=_large_buckets,
    ),
    Rule(
        name="buffers-large-for-gpu",
        severity=Severity.WARNING,
        summary="on a small card the buckets cost more than ZeRO saves",
        source="DeepSpeed issue 2992; DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py; arithmetic",
        check=_buffers_on_gpu,
    ),
    Rule(
        name="zero3-thresholds-at-zero",
        severity=Severity.INFO,
        summary="the thresholds trade memory against gathering parameters again",
        source="DeepSpeed 0.19.8, runtime/zero/partitioned_param_coordinator.py",
        check=_thresholds_at_zero,
    ),
    Rule(
        name="offload-host-memory",
        severity=Severity.INFO,
        summary="what leaves the GPUs must fit into the nodes' memory",
        source="DeepSpeed 0.19.8, runtime/zero/stage3.py; arithmetic",
        check=_host_memory,
    ),
    Rule(
        name="zero3-weights-not-saved",
        severity=Severity.WARNING,
        summary="at ZeRO 3 no rank holds whole weights; they are gathered for saving only on demand",
        source="DeepSpeed 0.19.8, runtime/engine.py: save_16bit_model; transformers 5.24, trainer.py: save_model",
        check=_unsaved_weights,
    ),
    Rule(
        name="moe-zero-stage",
        severity=Severity.ERROR,
        summary="experts of DeepSpeed's MoE layer are no ZeRO 3 parameters, and stage 2 treats them in its own buffers",
        source="DeepSpeed 0.19.8, runtime/engine.py: _validate_zero3_moe_compatibility; stage_1_and_2.py",
        check=_native_moe,
    ),
    Rule(
        name="elastic-checkpoint-zero-3",
        severity=Severity.WARNING,
        summary="checkpoints of ZeRO 3 change their number of ranks through the universal format only",
        source="DeepSpeed 0.19.8, runtime/zero/config.py: elastic_checkpoint_deprecated",
        check=_elastic_checkpoint,
    ),
)
