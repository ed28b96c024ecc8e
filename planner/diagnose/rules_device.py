"""Why an accelerator refused a request: one rule a function, tried in the order of `DEVICE_RULES`. Pure.

The first rule that answers decides; what later rules would have said becomes `also`. The order goes from what the
message itself proves to what is left over:

    per-process limit     R + r > L, although F >= r: the limit refused, not the device
    nominal and usable    T < 0.9 N (N nominal), and the request would have fitted into N
    single allocation     r of gigabytes, F >= r: no shortage, so one block may not be so large
    rank placement        several of this job's processes on one device
    other process         O covers the request: F + U + O >= r, and O is a real share of T (10 % or 2 GiB)
    contradiction         F much larger than r: no shortage, cause not in the message
    leak                  a counter grows with the steps
    spikes                saving, resuming, evaluating
    fragmentation         U large and F + U >= r
    batch                 an activation-sized request while training
    capacity              what is left

Symbols as in `arithmetic`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from planner.diagnose.arithmetic import GIB, MIB, Shares, implied_free, is_wddm, shares_of, strangers
from planner.diagnose.causes import Cause
from planner.diagnose.records import Hint, RunPhase, Verdict
from planner.diagnose.rules_filling import batch_too_large, capacity
from planner.diagnose.rules_processes import rank_placement
from planner.diagnose.rules_spikes import eval_accumulation, leak, resume_spike, save_spike
from planner.diagnose.situation import Situation
from planner.diagnose.words import share, size

DeviceRule: TypeAlias = Callable[[Situation, Shares], Verdict | None]

_NO_LIMIT_FRACTION = 0.995  # a limit at or above the total limits nothing
_NOMINAL_FRACTION = 0.90  # ECC and the driver take up to 7 % of the label (A10G: 24 GB show 22.2 GiB)
_SINGLE_BYTES, _SINGLE_FRACTION = 4 * GIB, 0.2
_SINGLE_XPU_BYTES = 4 * GIB - 1  # Level Zero's and OpenCL's default limit of one allocation is 2^32 bytes
_FOREIGN_FRACTION, _FOREIGN_BYTES = 0.10, 2 * GIB  # either makes other processes worth naming as the cause
_FOREIGN_LEAST_BYTES = GIB // 2  # a desktop and the rounding of contexts on small cards
_FREE_MARGIN_BYTES, _FREE_MARGIN_FRACTION = 512 * MIB, 0.03
# Idle cache that is noise: a healthy run keeps 1 to 2 % in half-used blocks.
_IDLE_FRACTION, _IDLE_OF_REQUEST, _IDLE_LOADING_FRACTION = 0.02, 0.5, 0.05
_IDLE_LEAST_BYTES = 192 * MIB  # rests of a few 20 MiB segments, on any device
_ASYNC_IDLE_FRACTION = 0.10


def decide_device(situation: Situation) -> Verdict:
    """The verdict on an accelerator's message with figures; `capacity` when no rule claims it."""
    shares = shares_of(situation.event, many_ranks=situation.many_ranks)
    answers = [answer for rule in DEVICE_RULES if (answer := rule(situation, shares)) is not None]
    first, later = answers[0], answers[1:]
    others = [answer.cause for answer in later if answer.cause not in (first.cause, Cause.CAPACITY)]
    also = tuple(dict.fromkeys((*first.also, *others)))[:3]
    return situation.verdict(first.cause, first.confidence, *first.evidence, also=also, grows=first.grows)


def per_process_limit(situation: Situation, shares: Shares) -> Verdict | None:
    """A limit of this process: `set_per_process_memory_fraction`, MPS's watermark.

    Decides when the limit lies below the total and live + idle + request pass it, while the device has the request free
    (or does not say).
    """
    figures = situation.event.figures
    limit, request = figures.limit, figures.requested or 0
    if limit is None or (figures.total is not None and limit >= _NO_LIMIT_FRACTION * figures.total):
        return None
    held = figures.in_use if situation.event.backend == "mps" else figures.reserved
    if held is None or held + request < 0.98 * limit:
        return None
    if shares.free is not None and shares.free < request:
        return None
    evidence = [f"this process may have {size(limit)}; it holds {size(held)} and asked for {size(request)} more"]
    if shares.free is not None:
        evidence.append(f"the device itself has {size(shares.free)} free")
    confidence = 0.75 if situation.event.backend == "mps" else 0.92
    return situation.verdict(Cause.PER_PROCESS_LIMIT, confidence, *evidence)


