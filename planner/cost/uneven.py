"""Pipelines over several kinds of nodes: stages stand on groups, and slower groups hold fewer layers.

Owns the partition that balances time within each group's memory, and the price of a given partition, stage by stage.
Prices of one stage are those of `steptime` and `peak`. A group holds whole stages: ranks of one stage are alike.
"""

from __future__ import annotations

import heapq

import numpy as np

from planner.cost.axes import Axes, axes_of
from planner.cost.calibration import Calibration
from planner.cost.estimate import inputs_of
from planner.cost.inputs import Inputs
from planner.cost.links import send_s
from planner.cost.memory import Memory, memory_around
from planner.cost.parameters import StageShape
from planner.cost.peak import KINDS, stage_peak
from planner.cost.profile import RuntimeProfile
from planner.cost.steptime import StageTime, data_parallel_s, stage_time, step_time, update_s
from planner.spec._record import record
from planner.spec.candidate import Candidate
from planner.spec.columns import BoolColumn, CandidateColumns, FloatColumn, IntColumn, columns_of
from planner.spec.estimate import Estimate, MemoryBreakdown, MemoryEstimate, TimeBreakdown
from planner.spec.hardware import ClusterSpec
from planner.spec.job import TrainingSpec
from planner.spec.kinds import Precision, Provenance
from planner.spec.model import ModelSpec

_BISECTIONS = 40  # of the slowest stage's time: to a millionth of a millionth
_UNCALIBRATED = Calibration()


@record
class Setting:
    """What pipelines are priced on. `cluster.groups` stand in the order of the ranks; the cluster's own link between
    nodes is the one between groups. `headroom_fraction` of each group's usable memory is kept free."""

    model: ModelSpec
    training: TrainingSpec
    cluster: ClusterSpec
    profile: RuntimeProfile
    headroom_fraction: float

    def inputs(self, group: ClusterSpec) -> Inputs:
        return inputs_of(
            model=self.model,
            training=self.training,
            cluster=group,
            profile=self.profile,
            calibration=_UNCALIBRATED,
        )

    def axes(self, columns: CandidateColumns, group: ClusterSpec) -> Axes:
        return axes_of(columns, model=self.model, training=self.training, cluster=group)


@record
class Balance:
    """Of each candidate: the time of its slowest stage with the best partition (inf where no partition fits), and what
    `partition` needs."""

    slowest_s: FloatColumn
    stages: tuple[_Stages, ...]
    num_layers: int

    def partition(self, row: int) -> tuple[int, ...]:
        """Layers of each stage of one candidate that has a finite time.

        One layer each, then one more wherever the stage stays fastest: the slowest stage is as fast as can be, since
        times only grow with layers.
        """
        kinds = [place for place, kind in enumerate(self.stages) for _ in range(int(kind.count[row]))]
        layers = [1] * len(kinds)

        def after_one_more(stage: int) -> float:
            kind, count = self.stages[kinds[stage]], layers[stage]
            has_room = count < kind.seconds.shape[1] and kind.fits[row, count]
            return float(kind.seconds[row, count]) if has_room else np.inf

        waiting = [(after_one_more(stage), stage) for stage in range(len(kinds))]
        heapq.heapify(waiting)
        for _ in range(self.num_layers - len(kinds)):
            _, stage = heapq.heappop(waiting)
            layers[stage] += 1
            heapq.heappush(waiting, (after_one_more(stage), stage))
        return tuple(layers)


@record
class _Stages:
    """Alike stages in a row: `count` of them in each candidate. `seconds` of a micro-batch and whether it `fits`, by
    candidate and number of layers (from 1)."""

    count: IntColumn
    seconds: FloatColumn
    fits: BoolColumn

    def most_layers(self, limit_s: FloatColumn) -> IntColumn:
        """Layers that one stage of each candidate can hold within the time and its memory."""
        within = self.fits & (self.seconds <= limit_s[:, None])
        return np.asarray(np.minimum.accumulate(within, axis=1).sum(axis=1), dtype=np.int64)


def balance_stages(columns: CandidateColumns, setting: Setting) -> Balance:
    """The best partition of each candidate over the groups. Every candidate has to fill all groups with whole stages.

    The stages of a group between first and last are taken for alike, each with the micro-batches in flight of the
    earliest of them. T is the least time within which the stages hold all layers: sum over stages of the most layers
    within T >= L, found by bisection.
    """
    stages = tuple(_kinds_of_stages(columns, setting))
    num_layers = setting.model.num_layers
    never = np.full(len(columns), np.inf)
    longest = np.max(
        [np.max(np.where(kind.fits & np.isfinite(kind.seconds), kind.seconds, 0.0), axis=1) for kind in stages], axis=0
    )
    possible = _holds_all(stages, never, num_layers=num_layers)
    low, high = np.zeros(len(columns)), longest
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        enough = _holds_all(stages, middle, num_layers=num_layers)
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return Balance(slowest_s=np.where(possible, high, np.inf), stages=stages, num_layers=num_layers)


