"""Which changes of a run could make it fit, as axes of the cost model and as config keys. Pure.

The grid is small (a few hundred rows) and priced in one call. Of all sets of changed axes the best variant of each is
kept, and of a set only if no part of it fits already.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any, TypeAlias

from planner.diagnose.config_change import batch_change, smaller_micro_batches
from planner.diagnose.pricing import Price, PricedSetting, Variant
from planner.diagnose.words import size
from planner.spec import Attention, OffloadDevice
from planner.spec.columns import ATTENTIONS, FULL_CHECKPOINTING, OFFLOAD_DEVICES
from planner.spec.tuning import CrossEntropy, tuning_code, tuning_from_code

# For scripts other than the reference trainer, whose loss is in their code.
CHUNKED_LOSS = {"loss": "a fused or chunked linear cross-entropy, such as Liger's LigerFusedLinearCrossEntropyLoss"}
Axes: TypeAlias = tuple[tuple[str, int], ...]

_CPU = OFFLOAD_DEVICES.index(OffloadDevice.CPU)
_NONE = OFFLOAD_DEVICES.index(OffloadDevice.NONE)
_EAGER, _FLASH = ATTENTIONS.index(Attention.EAGER), ATTENTIONS.index(Attention.FLASH)
SMALL_LIVE_ELEMENTS = 100_000_000  # stage3_max_live_parameters: a tenth of DeepSpeed's default
SMALL_BUCKET_ELEMENTS = 50_000_000  # 100 MB in 16 bit; messages stay large enough for any link
MAX_MICRO_BATCHES = 12
_FURTHER_CHANGE = 0.10
_WORTH_NAMING = 0.2  # of the best: what frees less and does not make it fit is left out where something does


def device_variants(setting: PricedSetting) -> tuple[Variant, ...]:
    """Every combination of smaller micro-batch, checkpointing, ZeRO stage, offload, kernel and buckets."""
    checkpointed = setting.axis("checkpointed_layers") == FULL_CHECKPOINTING
    layers: list[Axes] = [()] if checkpointed else [(), (("checkpointed_layers", FULL_CHECKPOINTING),)]
    kernels: list[Axes] = [(), (("attention", _FLASH),)] if setting.axis("attention") == _EAGER else [()]
    variants = []
    for states, batch, layer, kernel in product(_state_axes(setting), _batch_axes(setting), layers, kernels):
        axes = (*batch, *layer, *states, *kernel)
        for bucket, live in product(_buckets(setting, axes), _live_limits(setting, axes)):
            if axes or bucket or live:
                variants.append(Variant(axes=axes, bucket_elements=bucket, live_elements=live))
    return tuple(variants)


def host_variants(setting: PricedSetting) -> tuple[Variant, ...]:
    """What takes load off the host: less offloading, and what the device then needs."""
    offloads = [name for name in ("offload_param", "offload_optimizer") if setting.axis(name) != _NONE]
    back: list[Axes] = [((name, _NONE),) for name in offloads]
    if len(offloads) == 2:
        back.append((("offload_param", _NONE), ("offload_optimizer", _NONE)))
    return tuple(Variant(axes=(*batch, *axes)) for axes, batch in product(back, _batch_axes(setting)))


def _batch_axes(setting: PricedSetting) -> list[Axes]:
    """The micro-batch as it is and each smaller one, with as much more accumulation."""
    micro, accumulation = setting.axis("micro_batch_size"), setting.axis("gradient_accumulation_steps")
    axes: list[Axes] = [()]
    for smaller in smaller_micro_batches(micro)[:MAX_MICRO_BATCHES]:
        axes.append((("micro_batch_size", smaller), ("gradient_accumulation_steps", accumulation * (micro // smaller))))
    return axes


def _state_axes(setting: PricedSetting) -> list[Axes]:
    """ZeRO stages from the present one up, with and without offload; pipelines take stages 0 and 1 only, and sharding
    over one rank frees nothing."""
    stage = setting.axis("zero_stage")
    most = 1 if setting.axis("pipeline_parallel_size") > 1 else 3
    alone = setting.axis("data_parallel_size") * setting.axis("sequence_parallel_size") == 1
    stages = [stage] if alone else list(range(stage, most + 1))
    axes: list[Axes] = []
    for chosen in stages:
        sharded: Axes = (("zero_stage", chosen),) if chosen != stage else ()
        axes.append(sharded)
        if setting.axis("offload_optimizer") == _NONE and (chosen >= 1 or alone):
            raised: Axes = sharded if chosen >= 1 else (("zero_stage", 1),)
            axes.append((*raised, ("offload_optimizer", _CPU)))
            if chosen == 3 and setting.axis("offload_param") == _NONE:
                axes.append((*raised, ("offload_optimizer", _CPU), ("offload_param", _CPU)))
        elif chosen == 3 and setting.axis("offload_param") == _NONE:
            axes.append((*sharded, ("offload_param", _CPU)))
    return axes


def _buckets(setting: PricedSetting, axes: Axes) -> tuple[int, ...]:
    """Smaller buckets where there are large ones: at ZeRO 1 to 3."""
    stage = dict(axes).get("zero_stage", setting.axis("zero_stage"))
    large = (
        setting.profile.bucket_elements > 2 * SMALL_BUCKET_ELEMENTS and not setting.profile.buckets_capped_to_parameters
    )
    return (0, SMALL_BUCKET_ELEMENTS) if stage >= 1 and large else (0,)


def _live_limits(setting: PricedSetting, axes: Axes) -> tuple[int, ...]:
    """A lower limit of gathered parameters where there is room for one: at stage 3 with a model above it."""
    stage = dict(axes).get("zero_stage", setting.axis("zero_stage"))
    own = setting.model.num_parameters / setting.axis("tensor_parallel_size")
    can_hold = min(own, setting.profile.live_elements_limit)
    return (0, SMALL_LIVE_ELEMENTS) if stage == 3 and can_hold > 2 * SMALL_LIVE_ELEMENTS else (0,)


def change_of(setting: PricedSetting, variant: Variant) -> dict[str, Any]:
    """The variant as config keys; what DeepSpeed's JSON cannot say stands under `run`."""
    axes = dict(variant.axes)
    change: dict[str, Any] = {}
    if "micro_batch_size" in axes:
        change |= batch_change(
            setting.config,
            micro_batch_size=axes["micro_batch_size"],
            old_micro_batch_size=setting.axis("micro_batch_size"),
            old_accumulation=setting.axis("gradient_accumulation_steps"),
        )
    zero: dict[str, Any] = {}
    if "zero_stage" in axes:
        zero["stage"] = axes["zero_stage"]
    for name in ("offload_optimizer", "offload_param"):
        if name in axes:
            zero[name] = {"device": "cpu", "pin_memory": True} if axes[name] == _CPU else {"device": "none"}
    if variant.bucket_elements:
        zero |= {"reduce_bucket_size": variant.bucket_elements, "allgather_bucket_size": variant.bucket_elements}
    if variant.live_elements:
        zero |= dict.fromkeys(("stage3_max_live_parameters", "stage3_max_reuse_distance"), variant.live_elements)
    if zero:
        change["zero_optimization"] = zero
    run: dict[str, Any] = {}
    if "checkpointed_layers" in axes:
        run["activation_checkpointing"] = "full"
    if "attention" in axes:
        run["attention"] = "flash"
    if "tuning" in axes and setting.has_chunked_loss:
        run["cross_entropy"] = CrossEntropy.CHUNKED.value
    elif "tuning" in axes:
        change["code"] = dict(CHUNKED_LOSS)
    return change | ({"run": run} if run else {})


