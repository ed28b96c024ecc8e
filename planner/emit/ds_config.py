"""A candidate as DeepSpeed's JSON configuration: plain resolved values, nothing left to a default that drifts.

Owns every DeepSpeed key name that the product writes. What keys mean and which combinations are refused belongs to
`planner.rules`; why each key has its value is told by `planner.emit.explain`; the optimizer's block is in
`planner.emit.optimizer`; what JSON cannot carry (layout, checkpointing, attention) goes into `task.json`.
"""

from __future__ import annotations

import json

from planner.emit.optimizer import needs_untested_switch, optimizer_block
from planner.emit.script_config import QUIET_STEPS_PER_PRINT, DsConfig, over_own_config, without_optimizer
from planner.errors import NotExpressible
from planner.rules.known_keys import known_keys
from planner.spec import Candidate, JobSpec, OffloadDevice, OptimizerName, Overlap, Precision, ScriptKind, Tuning

DEFAULT_BUCKET_ELEMENTS = 500_000_000  # reduce_bucket_size, allgather_bucket_size: DeepSpeed 0.19.8, zero/config.py
SMALLEST_BUCKET_ELEMENTS = 1_000_000  # below this a message is all latency, and the buffer is 4 MB at most

# First loss scale 2^12 instead of DeepSpeed's 2^16. A step whose gradients overflow is skipped, and a trial of a few
# steps that skips them measures no optimizer at all. The scale doubles after every `loss_scale_window` clean steps.
INITIAL_SCALE_POWER = 12


def render_ds_config(candidate: Candidate, *, job: JobSpec, deepspeed_version: str) -> DsConfig:
    """The DeepSpeed configuration that runs `candidate` of `job`, as JSON-ready values in a stable key order.

    The batch triple is consistent for the data-parallel world that the reference trainer's topology gives DeepSpeed:
    train_batch_size = micro x accumulation x data_parallel_size. Raises NotExpressible when JSON, or that version of
    DeepSpeed, cannot say it. A script of the user's own gets what its loop expects: see `script_config`.
    """
    if job.launch.base_config_json:
        settings = _zero(candidate, job=job) if _is_tuned(candidate) else {"stage": candidate.zero_stage}
        return over_own_config(json.loads(job.launch.base_config_json), candidate, zero=settings)
    config = _whole_config(candidate, job=job)
    if job.launch.script_kind is not ScriptKind.DEEPSPEED:
        config = without_optimizer(config, kind=job.launch.script_kind)
    _require_known(config, version=deepspeed_version)
    return config


def _is_tuned(candidate: Candidate) -> bool:
    """Whether the plan sets more of ZeRO than its stage: offload, or settings beside the layout."""
    offloads = {candidate.offload_optimizer, candidate.offload_param} != {OffloadDevice.NONE}
    return offloads or candidate.tuning != Tuning()


def _whole_config(candidate: Candidate, *, job: JobSpec) -> DsConfig:
    config: DsConfig = {
        "train_batch_size": candidate.batch.global_batch_size,
        "train_micro_batch_size_per_gpu": candidate.batch.micro_batch_size,
        "gradient_accumulation_steps": candidate.batch.gradient_accumulation_steps,
        "gradient_clipping": float(job.training.gradient_clipping),
        "optimizer": optimizer_block(candidate, job=job),
        **_precision(candidate),
        "zero_optimization": _zero(candidate, job=job),
    }
    if needs_untested_switch(candidate, job=job):
        config["zero_allow_untested_optimizer"] = True
    if candidate.layout.pipeline_parallel_size > 1:
        config["pipeline"] = {"activation_checkpoint_interval": 0, "pipe_partitioned": True, "grad_partitioned": True}
    config["steps_per_print"] = QUIET_STEPS_PER_PRINT
    config["wall_clock_breakdown"] = False
    return config


def render_ds_config_text(candidate: Candidate, *, job: JobSpec, deepspeed_version: str) -> str:
    """The text of `ds_config.json`: the same bytes for the same candidate, job and version."""
    config = render_ds_config(candidate, job=job, deepspeed_version=deepspeed_version)
    return json.dumps(config, indent=2, allow_nan=False) + "\n"


