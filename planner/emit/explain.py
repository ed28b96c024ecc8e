"""Why each key of an emitted DeepSpeed config has its value, in sentences for the report: JSON has no comments.

Owns the words. The values are made in `ds_config`; a test holds that every key that can be emitted has its sentence.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from planner.emit.script_config import QUIET_STEPS_PER_PRINT

_WHY = {
    "train_batch_size": "the job's global batch, never changed: micro-batch x accumulation x data-parallel ranks",
    "train_micro_batch_size_per_gpu": "sequences of one forward pass on one data-parallel rank",
    "gradient_accumulation_steps": "what is left of the global batch after micro-batch and data-parallel ranks",
    "gradient_clipping": "said out loud: DeepSpeed's default went from none to 1.0 during 2026",
    "optimizer.type": "the job's optimizer, under the name DeepSpeed looks it up by",
    "optimizer.params.lr": "the peak rate; the trainer's warm-up and cosine start from it",
    "optimizer.params.betas": "from the job",
    "optimizer.params.eps": "from the job",
    "optimizer.params.weight_decay": "from the job",
    "optimizer.params.momentum": "from the job",
    "optimizer.params.adam_w_mode": "decoupled weight decay, said out loud: DeepSpeed turns even 'Adam' into AdamW",
    "optimizer.params.torch_adam": "torch's own AdamW, which needs no compiler on the nodes; false where the optimizer "
    "lives in host memory and DeepSpeed's CPU Adam takes over, or the plan chose DeepSpeed's FusedAdam",
    "optimizer.params.fused": "one kernel for all parameters of a group",
    "fp16.enabled": "the plan's precision",
    "fp16.auto_cast": "the trainer feeds the right types itself",
    "fp16.loss_scale": "0: dynamic scaling",
    "fp16.initial_scale_power": "starts at 2^12, not 2^16, so that the first steps are not skipped for overflow; it "
    "doubles by itself",
    "fp16.loss_scale_window": "clean steps before the scale doubles",
    "fp16.hysteresis": "overflows borne before the scale is halved",
    "fp16.consecutive_hysteresis": "DeepSpeed's default, written so that it cannot drift",
    "fp16.min_loss_scale": "DeepSpeed's default, written so that it cannot drift",
    "bf16.enabled": "the plan's precision",
    "bf16.check_grad_overflow": "a step with a gradient that is not finite is skipped; the default changed during 2026",
    "bf16.immediate_grad_update": "DeepSpeed's default, written so that it cannot drift",
    "data_types.grad_accum_dtype": "the type in which gradients accumulate",  # by stage, see `_why_accumulation`
    "zero_optimization.stage": "what the search chose: 0 shards nothing, 1 optimizer states, 2 gradients too, 3 "
    "parameters too",
    "zero_optimization.contiguous_gradients": "gradients are copied into one buffer, which avoids fragmentation",
    "zero_optimization.overlap_comm": "unless the job says otherwise: on at stage 3, which gathers behind the "
    "computation; off below it, where the gain is small and data races have been reported",
    "zero_optimization.reduce_scatter": "each rank receives only its own shard; off only for Muon at stage 3, "
    "which needs whole matrices",
    "zero_optimization.reduce_bucket_size": "elements of the reduce buffer: as the job lists, else DeepSpeed's 5e8, or "
    "all parameters of one rank where they are fewer",
    "zero_optimization.allgather_partitions": "DeepSpeed's default, written so that it cannot drift",
    "zero_optimization.allgather_bucket_size": "as the reduce bucket; even, because DeepSpeed refuses an odd one",
    "zero_optimization.round_robin_gradients": "DeepSpeed's default, written so that it cannot drift",
    "zero_optimization.sub_group_size": "DeepSpeed's default, written so that it cannot drift",
    "zero_optimization.stage3_prefetch_bucket_size": "elements gathered ahead: DeepSpeed's 5e7, or the whole model",
    "zero_optimization.stage3_param_persistence_threshold": "parameters smaller than this stay whole on every rank",
    "zero_optimization.stage3_max_live_parameters": "DeepSpeed's default, written so that it cannot drift",
    "zero_optimization.stage3_max_reuse_distance": "DeepSpeed's default, written so that it cannot drift",
    "zero_optimization.zero_hpz_partition_size": "ranks of one node that share a second copy of the parameters, so "
    "that the backward pass gathers over the fast links",
    "zero_optimization.stage3_gather_16bit_weights_on_model_save": "checkpoints stay sharded: gathering would need the "
    "whole model on one rank",
    "zero_optimization.offload_optimizer.device": "what the plan chose",
    "zero_optimization.offload_optimizer.pin_memory": "full-speed copies; the default changed during 2026",
    "zero_optimization.offload_param.device": "what the plan chose",
    "zero_optimization.offload_param.pin_memory": "full-speed copies; the default changed during 2026",
    "zero_allow_untested_optimizer": "ZeRO asks for this word before it shards an optimizer that is not on its list",
    "pipeline.activation_checkpoint_interval": "0: the trainer checkpoints the layers itself, by the plan's choice",
    "pipeline.pipe_partitioned": "activations between stages travel in tensor-parallel slices",
    "pipeline.grad_partitioned": "gradients between stages travel in tensor-parallel slices",
    "steps_per_print": "the trainer prints its own lines",
    "wall_clock_breakdown": "DeepSpeed's timers would synchronise the device in every step",
}


def _why_accumulation(config: dict[str, Any]) -> str:
    """Why gradients accumulate in their type: what another would do at this stage, or what this one does."""
    stage = config["zero_optimization"]["stage"]
    weights = next((name for name in ("fp16", "bf16") if name in config), "fp32")
    if config["data_types"]["grad_accum_dtype"] != weights:
        kept = "on every rank whole, 4 bytes a parameter" if stage == 1 else "sharded, 4 bytes a parameter of the shard"
        return f"the job lists it: sums of many micro-batches lose no digits; at stage {stage} they are kept {kept}"
    if weights == "fp32":
        return "the type of the weights"
    if stage == 1 and weights == "fp16":
        stage = 2  # as there: no other optimizer is selected
    reasons = {
        0: "any other type is refused without ZeRO",
        1: "fp32 would select an optimizer that keeps unsharded fp32 gradients",
        2: "fp32 would double the gradients' shards, and changes numerics: list it to have it tried",
        3: "fp32 would double the gradients' shards, and changes numerics: list it to have it tried",
    }
    return f"the type of the weights: {reasons[stage]}"


_LEFT_TO_TRAINER = "left to the Trainer's own arguments (gradient_clipping to --max_grad_norm)"
_OWN = "from your own config (launch.deepspeed_config)"


def explain_ds_config(config: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """`(key, why)` for each leaf of a config that `render_ds_config` made, in its order; keys are dotted paths."""
    if not _is_whole(config):
        return tuple((key, _WHY[key] if key in _PLANNED else _OWN) for key, _value in _leaves(config))
    whys = {**_WHY, "data_types.grad_accum_dtype": _why_accumulation(config)}
    return tuple((key, _LEFT_TO_TRAINER if value == "auto" else whys[key]) for key, value in _leaves(config))


def _is_whole(config: dict[str, Any]) -> bool:
    """Whether every key is the planner's; what is laid over a config of the user's own keeps theirs."""
    return "data_types" in config and config.get("steps_per_print") == QUIET_STEPS_PER_PRINT


_PLANNED = frozenset(
    {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "zero_optimization.stage"}
    | {"bf16.enabled", "fp16.enabled"}
)


def _leaves(block: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in block.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