def chunked_loss_of(setting: PricedSetting) -> Variant | None:
    """The chunked loss; None where the model has no logits, or the loss is chunked already."""
    tuning = tuning_from_code(setting.axis("tuning"))
    if not setting.model.vocab_size or tuning.cross_entropy is CrossEntropy.CHUNKED:
        return None
    return Variant(axes=(("tuning", tuning_code(replace(tuning, cross_entropy=CrossEntropy.CHUNKED))),))


def why_of(setting: PricedSetting, price: Price, *, usable_bytes: int) -> str:
    """What the change does, and what is needed after it."""
    axes = dict(price.variant.axes)
    parts = []
    if "micro_batch_size" in axes:
        parts.append(
            f"micro-batch {setting.axis('micro_batch_size')} to {axes['micro_batch_size']} with as "
            "much more accumulation (same global batch)"
        )
    if "tuning" in axes:
        parts.append("the loss in chunks of tokens, so that the logits never exist whole")
    if "checkpointed_layers" in axes:
        parts.append("activations recomputed in backward")
    if "zero_stage" in axes:
        parts.append(f"ZeRO stage {setting.axis('zero_stage')} to {axes['zero_stage']}")
    for name, words in (("offload_optimizer", "optimizer states"), ("offload_param", "parameters")):
        if name in axes:
            parts.append(f"{words} {'in host memory' if axes[name] == _CPU else 'back on the device'}")
    if "attention" in axes:
        parts.append("no matrix of scores")
    if price.variant.bucket_elements:
        parts.append("smaller communication buckets")
    if price.variant.live_elements:
        parts.append("fewer parameters held gathered at a time")
    if price.fits_device:
        verdict = "fits"
    else:
        verdict = "may fit: little is left free" if price.high_bytes <= usable_bytes else "does not fit yet"
    return f"{', '.join(parts)}: then up to {size(price.high_bytes)} of {size(usable_bytes)} ({verdict})"


