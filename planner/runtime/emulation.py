"""Lets this one process be any rank of any world: DeepSpeed's own engine runs, its peers are made up.

Owns starting the made-up world and ending it. Leaves what collectives leave to `emulation_values`, what is written
down to `emulation_record`, what a pipeline stage is told of shapes to `emulation_pipeline`.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import deepspeed
import torch
from deepspeed import comm
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.zero import utils as zero_utils
from torch.distributed import Backend, HashStore

from planner.runtime.distributed import claim_device
from planner.runtime.emulation_group import RecordedGroup
from planner.runtime.emulation_pipeline import StageMessages
from planner.runtime.emulation_record import Recorder
from planner.runtime.emulation_values import EmulatedPeers, Invention
from planner.spec import TrialTask

BACKEND = "planner_emulated"
_ANY_TIMEOUT = timedelta(minutes=30)  # nothing waits


def start_emulated(task: TrialTask, *, rank: int, recorder: Recorder) -> None:
    """Make this process rank `rank` of the task's world, alone; `build_session` comes next.

    Raises InputError when the job's device is not the accelerator DeepSpeed found here.
    """
    world_size = task.candidate.layout.world_size
    invention = Invention(
        fill_integers=StageMessages(task, rank=rank).fill, keeps_gathered=task.candidate.zero_stage < 3
    )
    claim_device(task.device, rank=rank, world_size=world_size, local_rank=0)
    os.environ["TORCH_DIST_INIT_BARRIER"] = "0"  # Keep: nobody else would come to the barrier

    def create(options: Any, _backend_options: Any) -> RecordedGroup:
        ranks = options.global_ranks_in_group or range(world_size)
        peers = EmulatedPeers(rank=options.group_rank, size=options.group_size, invention=invention)
        return RecordedGroup(rank=options.group_rank, ranks=ranks, peers=peers, recorder=recorder)

    Backend.register_backend(BACKEND, create, extended_api=True, devices=["cpu", "cuda"])
    torch.distributed.init_process_group(
        BACKEND, rank=rank, world_size=world_size, store=HashStore(), timeout=_ANY_TIMEOUT
    )
    deepspeed.init_distributed(auto_mpi_discovery=False, verbose=False)
    _agree_with_rank_0()


def _agree_with_rank_0() -> None:
    """ZeRO-3 compares its list of parameters with what rank 0 sends (DeepSpeed 0.19.8, zero/utils.py). Nobody sends:
    the same broadcasts are made, and this rank's own list is taken for what came."""

    def broadcast_length(lst: list[int]) -> None:
        _broadcast([len(lst)])

    def broadcast_list(lst: list[int]) -> list[int]:
        _broadcast(lst)
        return lst

    zero_utils.assert_lst_len_same_as_other_ranks = broadcast_length
    zero_utils.get_lst_from_rank0 = broadcast_list


def _broadcast(numbers: list[int]) -> None:
    comm.broadcast(torch.tensor(numbers, device=get_accelerator().current_device_name()), src=0)
