"""A candidate as DeepSpeed's JSON configuration: plain resolved values, nothing left to a default that drifts.

Owns every DeepSpeed key name that the product writes. What the keys mean and which combinations are refused belongs to
`planner.rules`; what JSON cannot carry (layout, checkpointing, attention) is in `planner.emit.task`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from planner.errors import NotExpressible
from planner.spec import Candidate, DeviceKind, JobSpec, OffloadDevice, OptimizerName, OptimizerSpec, Precision

Block = dict[str, Any]

DEFAULT_BUCKET_ELEMENTS = 500_000_000  # reduce_bucket_size, allgather_bucket_size: DeepSpeed 0.19.8, zero/config.py
SMALLEST_BUCKET_ELEMENTS = 1_000_000  # below this a message is all latency, and the buffer is 4 MB at most

# First loss scale 2^12 instead of 2^16: a fresh transformer in fp16 overflows at 2^16 for its first steps, each of
# which is skipped (hysteresis 2 skips twice per halving), and a short trial would then time steps without an update.
# The scale still grows, doubling after every `loss_scale_window` clean steps.
INITIAL_SCALE_POWER = 12


def render_ds_config(candidate: Candidate, *, job: JobSpec, deepspeed_version: str) -> Block:
    """The DeepSpeed configuration that runs `candidate` of `job`, as JSON-ready values in a stable key order.

    The batch triple is consistent for the data-parallel world that the reference trainer's topology gives DeepSpeed:
    train_batch_size = micro x accumulation x data_parallel_size. Raises NotExpressible when JSON cannot say it.
    """
    config: Block = {
        "train_batch_size": candidate.batch.global_batch_size,
        "train_micro_batch_size_per_gpu": candidate.batch.micro_batch_size,
        "gradient_accumulation_steps": candidate.batch.gradient_accumulation_steps,
        "gradient_clipping": float(job.training.gradient_clipping),
        "optimizer": _optimizer(candidate, job=job),
        **_precision(candidate),
        "zero_optimization": _zero(candidate, job=job),
    }
    if candidate.zero_stage > 0 and job.training.optimizer.name is OptimizerName.SGD:
        config["zero_allow_untested_optimizer"] = True
    if candidate.layout.pipeline_parallel_size > 1:
        config["pipeline"] = {"activation_checkpoint_interval": 0}
    config["steps_per_print"] = 1_000_000
    config["wall_clock_breakdown"] = False
    return config


def render_ds_config_text(candidate: Candidate, *, job: JobSpec, deepspeed_version: str) -> str:
    """The text of `ds_config.json`: the same bytes for the same candidate, job and version."""
    config = render_ds_config(candidate, job=job, deepspeed_version=deepspeed_version)
    return json.dumps(config, indent=2, allow_nan=False) + "\n"


def bucket_elements(candidate: Candidate, *, job: JobSpec) -> int:
    """Elements of ZeRO's reduce and all-gather buckets: DeepSpeed's 5e8, but no more than one rank's parameters.

    The buffers are allocated whole (2 bytes an element, twice with overlap), so that 5e8 would cost a 100 M parameter
    model a gigabyte or two for nothing. Even, because DeepSpeed refuses an odd all-gather bucket.
    """
    ranks = candidate.layout.tensor_parallel_size * candidate.layout.pipeline_parallel_size
    own = -(-job.model.num_parameters // ranks)
    return min(DEFAULT_BUCKET_ELEMENTS, max(SMALLEST_BUCKET_ELEMENTS, own + own % 2))


def _precision(candidate: Candidate) -> Block:
    if candidate.precision is Precision.FP8:
        raise NotExpressible(
            "precision fp8 cannot be written into a DeepSpeed config",
            why="DeepSpeed has no fp8 training switch in its JSON",
            fix="use precision bf16 or fp16",
        )
    word = candidate.precision.value
    blocks: Block = {}
    if candidate.precision is Precision.FP16:
        blocks["fp16"] = {
            "enabled": True,
            "auto_cast": False,
            "loss_scale": 0,
            "initial_scale_power": INITIAL_SCALE_POWER,
            "loss_scale_window": 1000,
            "hysteresis": 2,
            "consecutive_hysteresis": False,
            "min_loss_scale": 1,
        }
    if candidate.precision is Precision.BF16:
        blocks["bf16"] = {"enabled": True, "check_grad_overflow": True}
    blocks["data_types"] = {"grad_accum_dtype": word}
    return blocks


def _zero(candidate: Candidate, *, job: JobSpec) -> Block:
    bucket = bucket_elements(candidate, job=job)
    block: Block = {"stage": candidate.zero_stage}
    if candidate.zero_stage == 0:
        return block
    overlap = candidate.zero_stage == 3
    block |= {
        "contiguous_gradients": True,
        "overlap_comm": overlap,
        "reduce_scatter": True,
        "reduce_bucket_size": bucket,
        "allgather_partitions": True,
        "allgather_bucket_size": bucket,
        "round_robin_gradients": False,
    }
    if candidate.zero_stage == 3:
        block |= {
            "sub_group_size": 1_000_000_000,
            "stage3_prefetch_bucket_size": min(50_000_000, bucket),
            "stage3_param_persistence_threshold": 100_000,
            "stage3_max_live_parameters": 1_000_000_000,
            "stage3_max_reuse_distance": 1_000_000_000,
            "stage3_gather_16bit_weights_on_model_save": False,
        }
    if candidate.offload_optimizer is not OffloadDevice.NONE:
        block["offload_optimizer"] = {"device": candidate.offload_optimizer.value, "pin_memory": True}
    if candidate.offload_param is not OffloadDevice.NONE:
        block["offload_param"] = {"device": candidate.offload_param.value, "pin_memory": True}
    return block


def _optimizer(candidate: Candidate, *, job: JobSpec) -> Block:
    writers: dict[OptimizerName, Callable[[OptimizerSpec, bool, bool], Block]] = {
        OptimizerName.ADAMW: _adamw,
        OptimizerName.SGD: _sgd,
        OptimizerName.LION: _lion,
        OptimizerName.MUON: _muon,
    }
    optimizer = job.training.optimizer
    if optimizer.name not in writers:
        raise NotExpressible(
            f"optimizer {optimizer.name.value} cannot be written into a DeepSpeed config",
            why="DeepSpeed's JSON names only its own optimizers and those of torch.optim; 8-bit Adam is in neither",
            fix="use optimizer adamw, sgd, lion or muon",
        )
    on_cuda = job.cluster.gpu.device is DeviceKind.CUDA
    return writers[optimizer.name](optimizer, on_cuda, candidate.offload_optimizer is not OffloadDevice.NONE)


def _adamw(optimizer: OptimizerSpec, on_cuda: bool, offloaded: bool) -> Block:
    params: Block = {
        "lr": optimizer.learning_rate,
        "betas": list(optimizer.betas),
        "eps": optimizer.epsilon,
        "weight_decay": optimizer.weight_decay,
        "torch_adam": not offloaded,
        "adam_w_mode": True,
    }
    if on_cuda and not offloaded:
        params["fused"] = True
    return {"type": "AdamW", "params": params}


def _sgd(optimizer: OptimizerSpec, on_cuda: bool, offloaded: bool) -> Block:
    params = {"lr": optimizer.learning_rate, "momentum": optimizer.momentum, "weight_decay": optimizer.weight_decay}
    return {"type": "SGD", "params": params}


def _lion(optimizer: OptimizerSpec, on_cuda: bool, offloaded: bool) -> Block:
    params = {
        "lr": optimizer.learning_rate,
        "betas": list(optimizer.betas),
        "weight_decay": optimizer.weight_decay,
    }
    return {"type": "Lion", "params": params}


def _muon(optimizer: OptimizerSpec, on_cuda: bool, offloaded: bool) -> Block:
    params = {
        "lr": optimizer.learning_rate,
        "momentum": optimizer.momentum,
        "betas": list(optimizer.betas),
        "eps": optimizer.epsilon,
        "weight_decay": optimizer.weight_decay,
    }
    return {"type": "Muon", "params": params}
