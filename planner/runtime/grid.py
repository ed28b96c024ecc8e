"""Where this rank stands: its data-parallel, tensor-parallel and pipeline coordinates, and the groups it talks to.

Tensor-parallel ranks are neighbours (the fastest links), then data-parallel ranks, then stages, as DeepSpeed's
`PipeModelDataParallelTopology` orders them. DeepSpeed's own grid object serves as its `mpu` at every layout, so both
sides use the same process groups.
"""

from __future__ import annotations

from typing import Any

from deepspeed.runtime.pipe.topology import PipelineParallelGrid, PipeModelDataParallelTopology
from torch import distributed

from planner.errors import InputError
from planner.spec import ParallelLayout
from planner.spec._record import record


@record
class TensorGroup:
    """The ranks that split each layer's matrices among them."""

    process_group: Any  # None for a group of one
    rank: int = 0
    size: int = 1


ALONE = TensorGroup(process_group=None)


@record
class Coordinates:
    """One rank's place in the layout."""

    data_rank: int
    tensor_rank: int
    stage: int


def coordinates_of(rank: int, layout: ParallelLayout) -> Coordinates:
    """The place of a global rank, by the order given above."""
    rest, tensor_rank = divmod(rank, layout.tensor_parallel_size)
    stage, data_rank = divmod(rest, layout.data_parallel_size)
    return Coordinates(data_rank=data_rank, tensor_rank=tensor_rank, stage=stage)


def require_world(layout: ParallelLayout) -> None:
    """Raise InputError unless as many processes run as the layout has ranks."""
    world_size = distributed.get_world_size()
    if world_size != layout.world_size:
        raise InputError(
            f"the layout has {layout.world_size} ranks, but {world_size} processes were started",
            why="tensor x pipeline x data-parallel size is the number of processes",
            fix=f"start {layout.world_size} processes, or plan again for {world_size} GPUs",
        )


def topology_of(layout: ParallelLayout) -> PipeModelDataParallelTopology:
    """DeepSpeed's description of the layout."""
    return PipeModelDataParallelTopology(
        num_pp=layout.pipeline_parallel_size,
        num_mp=layout.tensor_parallel_size,
        num_dp=layout.data_parallel_size,
    )


def make_grid(layout: ParallelLayout) -> PipelineParallelGrid | None:
    """The `mpu` of a layout without pipeline stages; None for plain data parallelism, where DeepSpeed needs none.

    With stages, `PipelineModule` makes its own.
    """
    if layout.tensor_parallel_size == 1:
        return None
    return PipelineParallelGrid(topology=topology_of(layout))


def tensor_group_of(grid: PipelineParallelGrid | None) -> TensorGroup:
    """The tensor-parallel group of this rank in a grid."""
    if grid is None or grid.get_tensor_model_parallel_world_size() == 1:
        return ALONE
    return TensorGroup(
        process_group=grid.get_slice_parallel_group(),
        rank=grid.get_tensor_model_parallel_rank(),
        size=grid.get_tensor_model_parallel_world_size(),
    )