def _holds_all(stages: tuple[_Stages, ...], limit_s: FloatColumn, *, num_layers: int) -> BoolColumn:
    held = np.zeros(len(limit_s), dtype=np.int64)
    each_has_one = np.ones(len(limit_s), dtype=np.bool_)
    for kind in stages:
        most = kind.most_layers(limit_s)
        held += kind.count * most
        each_has_one &= (most >= 1) | (kind.count == 0)
    return np.asarray(each_has_one & (held >= num_layers))


def _kinds_of_stages(columns: CandidateColumns, setting: Setting) -> list[_Stages]:
    """First stage, the rest of each group, last stage, in the order of the pipeline."""
    ranks = columns.data_parallel_size * columns.tensor_parallel_size
    groups, kinds = setting.cluster.groups, []
    offset = np.zeros(len(columns), dtype=np.int64)
    ones = np.ones(len(columns), dtype=np.int64)
    for place, group in enumerate(groups):
        count = group.world_size // ranks
        is_first, is_last = place == 0, place == len(groups) - 1
        if is_first:
            kinds.append(_table(columns, setting, group=group, index=offset, count=ones))
        between = count - is_first - is_last
        kinds.append(_table(columns, setting, group=group, index=offset + is_first, count=between))
        offset = offset + count
        if is_last:
            kinds.append(_table(columns, setting, group=group, index=offset - 1, count=ones))
    return kinds


def _table(
    columns: CandidateColumns, setting: Setting, *, group: ClusterSpec, index: IntColumn, count: IntColumn
) -> _Stages:
    """Each candidate's stage at `index`, with 1 to all layers."""
    num_layers = setting.model.num_layers
    rows = np.repeat(np.arange(len(columns), dtype=np.int64), num_layers)
    tiled = columns.take(rows)
    axes, inputs = setting.axes(tiled, group), setting.inputs(group)
    layers = np.tile(np.arange(1.0, num_layers + 1), len(columns))
    shape = shape_at(axes, index=index[rows].astype(np.float64), layers=layers)
    seconds = stage_time(shape, axes=axes, inputs=inputs).micro_batch
    memory = memory_around(stage_peak(shape, axes=axes, inputs=inputs), axes=axes, inputs=inputs)
    fits = _fits(memory, group=group, headroom_fraction=setting.headroom_fraction)
    size = (len(columns), num_layers)
    grown = np.maximum.accumulate(seconds.reshape(size), axis=1)
    return _Stages(count=count, seconds=grown, fits=np.minimum.accumulate(fits.reshape(size), axis=1))


def _fits(memory: Memory, *, group: ClusterSpec, headroom_fraction: float) -> BoolColumn:
    limit = group.gpu.memory_usable_bytes * (1.0 - headroom_fraction)
    used = _device_used(memory)
    on_host = memory.host <= group.host_memory_bytes
    return np.asarray((np.maximum(memory.high, used) <= limit) & on_host)


def _device_used(memory: Memory) -> FloatColumn:
    return np.asarray(memory.peak.allocated + memory.slack + memory.communication + memory.context)


def shape_at(axes: Axes, *, index: FloatColumn, layers: FloatColumn) -> StageShape:
    """Stages of a 1F1B pipeline: min(m, p - i) micro-batches in flight (see `parameters.stage_shape`)."""
    return StageShape(
        index=index,
        layers=layers,
        encoder_layers=np.zeros_like(index),
        has_embedding=index == 0,
        has_head=index == axes.pipeline - 1,
        exists=np.ones(len(index), dtype=np.bool_),
        in_flight=np.minimum(axes.accumulation, axes.pipeline - index),
    )


@record
class _GroupPrice:
    """Every stage of one group of one candidate, a row each."""

    group: ClusterSpec
    time: StageTime
    memory: Memory
    data_s: FloatColumn
    update_s: FloatColumn
    offload_s: FloatColumn

    @property
    def filled_fraction(self) -> FloatColumn:
        used = np.maximum(self.memory.high, _device_used(self.memory))
        return np.asarray(used / self.group.gpu.memory_usable_bytes)


def price_partition(candidate: Candidate, setting: Setting) -> Estimate:
    """One candidate with its own `stage_layers`.

    1F1B with unequal stages: m micro-batches on the slowest, and one pass over all others before and after:
    m T_max + (sum of T - T_max). What each stage does once a step (gradients, update) counts where it takes longest.
    """
    columns = columns_of((candidate,), gpus_per_node=setting.cluster.gpus_per_node)
    prices = _price_groups(candidate, columns, setting)
    micro_batch = np.concatenate([price.time.micro_batch for price in prices])
    slowest = int(np.argmax(micro_batch))
    m, pipeline = candidate.batch.gradient_accumulation_steps, len(micro_batch)

    def of_slowest(name: str) -> float:
        return float(np.concatenate([getattr(price.time, name) for price in prices])[slowest])

    def longest(name: str) -> float:
        return float(max(getattr(price, name).max() for price in prices))

    time = TimeBreakdown(
        compute_s=m * of_slowest("compute"),
        recompute_s=m * of_slowest("recompute"),
        tensor_parallel_s=m * of_slowest("tensor"),
        data_parallel_s=longest("data_s"),
        pipeline_s=(m + pipeline - 1) * _longest_send(candidate, prices, setting),
        bubble_s=float(micro_batch.sum() - micro_batch[slowest]),
        optimizer_s=longest("update_s"),
        offload_s=longest("offload_s"),
        host_s=m * of_slowest("host"),
    )
    return _estimate(candidate, columns, setting, prices=prices, time=time)


