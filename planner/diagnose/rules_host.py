"""Failures of the host's memory, /dev/shm, and of things that are not memory at all. Pure."""

from __future__ import annotations

from planner.diagnose.arithmetic import shares_of
from planner.diagnose.causes import Cause
from planner.diagnose.records import EventKind, Hint, ProcessMemory, RunPhase, Verdict
from planner.diagnose.rules_bare import pinned, pins_memory
from planner.diagnose.rules_spikes import leak
from planner.diagnose.situation import Situation
from planner.diagnose.words import shortened, size

# What DeepSpeed's CPU offload keeps per parameter of the node's shards: fp32 master, momentum, variance (12), fp32
# gradients (4), and pinned 16-bit copies on top. runtime/zero/stage_1_and_2.py.
_OFFLOAD_BYTES_LEAST, _OFFLOAD_BYTES_MOST = 12, 16
_SURE_LEAK = 0.6  # measured over the steps, or seen by the user; what a log's words say only contributes
_ONE_RANK_RATIO = 4.0  # one process that much larger than the next is gathering for all


def decide_host(situation: Situation) -> Verdict:
    """The verdict on a failure of the host's memory."""
    kind = situation.event.kind
    if kind is EventKind.SHARED_MEMORY:
        return _shared(situation)
    grows = leak(situation, shares_of(situation.event, many_ranks=situation.many_ranks))
    if kind is EventKind.HOST_ALLOCATOR and situation.event.phase is RunPhase.EVALUATION:
        return situation.verdict(
            Cause.EVAL_ACCUMULATION,
            0.75,
            f"evaluation asked the host for {_request(situation)}: outputs of all batches are kept",
            _text(situation),
            also=(Cause.HOST_RAM,),
        )
    if grows is not None and grows.confidence >= _SURE_LEAK:
        words = (*grows.evidence, *_kind_words(situation))
        return situation.verdict(Cause.LEAK, grows.confidence, *words, also=(Cause.HOST_RAM,))
    also = [cause for phase, cause in _MOMENTS.items() if situation.event.phase is phase]
    if grows is not None:
        also.append(Cause.LEAK)
    evidence = [*_kind_words(situation), *_table_words(situation), *_use_words(situation), *_offload_words(situation)]
    evidence.extend(_moment_words(situation))
    if grows is not None:
        evidence.extend(grows.evidence)
    return situation.verdict(Cause.HOST_RAM, _confidence(situation), *evidence, also=tuple(also))


_MOMENTS = {RunPhase.CHECKPOINT_SAVE: Cause.CHECKPOINT_SAVE_SPIKE, RunPhase.CHECKPOINT_LOAD: Cause.RESUME_SPIKE}


def _confidence(situation: Situation) -> float:
    kind = situation.event.kind
    if kind is EventKind.KERNEL_KILL:
        return 0.95
    if kind is EventKind.HOST_ALLOCATOR:
        return 0.5 if "thread" in situation.event.text else 0.88
    supported = (
        bool(situation.facts.host_use) or situation.said(Hint.OFFLOADS) or situation.facts.settings.offload_optimizer
    )
    return 0.8 if supported else 0.7


def _shared(situation: Situation) -> Verdict:
    request = situation.event.figures.requested
    asked = f"; {size(request)} were asked for" if request else ""
    return situation.verdict(
        Cause.SHM_LIMIT,
        0.9,
        f"the failure is one of shared memory{asked}: {_text(situation)}",
        "containers get 64 MiB of /dev/shm by default; loader workers and NCCL exchange data through it",
    )


def _kind_words(situation: Situation) -> tuple[str, ...]:
    event = situation.event
    if event.kind is EventKind.KERNEL_KILL:
        resident = f"; it held {size(event.figures.in_use)}" if event.figures.in_use else ""
        where = "a memory cgroup's limit (a container's or a job's)" if _in_cgroup(situation) else "the node's memory"
        return (f"the out-of-memory killer acted on {where}{resident}: {_text(situation)}",)
    if event.kind is EventKind.KILLED:
        rank = f" of rank {event.rank}" if event.rank is not None else ""
        return (
            f"a process{rank} was killed by signal 9 ({_text(situation)}); no accelerator reported a shortage",
            "the kernel's log would prove it: dmesg | grep -i -E 'oom|killed process'",
        )
    asked = f" of {_request(situation)}" if event.figures.requested else ""
    return (f"the host refused an allocation{asked}: {_text(situation)}",)


def _in_cgroup(situation: Situation) -> bool:
    text = situation.event.text
    return any(word in text for word in ("MEMCG", "cgroup", "oom_kill event", "oom-kill event", "OOMKilled", "limit"))


