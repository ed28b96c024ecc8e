"""Model states and buffers on one rank, at each moment that can be the peak: what the runtimes have in common.

Owns the records and the optimizers' state sizes. `states_deepspeed` and `states_others` fill them; activations are
`activations`' business and choosing the peak is `memory`'s.
"""

from __future__ import annotations

from planner.cost.axes import Axes
from planner.cost.parameters import RankParameters
from planner.spec._record import record
from planner.spec.columns import FloatColumn
from planner.spec.kinds import OptimizerName

# Optimizer state bytes per trained parameter beside the master weights: fp32 moments (AdamW two, Lion one), two 8-bit
# moments with their block scales. SGD and Muon: see `moment_bytes`.
_MOMENT_BYTES = {OptimizerName.ADAMW: 8.0, OptimizerName.ADAM8BIT: 2.1, OptimizerName.LION: 4.0}


def moment_bytes(name: OptimizerName, *, momentum: float = 0.0, vector_share: float = 0.0) -> float:
    """Bytes of optimizer state per trained parameter, fp32 moments.

    SGD keeps a buffer only with momentum. Muon keeps one for matrices; embeddings, head and norms, the `vector_share`
    of the parameters, are Adam's.
    """
    if name is OptimizerName.SGD:
        return 4.0 if momentum > 0 else 0.0
    if name is OptimizerName.MUON:
        return 4.0 + 4.0 * vector_share
    return _MOMENT_BYTES[name]


@record
class Held:
    """Bytes on the device at one moment, by kind."""

    parameters: FloatColumn
    gradients: FloatColumn
    optimizer: FloatColumn
    buffers: FloatColumn

    @property
    def total(self) -> FloatColumn:
        return self.parameters + self.gradients + self.optimizer + self.buffers


@record
class States:
    """The moments of one optimizer step.

    `loss`: the last micro-batch's loss runs backward, all its activations are alive. `first_gradient`: just after, the
    first gradients have made the reduction's buffers. `backward`: the end of the backward pass, all gradients alive and
    being reduced. `step`: the update.
    """

    loss: Held
    first_gradient: Held
    backward: Held
    step: Held


@record
class Shards:
    """Elements: `local` on the rank, `trained` of them trained, `shard` the part ZeRO gives the rank of those."""

    local: FloatColumn
    trained: FloatColumn
    shard: FloatColumn
    weight_shard: FloatColumn  # of all parameters, frozen ones too


def shards_of(params: RankParameters, *, axes: Axes) -> Shards:
    """Divide dense parameters over data x sequence ranks and routed experts over their own, smaller group."""
    return Shards(
        local=params.dense + params.expert,
        trained=params.trained_dense + params.trained_expert,
        shard=params.trained_dense / axes.shards + params.trained_expert / axes.expert_shards,
        weight_shard=params.dense / axes.shards + params.expert / axes.expert_shards,
    )
