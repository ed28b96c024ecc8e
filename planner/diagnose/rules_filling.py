"""When the device is really full of this job: the batch, or the model. Pure.

The two are told apart by the priced model where there is one: states alone decide what a smaller batch can save.
Without one, an activation-sized request in forward or backward speaks for the batch, everything else for capacity.
"""

from __future__ import annotations

from planner.diagnose.arithmetic import Shares
from planner.diagnose.causes import Cause
from planner.diagnose.known_tensors import match_tensor, square_of_sequence
from planner.diagnose.records import Hint, KnownTensor, ModelView, RunPhase, Verdict
from planner.diagnose.situation import Situation
from planner.diagnose.words import share, shortened, size

_ACTIVATION_FRACTION = 0.01  # of the device: smaller requests are weights, workspaces, the last drop
_ONE_TENSOR_FRACTION = 0.9  # a request of nearly the whole device is one tensor that can never fit beside a model
_ROOMY_FRACTION = 0.85  # of what is usable: computed needs below it should have run
_DISAGREEMENT = 1.4


def batch_too_large(situation: Situation, shares: Shares) -> Verdict | None:
    """The micro-batch's activations: the model says so, a user says so, or the request is of their size."""
    model, request, total = situation.model, shares.request, shares.total
    tensor = match_tensor(request, model)
    if situation.micro_batch_size == 1 or (tensor is not None and tensor.is_quadratic) or square_of_sequence(situation):
        return None
    smaller = next((seen for seen in situation.facts.hints if seen.hint is Hint.SMALLER_BATCH_RUNS), None)
    if smaller is not None:
        return situation.verdict(
            Cause.BATCH_TOO_LARGE, 0.75, f"it is said: {shortened(smaller.text)!r}", *_full(shares)
        )
    if request and total and request >= _ONE_TENSOR_FRACTION * total:
        return None
    if model is not None and situation.micro_batch_size > 1 and situation.event.phase not in _BEFORE_TRAINING:
        return _by_model(situation, model, tensor)
    computes = situation.event.phase in (RunPhase.FORWARD, RunPhase.BACKWARD)
    if not computes or not request or not total or request < _ACTIVATION_FRACTION * total:
        return None
    return situation.verdict(
        Cause.BATCH_TOO_LARGE,
        0.6,
        f"{size(request)} ({share(request / total)} of the device) were asked for in "
        f"{situation.event.phase.value}: an activation, "
        "whose size follows the micro-batch",
        *_full(shares),
        also=(Cause.CAPACITY,),
    )


_BEFORE_TRAINING = (RunPhase.BUILD_MODEL, RunPhase.BUILD_ENGINE, RunPhase.START, RunPhase.OPTIMIZER_STEP)


def _by_model(situation: Situation, model: ModelView, tensor: KnownTensor | None) -> Verdict | None:
    if model.one_sequence_high_bytes > model.usable_bytes:
        return None
    words = [
        f"computed: up to {size(model.high_bytes)} at micro-batch {model.micro_batch_size}, "
        f"{size(model.one_sequence_high_bytes)} at micro-batch 1, of {size(model.usable_bytes)} usable",
        f"activations are {size(model.activations_bytes)} of it, states {size(model.states_bytes)}",
    ]
    if tensor is not None:
        words.append(_tensor_words(tensor))
    sure = model.high_bytes > model.usable_bytes
    return situation.verdict(Cause.BATCH_TOO_LARGE, 0.85 if sure else 0.6, *words)


def capacity(situation: Situation, shares: Shares) -> Verdict:
    """What is left: the device is full of this job's tensors, or one tensor is too large for any device."""
    model, request, total = situation.model, shares.request, shares.total
    if model is not None and _disagrees(situation, shares, model):
        return _disagreement(situation, shares, model)
    tensor = match_tensor(request, model)
    evidence = [*_full(shares)]
    grows = _grows(situation, tensor)
    if request and total and request >= _ONE_TENSOR_FRACTION * total:
        evidence.append(f"one tensor of {size(request)} was asked for on a device of {size(total)}: it can never fit")
        grows = (
            grows
            or "one tensor of this size grows with the batch, and with the square of the sequence where it holds scores"
        )
    if tensor is not None:
        evidence.append(_tensor_words(tensor))
    evidence.extend(_phase_words(situation, shares))
    if model is not None:
        evidence.append(
            f"computed: states {size(model.states_bytes)}, activations {size(model.activations_bytes)}, up to "
            f"{size(model.high_bytes)} in all, of {size(model.usable_bytes)} usable"
        )
    if not evidence:
        evidence.append("the device refused memory; the message has no figures to say more")
    nearly_full = bool(shares.live and total and shares.live + (shares.idle or 0) >= 0.85 * total)
    confidence = 0.8 if nearly_full or grows else 0.6
    return situation.verdict(Cause.CAPACITY, confidence, *evidence, grows=grows or _what_fills(situation))