def nominal_vs_usable(situation: Situation, shares: Shares) -> Verdict | None:
    """The label promised more than the runtime has: T < 0.9 N and live + request <= 0.95 N."""
    total, nominal = shares.total, situation.nominal_bytes
    if total is None or not nominal or total >= _NOMINAL_FRACTION * nominal:
        return None
    needed = (shares.live or 0) + (shares.request or 0)
    if needed > 0.95 * nominal or (
        shares.free is not None and shares.request is not None and shares.request <= 0.8 * shares.free
    ):
        return None
    return situation.verdict(
        Cause.NOMINAL_VS_USABLE,
        0.85,
        f"the device's nominal memory is {size(nominal)}, the runtime exposes {size(total)}",
        f"live tensors and the request, {size(needed)}, would fit the label and do not fit what is exposed",
    )


def single_allocation_limit(situation: Situation, shares: Shares) -> Verdict | None:
    """Gigabytes refused with more than that free: the runtime limits one allocation.

    XPU: r >= 4 GiB. Others: r >= 4 GiB or 20 % of T. F is taken from the message, or implied as T - R - C0.
    """
    request, event = shares.request, situation.event
    free = shares.free if shares.free is not None else implied_free(event, many_ranks=situation.many_ranks)
    if request is None or free is None or free < 1.02 * request:
        return None
    threshold = (
        _SINGLE_XPU_BYTES
        if event.backend == "xpu"
        else min(_SINGLE_BYTES, _SINGLE_FRACTION * (shares.total or _SINGLE_BYTES * 9))
    )
    if request < threshold or (event.backend != "xpu" and request < GIB):
        return None
    said = "free" if shares.free is not None else "not taken by this process"
    evidence = [f"{size(request)} were refused in one piece while {size(free)} are {said}: no shortage of memory"]
    if event.backend == "xpu":
        evidence.append("XPU runtimes refuse single allocations of 4 GiB and more by default")
    return situation.verdict(Cause.SINGLE_ALLOCATION_LIMIT, 0.8 if event.backend == "xpu" else 0.6, *evidence)


def other_process(situation: Situation, shares: Shares) -> Verdict | None:
    """Others hold what is missing: O is at least 10 % of T or 2 GiB, and F + U + O >= r."""
    foreign, total, request = shares.foreign, shares.total, shares.request
    if not foreign or total is None or request is None or situation.event.backend == "cuda-async":
        return None
    if foreign < max(min(_FOREIGN_FRACTION * total, _FOREIGN_BYTES), _FOREIGN_LEAST_BYTES):
        return None
    if (shares.free or 0) + (shares.idle or 0) + foreign < request:
        return None
    confidence = min(0.93, (0.6 if shares.is_exact else 0.5) + 1.2 * foreign / total)
    evidence = [_foreign_words(situation, shares)]
    others = strangers(situation.event, many_ranks=situation.many_ranks)
    named = [f"process {other.pid} holds {size(other.memory_bytes or 0)}" for other in others]
    evidence.extend(named[:4])
    if situation.event.figures.in_use == 0 and not shares.is_exact:
        evidence.append("'0 bytes in use' is a counter that could not be read, not a measurement")
    return situation.verdict(Cause.OTHER_PROCESS, confidence, *evidence)


def _foreign_words(situation: Situation, shares: Shares) -> str:
    total, free, foreign = shares.total or 0, shares.free or 0, shares.foreign or 0
    figures = situation.event.figures
    if shares.is_exact and figures.in_use and shares.own_outside is not None:
        return (
            f"{size(total)} total - {size(free)} free - {size(figures.in_use)} of this process = "
            f"{size(total - free - figures.in_use)} "
            "of other processes"
        )
    if shares.is_exact:
        return f"other processes named in the message hold {size(foreign)}"
    unaccounted = total - free - (figures.reserved or 0)
    return (
        f"{size(total)} total - {size(free)} free - {size(figures.reserved or 0)} reserved = "
        f"{size(unaccounted)} outside this "
        f"process's allocator; a context explains at most about {size(shares.context_allowance)}"
    )


