"""Who is on the device: several ranks of one job, or processes of others; from messages and from pasted tables.
Pure."""

from __future__ import annotations

from collections import defaultdict

from planner.diagnose.arithmetic import GIB, Shares, strangers
from planner.diagnose.causes import Cause
from planner.diagnose.records import EventKind, Hint, LogFacts, ProcessMemory, Verdict
from planner.diagnose.situation import Situation
from planner.diagnose.words import shortened, size

_CONTEXT_ALONE_BYTES = 2 * GIB  # a process with so little has hardly more than its context there
_NEARLY_FULL, _HALF_EMPTY = 0.85, 0.75
_ALIKE_RATIO = 1.35  # ranks of one job hold about the same


def rank_placement(situation: Situation, shares: Shares) -> Verdict | None:
    """Several processes of this job on one device. Any of:

    - processes named in the message belong to the log's own ranks;
    - at least two (three without signs of several ranks) others hold about the same, or each little more than a
    context;
    - several ranks report the same device, and others hold memory on it.
    """
    event, facts = situation.event, situation.facts
    others = list(strangers(event, many_ranks=situation.many_ranks))
    own_pids = {other.pid for other in facts.events if other.pid}
    relatives = [other for other in others if other.pid in own_pids]
    least = 2 if situation.many_ranks else 3
    if relatives:
        words = f"process {relatives[0].pid} on this device is another rank of this job"
        return situation.verdict(Cause.RANK_PLACEMENT, 0.85, words, _others_words(others))
    if len(others) >= least and _are_alike(others):
        return situation.verdict(
            Cause.RANK_PLACEMENT,
            0.8,
            f"{len(others)} other processes on GPU {event.gpu if event.gpu is not None else '?'} hold about the same "
            f"({size(min(o.memory_bytes or 0 for o in others))} to "
            f"{size(max(o.memory_bytes or 0 for o in others))} each): "
            "ranks of one job, each with a context there",
            _others_words(others),
        )
    return _one_device_for_all(situation, shares) or _said_to_share(situation)


def _said_to_share(situation: Situation) -> Verdict | None:
    seen = next((hint for hint in situation.facts.hints if hint.hint is Hint.SHARED_DEVICE), None)
    if seen is None:
        return None
    return situation.verdict(Cause.RANK_PLACEMENT, 0.65, f"it is said: {shortened(seen.text)!r}")


def _one_device_for_all(situation: Situation, shares: Shares) -> Verdict | None:
    """Ranks 0 and above all fail on one device that holds more than the failing rank's own memory."""
    event = situation.event
    seen = {
        (other.rank, other.gpu)
        for other in situation.facts.events
        if other.kind is EventKind.DEVICE_ALLOCATOR and other.rank is not None and other.gpu is not None
    }
    ranks = {rank for rank, _ in seen}
    devices = {gpu for _, gpu in seen}
    crowded = bool(shares.foreign and shares.total and shares.foreign >= 0.1 * shares.total)
    if len(ranks) < 2 or len(devices) != 1 or not crowded or event.gpu is None:
        return None
    return situation.verdict(
        Cause.RANK_PLACEMENT,
        0.75,
        f"ranks {', '.join(map(str, sorted(ranks)[:8]))} all failed on GPU {event.gpu}, which "
        f"holds {size(shares.foreign or 0)} of "
        "other processes: the ranks share one device",
    )


def _are_alike(others: list[ProcessMemory]) -> bool:
    sizes = [other.memory_bytes or 0 for other in others]
    return max(sizes) <= _ALIKE_RATIO * min(sizes) or max(sizes) <= _CONTEXT_ALONE_BYTES


def _others_words(others: list[ProcessMemory]) -> str:
    return f"together they take {size(sum(other.memory_bytes or 0 for other in others))}"


def placement_in_tables(facts: LogFacts) -> Verdict | None:
    """A pasted nvidia-smi: the same process ids on several devices are this job's ranks, not strangers."""
    devices: dict[int, set[int]] = defaultdict(set)
    for process in facts.processes:
        if process.gpu is not None and process.pid:
            devices[process.pid].add(process.gpu)
    spread = {pid: gpus for pid, gpus in devices.items() if len(gpus) > 1}
    if not spread:
        return None
    shared = sorted({gpu for gpus in spread.values() for gpu in gpus}, key=lambda gpu: -_users(facts, gpu))[0]
    there = sorted((p for p in facts.processes if p.gpu == shared), key=lambda p: -(p.memory_bytes or 0))
    taken = sum(p.memory_bytes or 0 for p in there[1:])
    shown = ", ".join(map(str, sorted(spread)[:4]))
    return Verdict(
        cause=Cause.RANK_PLACEMENT,
        confidence=0.88,
        evidence=(
            f"process {shown} is on {len(next(iter(spread.values())))} devices at once: the same job, not a stranger",
            f"on GPU {shared} {len(there) - 1} processes beside its own rank take {size(taken)}",
        ),
    )


def _users(facts: LogFacts, gpu: int) -> int:
    return sum(process.gpu == gpu for process in facts.processes)


def imbalance_in_tables(facts: LogFacts) -> Verdict | None:
    """The first device full, the others half empty: everything is gathered or loaded there (DataParallel, `cuda:0`)."""
    uses = facts.device_use
    if len(uses) < 2 or not all(total for _, total in uses):
        return None
    first, rest = uses[0], uses[1:]
    fullest = max(taken for taken, _ in rest)
    if first[0] < _NEARLY_FULL * first[1] or not 0 < fullest <= _HALF_EMPTY * first[0]:
        return None
    return Verdict(
        cause=Cause.RANK_PLACEMENT,
        confidence=0.6,
        evidence=(
            f"device 0 holds {size(first[0])} of {size(first[1])}, no other more than "
            f"{size(fullest)}: what belongs to all "
            "is gathered or loaded on the first",
        ),
    )


def strangers_in_tables(facts: LogFacts) -> Verdict | None:
    """Memory taken on a device with no process of this run to show for it: another job, or what a dead one left."""
    used = [
        (taken, total) for taken, total in facts.device_use if total and taken >= 0.05 * total and taken >= GIB // 2
    ]
    listed = [process for process in facts.processes if process.memory_bytes]
    if not used and not listed:
        return None
    held = max([taken for taken, _ in used], default=0) or max(process.memory_bytes or 0 for process in listed)
    evidence = [f"{size(held)} are taken on the device" + (f" of {size(max(t for _, t in used))}" if used else "")]
    confidence = 0.55
    if facts.has(Hint.ZOMBIE):
        confidence = 0.85
        evidence.append("the process that is shown does not exist here (or any more): a zombie, or another container's")
    elif listed:
        evidence.append(
            f"process {listed[0].pid} {listed[0].name} holds {size(listed[0].memory_bytes or 0)}".replace("  ", " ")
        )
    return Verdict(cause=Cause.OTHER_PROCESS, confidence=confidence, evidence=tuple(evidence))