def _table_words(situation: Situation) -> tuple[str, ...]:
    """The kernel's table: one process far above its siblings gathers for all, alike ones each hold their share."""
    python = [p for p in situation.facts.host_processes if "python" in p.name or p.name.startswith("pt_")] or list(
        situation.facts.host_processes
    )
    if not python:
        return ()
    first = python[0]
    words = [f"process {first.pid} ({first.name}) held {size(first.memory_bytes or 0)}"]
    if len(python) > 1 and (python[1].memory_bytes or 0) > 0:
        ratio = (first.memory_bytes or 0) / (python[1].memory_bytes or 1)
        words[0] += f", the next {size(python[1].memory_bytes or 0)}"
        if ratio >= _ONE_RANK_RATIO:
            words.append(
                f"one rank holds {ratio:.0f} times the others': it loads or gathers the whole model, the others wait"
            )
        else:
            words.append(f"the {len(python)} largest hold {size(_sum(python))} together: every rank has its part")
    return tuple(words)


def _sum(processes: list[ProcessMemory]) -> int:
    return sum(process.memory_bytes or 0 for process in processes)


def _use_words(situation: Situation) -> tuple[str, ...]:
    uses = situation.facts.host_use
    if not uses:
        return ()
    last = uses[-1]
    total = last.total_bytes
    node = f": the node has {size(total)}" if total else ""
    return (f"the last reading of host memory was {size(last.used_bytes)} = {last.used_fraction:.1%}{node}",)


def _offload_words(situation: Situation) -> tuple[str, ...]:
    settings, model = situation.facts.settings, situation.model
    if model is not None and model.host_bytes > 0:
        need, there = size(model.host_bytes), size(model.host_usable_bytes)
        return (f"computed: offloading and processes need {need} of host memory a node, {there} are there",)
    if not settings.num_parameters:
        return ()
    least, most = (settings.num_parameters * factor for factor in (_OFFLOAD_BYTES_LEAST, _OFFLOAD_BYTES_MOST))
    return (
        f"{settings.num_parameters:,} parameters offloaded to the CPU take {size(least)} to "
        f"{size(most)} there (12 to 16 bytes each), "
        "pinned copies on top",
    )


def _moment_words(situation: Situation) -> tuple[str, ...]:
    phase, model = situation.event.phase, situation.model
    if phase is RunPhase.CHECKPOINT_LOAD or (situation.said(Hint.RESUMES) and situation.said(Hint.SCRATCH_FITS)):
        return (
            "it happened while a checkpoint was loaded: the file's content stands beside the live states for a while",
        )
    if phase is RunPhase.CHECKPOINT_SAVE:
        return ("it happened while a checkpoint was saved: gathered states stand beside the live ones",)
    if phase is RunPhase.BUILD_MODEL:
        if model is not None and model.num_parameters:
            need = model.num_parameters * 2 * model.world_size
            return (
                "it happened while the model was loaded: a whole 16-bit copy on each of "
                f"{model.world_size} ranks is {size(need)}",
            )
        return ("it happened while the model was loaded: every rank reads a whole copy unless it is built sharded",)
    if phase is RunPhase.BUILD_ENGINE:
        return ("it happened while optimizer states were being made",)
    return ()


def decide_other(situation: Situation) -> Verdict:
    """The verdict on a failure that is not one of memory."""
    event = situation.event
    if "CUDA error" in event.text and pins_memory(situation):
        return pinned(situation)
    nonsense = [other for other in situation.facts.events if other.kind is EventKind.NONSENSE_SIZE]
    evidence = [f"the first failure is {_what(situation)}: {_text(situation)}"]
    if nonsense:
        evidence.append(
            "the out-of-memory message asks for a size that no device has: it is garbage after the failed collective"
        )
    killed = [other for other in situation.facts.events if other.kind is EventKind.KILLED]
    if killed:
        evidence.append("processes were killed after it, as a launcher does with the ranks that are left")
    confidence = 0.85 if event.kind is EventKind.COLLECTIVE or nonsense else 0.75
    return situation.verdict(Cause.NOT_OOM, confidence, *evidence)


def _what(situation: Situation) -> str:
    if situation.event.kind is EventKind.COLLECTIVE:
        return "in communication"
    if situation.event.kind is EventKind.NONSENSE_SIZE:
        return "a size that cannot be"
    return "of another kind"


def _request(situation: Situation) -> str:
    request = situation.event.figures.requested
    if request is None:
        return "more memory"
    return size(request) if request < 1 << 50 else "an impossible amount"


def _text(situation: Situation) -> str:
    return repr(shortened(situation.event.text))
