"""A verdict to its ranked fixes: priced changes where a model is known, plain ones where not, and the cause's remedies.

Pure. A fix that removes the cause comes before one that works around it; among priced changes those that fit come
first, the fastest of them at the top.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from planner.diagnose.arithmetic import shares_of
from planner.diagnose.causes import Cause
from planner.diagnose.config_change import batch_change, smaller_micro_batches
from planner.diagnose.config_reading import MemoryConfig
from planner.diagnose.known_tensors import match_tensor
from planner.diagnose.pricing import PricedSetting, Variant, memory_scale, price_variants
from planner.diagnose.records import Fix, LogFacts, MemoryEvent, ModelView, RunPhase, Verdict
from planner.diagnose.remedies import remedies_for
from planner.diagnose.remedy import Remedy, allocator_variable
from planner.diagnose.seen_setting import fails_at_the_loss
from planner.diagnose.situation import Situation
from planner.diagnose.variants import (
    CHUNKED_LOSS,
    SMALL_BUCKET_ELEMENTS,
    SMALL_LIVE_ELEMENTS,
    best_of,
    change_of,
    chunked_loss_of,
    device_variants,
    host_variants,
    why_of,
)
from planner.diagnose.words import size

MAX_FIXES = 8
_MAX_PRICED = 5
_WORTHWHILE_BYTES = 64 * 2**20

_CHUNKED = Fix(change={"code": dict(CHUNKED_LOSS)}, why="memory ran out at the loss: the logits then never exist whole")

# Causes that are cured by needing less on the device; for the others such changes only work around the cause.
_NEEDS_LESS = frozenset({Cause.CAPACITY, Cause.BATCH_TOO_LARGE, Cause.NOMINAL_VS_USABLE})
_WORKED_AROUND = frozenset(
    {
        Cause.FRAGMENTATION,
        Cause.SINGLE_ALLOCATION_LIMIT,
        Cause.PER_PROCESS_LIMIT,
        Cause.EVAL_ACCUMULATION,
        Cause.CHECKPOINT_SAVE_SPIKE,
        Cause.RESUME_SPIKE,
    }
)


def suggest_fixes(
    facts: LogFacts,
    verdict: Verdict,
    *,
    setting: PricedSetting | None = None,
    config: MemoryConfig | None = None,
    model: ModelView | None = None,
) -> tuple[Fix, ...]:
    """The fixes, best first. `config` counts where no setting could be made of it."""
    event = facts.events[verdict.event] if verdict.event is not None else None
    situation = Situation(facts=facts, index=verdict.event, model=model) if verdict.event is not None else None
    shares = shares_of(event, many_ranks=situation.many_ranks) if event is not None and situation is not None else None
    read = config if setting is None else setting.config
    remedy = Remedy(facts=facts, verdict=verdict, event=event, shares=shares, model=model, config=read)
    remedies = remedies_for(remedy)
    changes = _changes(facts, verdict, setting=setting, config=read, event_index=verdict.event, model=model)
    if verdict.cause in (Cause.CAPACITY, Cause.BATCH_TOO_LARGE) and Cause.FRAGMENTATION in verdict.also:
        changes.append(_expandable(remedy))
    return tuple(_distinct([*remedies, *changes])[:MAX_FIXES])


def _changes(
    facts: LogFacts,
    verdict: Verdict,
    *,
    setting: PricedSetting | None,
    config: MemoryConfig | None,
    event_index: int | None,
    model: ModelView | None,
) -> list[Fix]:
    cause = verdict.cause
    if cause is Cause.HOST_RAM:
        return _host_changes(setting, config)
    if cause not in _NEEDS_LESS | _WORKED_AROUND:
        return []
    loads = event_index is not None and facts.events[event_index].phase is RunPhase.BUILD_MODEL
    if setting is not None:
        return _priced(
            facts,
            setting,
            event_index=event_index,
            model=model,
            most=_MAX_PRICED if cause in _NEEDS_LESS else 2,
            without_batch=loads,
        )
    if loads:
        return []
    in_pieces = [_CHUNKED] if event_index is not None and fails_at_the_loss(facts.events[event_index]) else []
    return [*in_pieces, *_unpriced(facts, cause, config)] if cause in _NEEDS_LESS else _unpriced(facts, cause, config)


def _priced(
    facts: LogFacts,
    setting: PricedSetting,
    *,
    event_index: int | None,
    model: ModelView | None,
    most: int,
    without_batch: bool,
) -> list[Fix]:
    event = facts.events[event_index] if event_index is not None else None
    scale = memory_scale(setting, event)
    variants = device_variants(setting)
    if without_batch:
        variants = tuple(v for v in variants if not any(name == "micro_batch_size" for name, _ in v.axes))
    best = list(best_of(price_variants(setting, variants, scale=scale), most=most))
    chunked = chunked_loss_of(setting)
    if chunked is not None and event is not None and _is_of_the_loss(event, model):
        (price,) = price_variants(setting, (chunked,), scale=scale)
        if price.frees_high_bytes > 0:  # beside the others it costs next to no time
            best.insert(0 if price.fits else sum(one.fits for one in best), price)
    usable = setting.cluster.gpu.memory_usable_bytes
    return [
        Fix(
            change=change_of(setting, price.variant),
            why=why_of(setting, price, usable_bytes=usable),
            frees_bytes=max(price.frees_high_bytes, 0),
            slows_fraction=round(price.slows_fraction, 4),
            fits=price.fits,
            host_bytes=price.host_bytes,
            basis="computed",
        )
        for price in best
    ]


def _is_of_the_loss(event: MemoryEvent, model: ModelView | None) -> bool:
    tensor = match_tensor(event.figures.requested, model)
    return fails_at_the_loss(event) or (tensor is not None and tensor.name.startswith("the logits"))


def _host_changes(setting: PricedSetting | None, config: MemoryConfig | None) -> list[Fix]:
    """Less on the host. Priced: what is freed there, and whether the device can take it back."""
    fixes: list[Fix] = []
    if setting is not None:
        variants = host_variants(setting)
        as_it_is = Variant(axes=(("zero_stage", setting.axis("zero_stage")),))
        base = price_variants(setting, (as_it_is,))[0]
        prices = [p for p in price_variants(setting, variants) if p.host_bytes < base.host_bytes]
        ranked = sorted(prices, key=lambda p: (not p.fits, p.step_time_s if p.fits else -p.host_bytes))
        seen: set[frozenset[str]] = set()
        for price in ranked:
            names = frozenset(name for name, _ in price.variant.axes)
            if names in seen:
                continue
            seen.add(names)
            freed = base.host_bytes - price.host_bytes
            fixes.append(
                Fix(
                    change=change_of(setting, price.variant),
                    why=f"frees {size(freed)} of host memory a node; the device then needs up to "
                    f"{size(price.high_bytes)} "
                    f"of {size(setting.cluster.gpu.memory_usable_bytes)}",
                    frees_bytes=freed,
                    slows_fraction=round(price.slows_fraction, 4),
                    fits=price.fits,
                    host_bytes=price.host_bytes,
                    basis="computed",
                )
            )
    pinned = (
        {"offload_optimizer": config.pins_optimizer, "offload_param": config.pins_param} if config is not None else {}
    )
    pins: dict[str, Any] = {name: {"pin_memory": False} for name, is_pinned in pinned.items() if is_pinned}
    if pins:
        fixes.append(
            Fix(
                change={"zero_optimization": pins},
                why="page-locked copies cannot be swapped and come on top of the states",
            )
        )
    return fixes[:4]


def _unpriced(facts: LogFacts, cause: Cause, config: MemoryConfig | None) -> list[Fix]:
    """Changes in the usual order, without prices: nothing is known to compute them from, except communication
    buckets."""
    fixes = [*_batch_fixes(facts, config)]
    fixes.append(
        Fix(
            change={"run": {"activation_checkpointing": "full"}},
            why="activations are recomputed in backward (about a third more computation)",
        )
    )
    stage = config.zero_stage if config is not None else facts.settings.zero_stage
    if stage is None or stage < 3:
        unknown = "if the run is below it now (nothing here says its stage; --config would): " if stage is None else ""
        fixes.append(
            Fix(
                change={"zero_optimization": {"stage": (stage or 0) + 1 if stage else 2}},
                why=f"{unknown}shards more of the states over the data-parallel ranks",
            )
        )
    if config is not None:
        fixes.extend(_bucket_fixes(config))
    offloaded = config.offload_optimizer if config is not None else facts.settings.offload_optimizer
    if cause is Cause.CAPACITY and not offloaded:
        block = {"offload_optimizer": {"device": "cpu", "pin_memory": True}}
        change = {"zero_optimization": block if stage or stage is None else {"stage": 2, **block}}
        needs = "at ZeRO stage 1 or above, " if stage is None else ""
        why = f"{needs}optimizer states in host memory: 12 to 16 bytes a parameter there, a slower step"
        fixes.append(Fix(change=change, why=why))
    return fixes


def _batch_fixes(facts: LogFacts, config: MemoryConfig | None) -> list[Fix]:
    """Half the micro-batch, twice the accumulation, in the terms of the file where there is one."""
    written = config.micro_batch_size if config is not None else 0
    micro = written or facts.settings.micro_batch_size
    known = config.gradient_accumulation_steps if config is not None else 0
    accumulation = known or facts.settings.gradient_accumulation_steps
    smaller = smaller_micro_batches(micro)
    why = "half the activations; as much more accumulation keeps the global batch"
    if smaller:
        change = batch_change(
            config, micro_batch_size=smaller[0], old_micro_batch_size=micro, old_accumulation=accumulation or 1
        )
        if not accumulation and not written:  # from the log alone: what it was multiplied with is not known
            change = {
                "run": {"micro_batch_size": smaller[0], "gradient_accumulation_steps": f"x {micro // smaller[0]}"}
            }
        return [Fix(change=change, why=why)]
    if micro == 1:
        return []
    if config is not None and config.train_batch_size and not config.is_auto:
        return [Fix(change={"gradient_accumulation_steps": 2 * max(known, 1)}, why=why)]
    target = "trainer_args" if config is not None and config.is_auto else "run"
    name = "per_device_train_batch_size" if target == "trainer_args" else "micro_batch_size"
    return [Fix(change={target: {name: "halve", "gradient_accumulation_steps": "double"}}, why=why)]


def _bucket_fixes(config: MemoryConfig) -> list[Fix]:
    """Smaller buffers: those for reducing gradients (stages 1, 2), parameters held gathered (stage 3)."""
    if config.zero_stage == 3 and config.max_live_parameters > 2 * SMALL_LIVE_ELEMENTS:
        most = (config.max_live_parameters - SMALL_LIVE_ELEMENTS) * config.element_bytes
        limits = dict.fromkeys(("stage3_max_live_parameters", "stage3_max_reuse_distance"), SMALL_LIVE_ELEMENTS)
        why = f"gathered parameters may take {size(most)} more than they need; fewer, huge layers make it worse"
        return [Fix(change={"zero_optimization": limits}, why=why)]
    smaller = replace(config, reduce_bucket_size=min(config.reduce_bucket_size, SMALL_BUCKET_ELEMENTS))
    freed = config.reduce_buffer_bytes - smaller.reduce_buffer_bytes
    if freed <= _WORTHWHILE_BYTES:
        return []
    buckets = {"reduce_bucket_size": SMALL_BUCKET_ELEMENTS, "allgather_bucket_size": SMALL_BUCKET_ELEMENTS}
    copies = "two buffers (overlap_comm)" if config.overlaps else "one buffer"
    why = f"{copies} of {config.reduce_bucket_size:,} elements are held for reducing gradients"
    return [Fix(change={"zero_optimization": buckets}, why=why, frees_bytes=freed, basis="computed")]


def _expandable(remedy: Remedy) -> Fix:
    idle = remedy.shares.idle if remedy.shares is not None else None
    return Fix(
        change={"env": {allocator_variable(remedy.event): "expandable_segments:True"}},
        why="fragmentation has a share in it",
        frees_bytes=idle,
        basis="log" if idle is not None else "",
    )


def _distinct(fixes: list[Fix]) -> list[Fix]:
    seen: list[Any] = []
    kept = []
    for fix in fixes:
        if fix.change not in seen:
            seen.append(fix.change)
            kept.append(fix)
    return kept
