"""Device failures without figures: what the failing call and the surroundings tell. Pure."""

from __future__ import annotations

import re

from planner.diagnose.arithmetic import shares_of
from planner.diagnose.causes import Cause
from planner.diagnose.records import EventKind, Hint, RunPhase, Verdict
from planner.diagnose.rules_filling import capacity
from planner.diagnose.rules_processes import imbalance_in_tables, placement_in_tables, strangers_in_tables
from planner.diagnose.rules_spikes import eval_accumulation, leak, resume_spike, save_spike
from planner.diagnose.situation import Situation

_PINNING = re.compile(r"pin_memory|HostAlloc|host_alloc|cudaHost|_pin\b|pinned", re.IGNORECASE)
_LIBRARIES = {
    "nccl": "NCCL",
    "cublas": "cuBLAS",
    "cudnn": "cuDNN",
    "cusolver": "cuSOLVER",
    "cusparse": "cuSPARSE",
    "cufft": "cuFFT",
}


def decide_bare(situation: Situation) -> Verdict:
    """The verdict on an accelerator's failure that prints no figures."""
    kind = situation.event.kind
    if kind is EventKind.SINGLE_LIMIT:
        return situation.verdict(
            Cause.SINGLE_ALLOCATION_LIMIT,
            0.85,
            "the runtime says that one buffer may not be this large",
            _words(situation),
        )
    if kind is EventKind.PINNED_HOST or pins_memory(situation):
        return pinned(situation)
    if kind is EventKind.LIBRARY_ALLOCATION:
        return _library(situation)
    if kind is EventKind.MASKED:
        return _masked(situation)
    return _device_error(situation)


def pins_memory(situation: Situation) -> bool:
    """Whether the failing call pins host memory, by its frames or its words."""
    event = situation.event
    inner = [f"{frame.file}:{frame.function}:{frame.code}" for frame in event.frames[-3:]]
    return any(map(_PINNING.search, inner)) or bool(_PINNING.search(event.text[:200]))


def pinned(situation: Situation) -> Verdict:
    """Page-locked host memory: limited by the system (and tightly by WSL), reported as a CUDA error."""
    event = situation.event
    evidence = [
        "the failing call asks for page-locked or managed HOST memory; it is reported as a device error",
        _words(situation),
    ]
    if event.backend == "bitsandbytes":
        evidence.insert(1, "bitsandbytes takes managed memory for paged optimizers through pythonInterface")
    if situation.said(Hint.WSL):
        evidence.append("WSL limits page-locked memory to a part of what the virtual machine has")
    return situation.verdict(
        Cause.PINNED_HOST_MEMORY, 0.85 if situation.said(Hint.WSL) or event.frames else 0.75, *evidence
    )


def _library(situation: Situation) -> Verdict:
    """A library outside PyTorch's pool could not get its buffers: the pool has taken everything."""
    name = _LIBRARIES.get(situation.event.backend, situation.event.backend or "a library")
    spike = _moment(situation)
    if spike is not None:
        return spike
    if situation.said(Hint.SMALLER_BATCH_RUNS):
        return situation.verdict(
            Cause.BATCH_TOO_LARGE, 0.65, f"{name} could not allocate its own buffers", _words(situation)
        )
    return situation.verdict(
        Cause.CAPACITY,
        0.7,
        f"{name} could not allocate its own buffers, which lie outside PyTorch's pool: the device was full",
        _words(situation),
        grows="PyTorch's pool leaves no room for libraries: keep a headroom",
    )


def _masked(situation: Situation) -> Verdict:
    """Errors that hide an out-of-memory: NVML cannot be read while the message is made (MIG, containers), cuBLAS cannot
    create its handle."""
    if "NVML" in situation.event.text:
        is_slice = situation.said(Hint.MIG)
        evidence = [
            "the allocator failed while it was composing its out-of-memory message: NVML could not be read",
            _words(situation),
        ]
        if is_slice:
            evidence.append(
                f"the device is a MIG slice: its capacity is the slice's ({_nominal(situation)}), not the whole GPU's"
            )
        also = (Cause.NOMINAL_VS_USABLE,) if is_slice else ()
        return situation.verdict(Cause.CAPACITY, 0.7, *evidence, also=also)
    return situation.verdict(
        Cause.CAPACITY,
        0.45,
        "cuBLAS or cuDNN could not be initialised: mostly for want of memory, sometimes after an index out of range",
        _words(situation),
        also=(Cause.NOT_OOM,),
    )


def _nominal(situation: Situation) -> str:
    nominal = situation.nominal_bytes
    return f"{nominal / 2**30:.0f} GB" if nominal else "see its profile"


def _device_error(situation: Situation) -> Verdict:
    """The driver's bare error: the phase and the surroundings are all there is."""
    facts = situation.facts
    tables = placement_in_tables(facts) or imbalance_in_tables(facts) or strangers_in_tables(facts)
    if tables is not None and tables.cause is Cause.RANK_PLACEMENT:
        return situation.verdict(tables.cause, tables.confidence, *tables.evidence)
    if situation.said(Hint.SHARED_DEVICE):
        return situation.verdict(
            Cause.RANK_PLACEMENT, 0.6, "it is said that several ranks use one device", _words(situation)
        )
    if situation.said(Hint.WSL) or situation.said(Hint.PAGED_OPTIMIZER):
        return pinned_suspected(situation)
    spike = _moment(situation)
    if spike is not None:
        return spike
    starts = situation.event.phase is RunPhase.START or (
        situation.event.phase is RunPhase.BUILD_MODEL and not situation.said(Hint.LOADS_MODEL)
    )
    if tables is not None and tables.cause is Cause.OTHER_PROCESS:
        return situation.verdict(tables.cause, tables.confidence, *tables.evidence)
    if starts:
        return situation.verdict(
            Cause.OTHER_PROCESS,
            0.5,
            "the first touch of the device failed, before this process had anything on it: somebody else holds it",
            _words(situation),
            also=(Cause.CAPACITY,),
        )
    if situation.said(Hint.SMALLER_BATCH_RUNS):
        return situation.verdict(Cause.BATCH_TOO_LARGE, 0.65, _words(situation))
    verdict = capacity(situation, shares_of(situation.event, many_ranks=situation.many_ranks))
    return situation.verdict(
        verdict.cause, 0.5, *verdict.evidence, _words(situation), also=verdict.also, grows=verdict.grows
    )


def pinned_suspected(situation: Situation) -> Verdict:
    """A bare CUDA error under WSL is mostly page-locked memory: real shortages print PyTorch's figures."""
    where = (
        "WSL, whose page-locked memory is tightly limited"
        if situation.said(Hint.WSL)
        else "a paged optimizer's managed memory"
    )
    return situation.verdict(
        Cause.PINNED_HOST_MEMORY,
        0.6,
        "a bare driver error, without the figures that PyTorch prints when its own pool is "
        f"short; the run uses {where}",
        _words(situation),
        also=(Cause.CAPACITY,),
    )


def _moment(situation: Situation) -> Verdict | None:
    shares = shares_of(situation.event, many_ranks=situation.many_ranks)
    rules = (leak, save_spike, resume_spike, eval_accumulation)
    return next((verdict for rule in rules if (verdict := rule(situation, shares)) is not None), None)


def _words(situation: Situation) -> str:
    event = situation.event
    place = f" ({event.file}:{event.line or '?'} in {event.function})" if event.file else ""
    return f"{' '.join(event.text.split())[:160]}{place}"