def _full(shares: Shares) -> tuple[str, ...]:
    if shares.live is None or not shares.total:
        return ()
    words = f"live tensors hold {size(shares.live)} of {size(shares.total)} ({share(shares.live / shares.total)})"
    if shares.request is not None:
        words += f"; {size(shares.request)} more were asked for, {size(shares.free or 0)} are free"
    lines = [words]
    if shares.idle is not None and shares.idle_room is not None and shares.request is not None:
        short = shares.idle_room < shares.request
        lines.append(
            f"{size(shares.idle)} are idle in the cache: "
            f"{'even with them the request does not fit' if short else 'the noise of a full device'}"
        )
    if shares.own_outside is not None and shares.own_outside > 3 * 2**30:
        lines.append(
            f"{size(shares.own_outside)} of this process lie outside PyTorch's allocator (NCCL, "
            "libraries, another framework)"
        )
    return tuple(lines)


def _grows(situation: Situation, tensor: KnownTensor | None) -> str:
    if tensor is not None:
        return tensor.grows
    if square_of_sequence(situation):
        return "attention scores: with the square of the sequence length"
    return ""


def _what_fills(situation: Situation) -> str:
    phase = situation.event.phase
    if phase is RunPhase.BUILD_MODEL:
        return "weights: every rank places the whole model"
    if phase in (RunPhase.OPTIMIZER_STEP, RunPhase.BUILD_ENGINE):
        return "model states: with the parameters, divided by the data-parallel ranks that ZeRO shards over"
    model = situation.model
    if model is not None and model.states_bytes > model.activations_bytes:
        return "model states: with the parameters, divided by the data-parallel ranks that ZeRO shards over"
    return ""


def _phase_words(situation: Situation, shares: Shares) -> tuple[str, ...]:
    phase = situation.event.phase
    if phase is RunPhase.BUILD_MODEL:
        return (
            "it failed while the model was being placed on the device, before training: a smaller batch cannot help",
        )
    if phase is RunPhase.BUILD_ENGINE:
        return ("it failed while DeepSpeed set up its partitions and buffers: a smaller batch cannot help",)
    if phase is RunPhase.OPTIMIZER_STEP:
        return ("it failed in the optimizer's step, where its states are first made: a smaller batch helps little",)
    return ()


def _tensor_words(tensor: KnownTensor) -> str:
    return f"the request is the size of {tensor.name} ({size(tensor.size_bytes)}), which grows with {tensor.grows}"


def _disagrees(situation: Situation, shares: Shares, model: ModelView) -> bool:
    """The cost model says that the run fits easily, and the log shows far more live memory than it computes."""
    if shares.live is None or situation.event.phase in _BEFORE_TRAINING[:3]:
        return False
    return model.high_bytes <= _ROOMY_FRACTION * model.usable_bytes and shares.live > _DISAGREEMENT * model.high_bytes


def _disagreement(situation: Situation, shares: Shares, model: ModelView) -> Verdict:
    return situation.verdict(
        Cause.UNKNOWN_NOT_CAPACITY,
        0.55,
        f"prediction and observation disagree: computed up to {size(model.high_bytes)} for "
        "this configuration, the log shows "
        f"{size(shares.live or 0)} of live tensors",
        "something of the configuration is not in effect: check that activation checkpointing "
        "is on, that the model was built "
        "under zero.Init (sharded from the start), that offloading is really active, and the "
        "sequence length of the data",
        *_full(shares),
        also=(Cause.CAPACITY,),
    )