def best_of(prices: tuple[Price, ...], *, most: int) -> tuple[Price, ...]:
    """The best variants, ranked: those that fit, fastest (and simplest) first, then those that free most.

    Of each set of changed axes the fastest that fits (or the one that frees most) is kept; a larger set only if no
    subset of it fits, unless it is faster.
    """
    by_axes: dict[frozenset[str], Price] = {}
    for price in prices:
        if price.frees_bytes <= 0:
            continue
        names = _names(price)
        known = by_axes.get(names)
        if known is None or _rank(price) < _rank(known):
            by_axes[names] = price
    kept = [
        price
        for names, price in by_axes.items()
        if not any(other < names and _covers(by_axes[other], price) for other in by_axes)
    ]
    fitting = sorted((price for price in kept if price.fits), key=_effort)
    least = _WORTH_NAMING * max((price.frees_bytes for price in kept), default=0)
    short = [p for p in kept if not p.fits and (p.may_fit or p.frees_bytes >= least or not fitting)]
    rest = sorted(short, key=lambda price: (not price.may_fit, len(_names(price)), -price.frees_bytes))
    return tuple([*fitting, *rest][:most])


def _effort(price: Price) -> float:
    """Time, with each further change counted as a tenth more: simple changes come first where they cost little."""
    return price.step_time_s * (1.0 + _FURTHER_CHANGE * (len(_names(price)) - 1))


def _covers(smaller: Price, larger: Price) -> bool:
    """Whether the smaller change already does: it fits and is about as fast; or neither fits and the larger adds
    little."""
    if smaller.fits:
        return smaller.step_time_s <= 1.02 * larger.step_time_s
    if larger.may_fit > smaller.may_fit:
        return False
    return not larger.fits and larger.frees_bytes < 1.05 * smaller.frees_bytes


def _names(price: Price) -> frozenset[str]:
    names = {name for name, _ in price.variant.axes if name != "gradient_accumulation_steps"}
    buffers = {"bucket": price.variant.bucket_elements, "live": price.variant.live_elements}
    return frozenset(names | {name for name, elements in buffers.items() if elements})


def _rank(price: Price) -> tuple[bool, float]:
    return (not price.fits, price.step_time_s if price.fits else -float(price.frees_bytes))