def contradiction(situation: Situation, shares: Shares) -> Verdict | None:
    """More is free than was asked for, by 512 MiB or 3 % of the device at least: the message does not hold the
    cause."""
    free, request, total = shares.free, shares.request, shares.total
    if free is None or request is None:
        return None
    if free - request < max(_FREE_MARGIN_BYTES, _FREE_MARGIN_FRACTION * (total or 0)):
        return None
    if shares.idle and shares.idle > 3 * request and free < 2 * request:
        return None
    evidence = [f"{size(request)} were refused although {size(free)} of {size(total or 0)} are free: not a shortage"]
    if shares.idle and shares.idle >= 0.04 * (total or 0):
        evidence.append(f"{size(shares.idle)} more are idle in the allocator's cache")
    if situation.facts.has(Hint.WSL, Hint.WINDOWS):
        evidence.append("under WSL and Windows the driver keeps memory back and limits allocations")
    evidence.append(
        "what can be behind it: memory that another process gave back between the failure and "
        "the message, a limit of the "
        "driver or the system (mappings, locked memory), a fault of the runtime"
    )
    confidence = 0.65 if free >= 10 * request else 0.45
    return situation.verdict(Cause.UNKNOWN_NOT_CAPACITY, confidence, *evidence)


def fragmentation(situation: Situation, shares: Shares) -> Verdict | None:
    """Idle cache that is not in one piece: F + U >= r, with U at least 2 % of T, 192 MiB and half the request.

    Below that, idle memory is the noise of a full device and defragmenting gains nothing. While a model is loaded, 5 %
    are asked for. cudaMallocAsync does not tell U; there T - F - A takes its place, from 10 % of T on.
    """
    if situation.event.backend == "cuda-async":
        return _async_fragmentation(situation, shares)
    idle, request = shares.idle, shares.request
    if idle is None or request is None or not idle:
        return None
    total = shares.total or (shares.live or 0) + idle
    loads = situation.event.phase in (RunPhase.BUILD_MODEL, RunPhase.START)
    least = _IDLE_LOADING_FRACTION if loads else _IDLE_FRACTION
    room = (shares.free or 0) + idle
    if room < request or idle < max(least * total, _IDLE_LEAST_BYTES, _IDLE_OF_REQUEST * request):
        return None
    evidence = [
        f"{size(idle)} ({share(idle / total)} of the device) are reserved and idle, {size(shares.free or 0)} are free: "
        f"together {size(room)}, more than the {size(request)} asked for, but not in one piece"
    ]
    if idle < 0.05 * total:
        evidence.append("the device is nearly full besides: defragmenting could just let this request pass")
    confidence = min(0.92, 0.5 + 1.5 * idle / total + (0.15 if idle >= request else 0.0))
    also = (Cause.CAPACITY,) if idle < 0.05 * total else ()
    return situation.verdict(Cause.FRAGMENTATION, confidence, *evidence, also=also)


def _async_fragmentation(situation: Situation, shares: Shares) -> Verdict | None:
    if shares.total is None or shares.live is None or shares.request is None:
        return None
    retained = shares.total - (shares.free or 0) - shares.live
    if retained < max(shares.request, _ASYNC_IDLE_FRACTION * shares.total):
        return None
    return situation.verdict(
        Cause.FRAGMENTATION,
        0.6,
        f"{size(shares.total)} limit - {size(shares.free or 0)} free - {size(shares.live)} "
        f"live = {size(retained)} that the "
        "cudaMallocAsync pool retains, more than was asked for",
        "the message cannot tell the pool from another process: nvidia-smi can",
        also=(Cause.OTHER_PROCESS,),
    )


def windows_note(situation: Situation) -> tuple[str, ...]:
    """What a message in Windows' manner leaves open."""
    if not is_wddm(situation.event.figures):
        return ()
    return (
        "'0 bytes free' of a whole number of GiB is how Windows' driver reports: part of the device is not PyTorch's",
    )


DEVICE_RULES: tuple[DeviceRule, ...] = (
    per_process_limit,
    nominal_vs_usable,
    single_allocation_limit,
    rank_placement,
    other_process,
    contradiction,
    leak,
    save_spike,
    resume_spike,
    eval_accumulation,
    fragmentation,
    batch_too_large,
    capacity,
)