def _price_groups(candidate: Candidate, columns: CandidateColumns, setting: Setting) -> tuple[_GroupPrice, ...]:
    layout, first, prices = candidate.layout, 0, []
    for group in setting.cluster.groups:
        count = group.world_size // (layout.data_parallel_size * layout.tensor_parallel_size)
        axes = setting.axes(columns.take(np.zeros(count, dtype=np.int64)), group)
        inputs = setting.inputs(group)
        layers = np.array(layout.stage_layers[first : first + count], dtype=np.float64)
        shape = shape_at(axes, index=np.arange(first, first + count, dtype=np.float64), layers=layers)
        time = stage_time(shape, axes=axes, inputs=inputs)
        backward_s = axes.accumulation * (time.compute + time.recompute)
        update, offload = update_s(shape, axes=axes, inputs=inputs)
        prices.append(
            _GroupPrice(
                group=group,
                time=time,
                memory=memory_around(stage_peak(shape, axes=axes, inputs=inputs), axes=axes, inputs=inputs),
                data_s=data_parallel_s(shape, axes=axes, inputs=inputs, backward_s=backward_s),
                update_s=update,
                offload_s=offload,
            )
        )
        first += count
    return tuple(prices)


def _longest_send(candidate: Candidate, prices: tuple[_GroupPrice, ...], setting: Setting) -> float:
    """The slowest of the sends between neighbours: inside the groups, and from one group to the next."""
    layout, hidden = candidate.layout, setting.model.hidden_size
    tokens = candidate.batch.micro_batch_size * setting.training.seq_len
    message = np.array([tokens * hidden * candidate.precision.bytes_per_element / layout.tensor_parallel_size])
    crossing = 2.0 * float(send_s(message, crosses_nodes=np.array([True]), cluster=setting.cluster)[0])
    return max(crossing, *(float(price.time.sends.max()) for price in prices))


def _estimate(
    candidate: Candidate,
    columns: CandidateColumns,
    setting: Setting,
    *,
    prices: tuple[_GroupPrice, ...],
    time: TimeBreakdown,
) -> Estimate:
    total_s = sum(getattr(time, name) for name in TimeBreakdown.__dataclass_fields__)
    worst = max(prices, key=lambda price: float(price.filled_fraction.max()))
    place = int(np.argmax(worst.filled_fraction))
    tokens = candidate.batch.global_batch_size * setting.training.seq_len
    some = setting.cluster.groups[0]
    whole = step_time(setting.axes(columns, some), inputs=setting.inputs(some))  # for its FLOP, alike anywhere
    peak = sum(group.world_size * _peak_flops_per_s(group) for group in setting.cluster.groups)
    fits = all(bool(_fits(price.memory, group=price.group, headroom_fraction=0.0).all()) for price in prices)
    return Estimate(
        memory=_memory_estimate(worst, place),
        time=time,
        step_time_s=total_s,
        tokens_per_s=tokens / total_s,
        tokens_per_s_per_gpu=tokens / total_s / candidate.layout.world_size,
        mfu_fraction=float(whole.model_flops[0]) / (total_s * peak),
        fits=fits,
        kind=Provenance.COMPUTED,
    )


def _peak_flops_per_s(group: ClusterSpec) -> float:
    gpu = group.gpu
    return gpu.peak_flops_per_s(Precision.BF16) or gpu.peak_flops_per_s(Precision.FP16) or gpu.peak_fp32_flops_per_s


def _memory_estimate(price: _GroupPrice, place: int) -> MemoryEstimate:
    """The fullest stage of the fullest group, of what is usable there."""
    memory, group = price.memory, price.group
    tensors = {f"{kind}_bytes": round(float(memory.peak.parts[kind][place])) for kind in KINDS}
    breakdown = MemoryBreakdown(
        **tensors,
        allocator_slack_bytes=round(float(memory.slack[place])),
        communication_bytes=round(float(memory.communication[place])),
        context_bytes=round(float(memory.context[place])),
    )
    allocated = sum(tensors.values())
    reserved = allocated + breakdown.allocator_slack_bytes
    return MemoryEstimate(
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        device_used_bytes=reserved + breakdown.communication_bytes + breakdown.context_bytes,
        usable_bytes=group.gpu.memory_usable_bytes,
        worst_stage=int(memory.peak.stage[place]),
        breakdown=breakdown,
        low_bytes=round(float(memory.low[place])),
        high_bytes=round(float(memory.high[place])),
        host_bytes=round(float(memory.host[place])),
        host_usable_bytes=group.host_memory_bytes,
        disk_bytes=round(float(memory.disk[place])),
    )