def bucket_elements(candidate: Candidate, *, job: JobSpec) -> int:
    """Elements of ZeRO's reduce and all-gather buckets: DeepSpeed's 5e8, but no more than one rank's parameters.

    The reduce buffer is allocated whole in the gradients' type, so 5e8 would cost a model of 100 M parameters a
    gigabyte of which it uses a fifth. Even, because DeepSpeed refuses an odd all-gather bucket. Uneven stages may hold
    a few more parameters than the mean taken here; their bucket is then flushed once more, which is harmless.
    """
    ranks = candidate.layout.tensor_parallel_size * candidate.layout.pipeline_parallel_size
    own = -(-job.model.num_parameters // ranks)
    return min(DEFAULT_BUCKET_ELEMENTS, max(SMALLEST_BUCKET_ELEMENTS, own + own % 2))


def _require_known(config: DsConfig, *, version: str) -> None:
    """Refuse a version of DeepSpeed that does not know a key: at the top level it would ignore it without a word."""
    blocks = known_keys(version)

    def visit(block: DsConfig, path: str) -> None:
        table = blocks[path]
        for key, value in block.items():
            here = f"{path}.{key}" if path else key
            if not table.open and key not in table.keys:
                raise NotExpressible(
                    f"DeepSpeed {version} does not know {here}",
                    why="the plan needs this key, and this version would ignore or refuse it",
                    fix="install a DeepSpeed that this planner was made for: 0.19.6 or newer, below 0.20",
                )
            if isinstance(value, dict) and here in blocks:
                visit(value, here)

    visit(config, "")


def _precision(candidate: Candidate) -> DsConfig:
    """The precision block, and the gradients' type said out loud.

    Gradients accumulate in the type of the weights unless the plan says otherwise. fp32 accumulation for bf16 is
    refused without ZeRO ("unsupported mix"), and with stage 1 it silently selects another optimizer class
    (`BF16_Optimizer`) that keeps unsharded fp32 gradients, 4 bytes a parameter on every rank. (Run: DeepSpeed 0.19.8,
    stages 0-3 x fp32, fp16, bf16, with and without pipeline.)
    """
    precision = candidate.precision
    if precision is Precision.FP8:
        raise NotExpressible(
            "precision fp8 cannot be written into a DeepSpeed config",
            why="DeepSpeed has no fp8 training switch in its JSON",
            fix="use precision bf16 or fp16",
        )
    accumulated = candidate.tuning.grad_accum_dtype.precision or precision
    accumulation = {"data_types": {"grad_accum_dtype": accumulated.value}}
    if precision is Precision.FP16:
        block: DsConfig = {
            "enabled": True,
            "auto_cast": False,
            "loss_scale": 0,
            "initial_scale_power": INITIAL_SCALE_POWER,
            "loss_scale_window": 1000,
            "hysteresis": 2,
            "consecutive_hysteresis": False,
            "min_loss_scale": 1,
        }
        return {"fp16": block, **accumulation}
    if precision is Precision.BF16:
        return {"bf16": {"enabled": True, "check_grad_overflow": True, "immediate_grad_update": False}, **accumulation}
    return accumulation


def _zero(candidate: Candidate, *, job: JobSpec) -> DsConfig:
    block: DsConfig = {"stage": candidate.zero_stage}
    if candidate.zero_stage > 0:
        block |= _sharding(candidate, job=job)
    if candidate.zero_stage == 3:
        block |= _stage3(candidate.tuning, bucket=bucket_elements(candidate, job=job))
    return block | _offload(candidate)


def _sharding(candidate: Candidate, *, job: JobSpec) -> DsConfig:
    bucket = bucket_elements(candidate, job=job)
    # Keep: with reduce-scatter on, DeepSpeed refuses Muon at stage 3, whose shards no longer are whole matrices.
    whole_matrices = candidate.zero_stage == 3 and job.training.optimizer.name is OptimizerName.MUON
    return {
        "contiguous_gradients": True,
        # Stage 3 lives from overlap. Below it the gain is some 5 % (DeepSpeed pull request 4887), and data races
        # between bucket copies and reduction were reported as late as 2026 (issues 5545, 8061).
        "overlap_comm": _overlaps(candidate),
        "reduce_scatter": not whole_matrices,
        "reduce_bucket_size": candidate.tuning.reduce_bucket_size or bucket,
        "allgather_partitions": True,
        "allgather_bucket_size": candidate.tuning.allgather_bucket_size or bucket,
        "round_robin_gradients": False,
    }


def _overlaps(candidate: Candidate) -> bool:
    asked = candidate.tuning.overlap_comm
    return candidate.zero_stage == 3 if asked is Overlap.BY_STAGE else asked is Overlap.ON


def _stage3(tuning: Tuning, *, bucket: int) -> DsConfig:
    block: DsConfig = {
        "sub_group_size": 1_000_000_000,
        "stage3_prefetch_bucket_size": tuning.stage3_prefetch_bucket_size or min(50_000_000, bucket),
        "stage3_param_persistence_threshold": tuning.stage3_param_persistence_threshold or 100_000,
        "stage3_max_live_parameters": tuning.stage3_max_live_parameters or 1_000_000_000,
        "stage3_max_reuse_distance": 1_000_000_000,
        "stage3_gather_16bit_weights_on_model_save": False,
    }
    if tuning.zero_hpz_partition_size > 1:
        block["zero_hpz_partition_size"] = tuning.zero_hpz_partition_size
    return block


def _offload(candidate: Candidate) -> DsConfig:
    block: DsConfig = {}
    for key, device, first_stage in (
        ("offload_optimizer", candidate.offload_optimizer, 1),
        ("offload_param", candidate.offload_param, 3),
    ):
        if device is OffloadDevice.NONE:
            continue
        if candidate.zero_stage < first_stage:
            raise NotExpressible(
                f"{key} to {device} at ZeRO stage {candidate.zero_stage} would have no effect",
                why=f"DeepSpeed takes the key and ignores it below stage {first_stage}",
                fix=f"use ZeRO stage {first_stage} or above with {key}, or no offload",
            )
        if device is OffloadDevice.NVME:
            raise NotExpressible(
                f"{key} to nvme needs the path of a drive, which the plan does not hold",
                why="DeepSpeed parses the key without a path and fails later",
                fix="use offload to cpu",
            )
        block[key] = {"device": device.value, "pin_memory": True}
    return block
