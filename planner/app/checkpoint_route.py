"""How a checkpoint of one plan comes to another: as it is, converted, or not at all, and why. Pure."""

from __future__ import annotations

import shlex

from planner.rundir import names
from planner.spec import Candidate, JobSpec, OptimizerName, Precision
from planner.spec.checkpoint import checkpoint_layout, differences
from planner.spec.replan import CheckpointRoute, CheckpointWay
from planner.spec.tuning import OptimizerKernel

CONVERT_SCRIPT = f"{names.LAUNCH_DIR}/convert-checkpoint.sh"
_MODULE = "planner.runtime.convert_checkpoint"


def checkpoint_route(old: Candidate, new: Candidate, *, job: JobSpec, folder: str) -> CheckpointRoute:
    """The way from the old candidate's checkpoints to the new one's. `folder`: the new plan's, for the command."""
    if job.launch.command:
        return _of_own_program(old, new, folder=folder)
    changed = differences(checkpoint_layout(old), checkpoint_layout(new))
    if not changed:
        return CheckpointRoute(way=CheckpointWay.AS_IS, why="both plans cut a checkpoint into the same files")
    if job.training.optimizer.name is OptimizerName.MUON:
        return CheckpointRoute(
            way=CheckpointWay.CANNOT,
            why=f"the layouts differ ({changed}), and Muon keeps its momentum for whole matrices in DeepSpeed's own "
            "order, which cannot be cut anew",
        )
    if job.training.lora_rank:
        return CheckpointRoute(
            way=CheckpointWay.CANNOT,
            why=f"the layouts differ ({changed}), and frozen weights are not among the optimizer's values",
        )
    if _is_fused_whole(old) or _is_fused_whole(new):
        return CheckpointRoute(
            way=CheckpointWay.CANNOT,
            why=f"the layouts differ ({changed}), and DeepSpeed's 16-bit optimizer around FusedAdam without ZeRO keeps "
            "its values in an order of its own; plan with the optimizer kernel torch to be able to convert",
        )
    where = shlex.quote(job.training.checkpoint_dir) if job.training.checkpoint_dir else "CHECKPOINT_DIR"
    return CheckpointRoute(
        way=CheckpointWay.CONVERT,
        why=f"the layouts differ: {changed}",
        command=f"python -m {_MODULE} {where}",
        script=f"{folder}/{CONVERT_SCRIPT}" if folder else CONVERT_SCRIPT,
    )


def _is_fused_whole(candidate: Candidate) -> bool:
    """DeepSpeed's `FP16_Optimizer` (0.19.8, fp16/fused_optimizer.py), which the converter does not know."""
    fused = candidate.tuning.optimizer_kernel is OptimizerKernel.DEEPSPEED
    return fused and candidate.zero_stage == 0 and candidate.precision is not Precision.FP32


def _of_own_program(old: Candidate, new: Candidate, *, folder: str) -> CheckpointRoute:
    """The user's program saves with DeepSpeed's `save_checkpoint`, as far as the planner can know."""
    split = [
        (one.layout.tensor_parallel_size, one.layout.pipeline_parallel_size, one.layout.stage_layers)
        for one in (old, new)
    ]
    if split[0] != split[1]:
        return CheckpointRoute(
            way=CheckpointWay.CANNOT,
            why="tensor or pipeline parallelism changes, and how your program cuts its parameters for them is not "
            "known here; save whole weights with it, and load those",
        )
    same_files = _shared_files(old) == _shared_files(new)
    same_data = old.layout.data_parallel_size == new.layout.data_parallel_size or old.zero_stage == new.zero_stage == 0
    if same_files and same_data and old.precision is new.precision:
        return CheckpointRoute(
            way=CheckpointWay.AS_IS, why="DeepSpeed's load_checkpoint reads what save_checkpoint wrote"
        )
    if 0 in (old.zero_stage, new.zero_stage):
        return CheckpointRoute(
            way=CheckpointWay.CANNOT,
            why="DeepSpeed's universal checkpoint is made of ZeRO's shards, and one of the plans has none (stage 0); "
            "load the weights alone (load_optimizer_states=False)",
        )
    return CheckpointRoute(
        way=CheckpointWay.UNIVERSAL,
        why="ZeRO's shards change, which DeepSpeed's universal checkpoint bridges; load it with "
        '"checkpoint": {"load_universal": true} in ds_config.json',
        command="python -m deepspeed.checkpoint.ds_to_universal --inject_missing_state "
        "--input_folder CHECKPOINT_DIR/TAG --output_folder CHECKPOINT_DIR/TAG_universal",
        script=f"{folder}/{CONVERT_SCRIPT}" if folder else CONVERT_SCRIPT,
    )


def _shared_files(candidate: Candidate) -> int:
    """ZeRO-1 and 2 save alike."""
    return 1 if candidate.zero_stage == 2 else candidate.zero_stage
