"""Joins this process to its peers, on GPUs over NCCL or on CPU over gloo.

Owns the order in which device, accelerator and process group come to life. Leaves groups of ranks to `grid`.
"""

from __future__ import annotations

import os
from datetime import timedelta

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator

from planner.errors import InputError
from planner.spec import DeviceKind

JOIN_TIMEOUT_S = 1800  # peers of a large job may still be compiling or reading weights


def start_distributed(
    *, device: DeviceKind, rank: int, world_size: int, local_rank: int, init_method: str | None
) -> None:
    """Make this process rank `rank` of `world_size`; without an `init_method` the launcher's environment names the
    meeting place (MASTER_ADDR, MASTER_PORT).

    Raises InputError when the job's device is not the accelerator DeepSpeed found here.
    """
    claim_device(device, rank=rank, world_size=world_size, local_rank=local_rank)
    deepspeed.init_distributed(
        dist_backend="nccl" if device is DeviceKind.CUDA else "gloo",
        auto_mpi_discovery=False,
        verbose=False,
        timeout=timedelta(seconds=JOIN_TIMEOUT_S),
        init_method=init_method,
        rank=rank,
        world_size=world_size,
    )


def claim_device(device: DeviceKind, *, rank: int, world_size: int, local_rank: int) -> None:
    """Take the device for this process and tell DeepSpeed which rank it is, before any group is joined.

    Raises InputError when the job's device is not the accelerator DeepSpeed found here.
    """
    found = get_accelerator().device_name()
    if found != str(device):
        raise InputError(
            f"the job runs on {device}, but DeepSpeed found {found} on this machine",
            why="DeepSpeed picks its accelerator once, when it is imported",
            fix=f"start the process with DS_ACCELERATOR={device}, or plan for this machine's device",
        )
    # DeepSpeed reads these itself, whoever started the process (`PipelineModule` insists on LOCAL_RANK).
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(local_rank))
    if device is DeviceKind.CUDA:
        torch.cuda.set_device(local_rank)  # Keep: before anything allocates, or every rank opens a context on GPU 0
    else:
        # Keep: DeepSpeed's shared-memory all-reduce ignores its group (crashes below the world size), and compiling it
        # costs a minute.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def stop_distributed() -> None:
    """Leave the group; safe to call when none was joined."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
