"""What the cost model says of the run as configured and of each change: bytes freed, time lost. Pure, over columns.

Owns turning a setting into a `ModelView` and changes of axes into prices. Which changes make sense for a cause is
`suggest`'s; the formulas are `cost`'s. A log that shows more live memory than was computed scales the computed memory
up (never down: a failure gives a lower bound of the need).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.cost import Calibration, EstimateColumns, RuntimeProfile, estimate_columns
from planner.diagnose.config_reading import MemoryConfig
from planner.diagnose.records import KnownTensor, MemoryEvent, ModelView, RunPhase
from planner.spec import ClusterSpec, ModelSpec, TrainingSpec
from planner.spec._record import record
from planner.spec.columns import PRECISIONS, CandidateColumns

MAX_SCALE = 1.5  # beyond it the setting is not that of the log, and scaling would only hide it
_NOT_TRAINING = (
    RunPhase.BUILD_MODEL,
    RunPhase.BUILD_ENGINE,
    RunPhase.START,
    RunPhase.CHECKPOINT_LOAD,
    RunPhase.CHECKPOINT_SAVE,
)


@record
class PricedSetting:
    """A run that can be priced: one row of columns. `config`: the DeepSpeed file, None when none was given."""

    model: ModelSpec
    training: TrainingSpec
    cluster: ClusterSpec
    profile: RuntimeProfile
    columns: CandidateColumns
    config: MemoryConfig | None = None
    assumptions: tuple[str, ...] = ()
    headroom_fraction: float = 0.05  # of the usable memory: what stays free where a change is said to fit
    has_chunked_loss: bool = False  # the reference trainer runs, whose loss may be chunked by a setting

    def axis(self, name: str) -> int:
        """The value of one column."""
        return int(getattr(self.columns, name)[0])


@record
class Variant:
    """A setting with some axes changed. `bucket_elements`: ZeRO's communication buckets, `live_elements`: parameters
    that stage 3 may hold gathered; 0: as they are."""

    axes: tuple[tuple[str, int], ...]
    bucket_elements: int = 0
    live_elements: int = 0


@record
class Price:
    """Of one variant against the setting as it is. `frees_high_bytes`: of the most that it may need, so that base -
    freed = `high_bytes`; `frees_bytes`: of what is allocated. `fits`: with the headroom left free; `may_fit`: without.
    """

    variant: Variant
    frees_bytes: int
    frees_high_bytes: int
    slows_fraction: float
    fits: bool
    fits_device: bool
    may_fit: bool
    high_bytes: int
    host_bytes: int
    step_time_s: float


def price_variants(setting: PricedSetting, variants: tuple[Variant, ...], *, scale: float = 1.0) -> tuple[Price, ...]:
    """Prices, in order. `frees_bytes`: of allocated memory on the worst rank, negative where the change costs
    memory."""
    by_buffers: dict[tuple[int, int], list[int]] = {}
    for place, variant in enumerate(variants):
        by_buffers.setdefault((variant.bucket_elements, variant.live_elements), []).append(place)
    base = _estimate(setting, setting.columns, scale=scale)
    prices: dict[int, Price] = {}
    for (bucket, live), places in by_buffers.items():
        changed = _with_buffers(setting, bucket=bucket, live=live)
        columns = _rows(setting.columns, [variants[place] for place in places])
        estimates = _estimate(changed, columns, scale=scale)
        for row, place in enumerate(places):
            prices[place] = _price(
                variants[place], base=base, estimates=estimates, row=row, headroom_fraction=setting.headroom_fraction
            )
    return tuple(prices[place] for place in range(len(variants)))


def _price(
    variant: Variant, *, base: EstimateColumns, estimates: EstimateColumns, row: int, headroom_fraction: float
) -> Price:
    leaves_room = bool(estimates.high_bytes[row] <= estimates.usable_bytes * (1.0 - headroom_fraction))
    return Price(
        variant=variant,
        frees_bytes=int(base.allocated_bytes[0] - estimates.allocated_bytes[row]),
        frees_high_bytes=int(base.high_bytes[0] - estimates.high_bytes[row]),
        slows_fraction=float(estimates.step_time_s[row] / base.step_time_s[0] - 1.0),
        fits=bool(estimates.fits[row]) and leaves_room,
        fits_device=leaves_room,
        may_fit=bool(estimates.fits[row]),
        high_bytes=int(estimates.high_bytes[row]),
        host_bytes=int(estimates.host_bytes[row]),
        step_time_s=float(estimates.step_time_s[row]),
    )


def _estimate(setting: PricedSetting, columns: CandidateColumns, *, scale: float) -> EstimateColumns:
    calibration = Calibration(memory_scale=scale, num_points=1) if scale != 1.0 else Calibration()
    return estimate_columns(
        columns,
        model=setting.model,
        training=setting.training,
        cluster=setting.cluster,
        profile=setting.profile,
        calibration=calibration,
    )


def _with_buffers(setting: PricedSetting, *, bucket: int, live: int) -> PricedSetting:
    """The setting with other buffer sizes; 0: as they are."""
    profile = setting.profile
    profile = replace(profile, bucket_elements=float(bucket)) if bucket else profile
    profile = replace(profile, live_elements_limit=float(live)) if live else profile
    return replace(setting, profile=profile)


def _rows(columns: CandidateColumns, variants: list[Variant]) -> CandidateColumns:
    """The setting's row repeated, each with its variant's axes."""
    count = len(variants)
    arrays = {name: np.repeat(getattr(columns, name), count) for name in CandidateColumns.__dataclass_fields__}
    for row, variant in enumerate(variants):
        for name, value in variant.axes:
            arrays[name][row] = value
    return CandidateColumns(**arrays)


def view_of(setting: PricedSetting) -> ModelView:
    """What the rules may know of the model, from the setting as it is."""
    micro, accumulation = setting.axis("micro_batch_size"), setting.axis("gradient_accumulation_steps")
    smallest = Variant(axes=(("micro_batch_size", 1), ("gradient_accumulation_steps", accumulation * micro)))
    base = _estimate(setting, setting.columns, scale=1.0)
    (single,) = price_variants(setting, (smallest,))
    memory = base.record_at(0).memory
    states = memory.breakdown.parameters_bytes + memory.breakdown.gradients_bytes + memory.breakdown.optimizer_bytes
    return ModelView(
        usable_bytes=memory.usable_bytes,
        nominal_bytes=setting.cluster.gpu.memory_nominal_bytes,
        allocated_bytes=memory.allocated_bytes,
        high_bytes=memory.high_bytes,
        states_bytes=states + memory.breakdown.buffers_bytes,
        activations_bytes=memory.breakdown.activations_bytes,
        one_sequence_high_bytes=single.high_bytes,
        host_bytes=memory.host_bytes,
        host_usable_bytes=memory.host_usable_bytes,
        micro_batch_size=micro,
        world_size=setting.cluster.world_size,
        num_parameters=setting.model.num_parameters,
        tensors=known_tensors(setting),
        assumptions=setting.assumptions,
    )


def scaled_high_bytes(setting: PricedSetting, *, scale: float) -> int:
    """What the run may need at most as it is: what the changes are priced against."""
    return int(_estimate(setting, setting.columns, scale=scale).high_bytes[0])


def memory_scale(setting: PricedSetting, event: MemoryEvent | None) -> float:
    """How much more live memory the log shows than is computed: (A + r) / computed, within 1 and `MAX_SCALE`."""
    if event is None or event.phase in _NOT_TRAINING:
        return 1.0
    live, request = event.figures.allocated, event.figures.requested
    if live is None or request is None:
        return 1.0
    computed = int(_estimate(setting, setting.columns, scale=1.0).allocated_bytes[0])
    return min(max((live + request) / computed, 1.0), MAX_SCALE) if computed > 0 else 1.0


def known_tensors(setting: PricedSetting) -> tuple[KnownTensor, ...]:
    """Single tensors that a run of this setting makes, by size (bytes).

    b micro-batch, s sequence, V vocabulary, H heads, L layers, E experts, K experts a token, e bytes of an element,
    t tensor-parallel ranks, T trained parameters, n ranks that ZeRO shards over: logits b s V e and in fp32; scores
    b H/t s^2 e and in fp32; the router's one-hot mask L b s K E 8; flat fp32 copies 4 T / n.
    """
    model = setting.model
    micro, seq = setting.axis("micro_batch_size"), setting.training.seq_len
    element = PRECISIONS[setting.axis("precision")].bytes_per_element
    tensor, shards = setting.axis("tensor_parallel_size"), setting.axis("data_parallel_size")
    tokens = micro * seq // max(setting.axis("sequence_parallel_size"), 1)
    batch = "the micro-batch and the sequence"
    found = []
    if model.vocab_size:
        for width, kind in ((element, "the logits"), (4, "the logits in fp32")):
            found.append(
                KnownTensor(
                    name=kind, size_bytes=tokens * model.vocab_size * width, grows=f"{batch} (and the vocabulary)"
                )
            )
            shifted = micro * max(seq - 1, 0) * model.vocab_size * width
            found.append(
                KnownTensor(name=f"{kind}, shifted", size_bytes=shifted, grows=f"{batch} (and the vocabulary)")
            )
    if model.num_heads:
        for width in (element, 4):
            size = micro * model.num_heads // tensor * seq * seq * width
            grows = "the square of the sequence length"
            found.append(
                KnownTensor(name="one layer's attention scores", size_bytes=size, grows=grows, is_quadratic=True)
            )
    if model.num_experts and model.num_experts_per_token:
        rows = model.num_moe_layers * tokens * model.num_experts_per_token * model.num_experts * 8
        found.append(
            KnownTensor(
                name="the router's one-hot mask over all layers", size_bytes=rows, grows=f"{batch}, layers and experts"
            )
        )
    if model.ffn_hidden_size:
        size = tokens * model.ffn_hidden_size // tensor * element
        found.append(KnownTensor(name="one MLP activation", size_bytes=size, grows=batch))
    flat = -(-model.num_parameters // max(shards, 1))
    found.append(
        KnownTensor(
            name="the flat fp32 copy of this rank's states",
            size_bytes=4 * flat,
            grows="the parameters over the data-parallel ranks",
        )
    )
    found.append(
        KnownTensor(name="the whole model in 16 bit", size_bytes=2 * model.num_parameters, grows="the parameters")
    )
    return tuple(tensor for tensor in found if tensor.size_bytes > 0)
