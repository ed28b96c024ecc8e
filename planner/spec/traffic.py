"""What one rank sent in one optimizer step, counted: what an emulated trial leaves beside its times."""

from __future__ import annotations

from enum import StrEnum

from planner.spec._record import record, require
from planner.spec.kinds import Phase


class CollectiveKind(StrEnum):
    """How ranks exchange data. A rank that sends to, or receives from, one other rank is a group of two."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    GATHER = "gather"
    SCATTER = "scatter"
    ALL_TO_ALL = "all_to_all"
    SEND = "send"
    RECEIVE = "receive"
    BARRIER = "barrier"


@record
class CollectiveCount:
    """Equal collectives of one optimizer step, counted.

    `num_bytes` of one: what is gathered, scattered or reduced in whole (all_gather: the output, reduce_scatter: the
    input), what this rank sends to all others (all_to_all), the message (others). `group` indexes
    `EmulationReport.groups`. `overlap_s`: computing of this rank between the start of one and whatever waits for it,
    on average; 0 where the rank does nothing meanwhile.
    """

    kind: CollectiveKind
    dtype: str  # of the elements, as torch spells it: "bfloat16"
    num_bytes: int
    group: int
    phase: Phase
    count: int  # in each micro-batch, or in the step beside those
    each_micro_batch: bool
    overlap_s: float = 0.0

    def __post_init__(self) -> None:
        require(self.count >= 1 and self.num_bytes >= 0, "what is counted happened")


@record
class EmulationReport:
    """One process that stood in for a rank of a larger world, in its median timed step.

    A step of m micro-batches costs this rank m x micro_batch_s + step_end_s without communication; what emulating
    itself cost (`own_s` of the step that ran) is taken off both.
    """

    rank: int
    world_size: int
    micro_batches: int  # of the step that ran
    micro_batch_s: float
    step_end_s: float  # reducing gradients where that happens once, and the optimizer
    own_s: float
    groups: tuple[tuple[int, ...], ...]  # global ranks
    collectives: tuple[CollectiveCount, ...]
