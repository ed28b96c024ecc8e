"""Who held a device's memory at its peak, from a PyTorch memory snapshot. Pure, over plain values.

The snapshot holds the allocator's segments at the moment of the dump and, when history was recorded, every allocation
and release before. Walking that history backwards from the final state gives the live memory at every moment; the peak
is where it was largest. Blocks are grouped by the innermost frame that is not the framework's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from planner.diagnose.records import EventKind, Figures, Frame, MemoryEvent
from planner.diagnose.traceback_text import own_frame, phase_of
from planner.errors import InputError
from planner.spec._record import record

MAX_FRAMES = 64
MAX_HOLDERS = 20
_FRAMEWORK = ("site-packages/torch/", "dist-packages/torch/", "/torch/csrc/", "??")
_MAX_NAME = 200


@record
class Holder:
    """What one place in the code held at the peak."""

    place: str  # file:line in function
    size_bytes: int
    num_blocks: int
    phase: str


@record
class DevicePeak:
    """One device. `has_history` False: the state at the dump, since nothing was recorded before."""

    device: int
    peak_bytes: int
    allocated_bytes: int  # at the dump
    reserved_bytes: int  # at the dump
    largest_idle_block_bytes: int
    private_pool_bytes: int
    has_history: bool
    holders: tuple[Holder, ...]
    unattributed_bytes: int  # held at the peak by blocks without frames
    out_of_memory: MemoryEvent | None = None


def read_snapshot(value: Any, *, label: str) -> tuple[DevicePeak, ...]:
    """The peak of each device that holds or held anything. InputError when the value is not a snapshot's."""
    if not isinstance(value, Mapping) or not isinstance(value.get("segments"), list):
        raise InputError(
            f"{label} is not a memory snapshot",
            why="it holds no list of segments",
            fix="give the file that torch.cuda.memory._dump_snapshot(path) wrote",
        )
    segments = [segment for segment in value["segments"] if isinstance(segment, Mapping)]
    traces = value.get("device_traces")
    traces = traces if isinstance(traces, list) else []
    devices = sorted(
        {_int(segment.get("device")) for segment in segments} | {place for place, trace in enumerate(traces) if trace}
    )
    peaks = [
        _device_peak(
            device,
            [segment for segment in segments if _int(segment.get("device")) == device],
            traces[device] if device < len(traces) and isinstance(traces[device], list) else [],
            label=label,
        )
        for device in devices[:64]
    ]
    return tuple(peaks)


@record
class _Block:
    size: int
    frames: tuple[Frame, ...]


def _device_peak(device: int, segments: list[Mapping[str, Any]], trace: list[Any], *, label: str) -> DevicePeak:
    live: dict[int, _Block] = {}
    largest_idle = 0
    for block in _blocks(segments):
        size = _int(block.get("size"))
        if str(block.get("state", "")).startswith("active"):
            live[_int(block.get("address"))] = _Block(
                size=_int(block.get("requested_size")) or size, frames=_frames(block)
            )
        else:
            largest_idle = max(largest_idle, size)
    entries = [entry for entry in trace if isinstance(entry, Mapping)]
    peak_at, peak_bytes = _peak(sum(block.size for block in live.values()), entries)
    at_peak = _live_at(live, entries, peak_at)
    reserved = sum(_int(segment.get("total_size")) for segment in segments)
    allocated = sum(block.size for block in live.values())
    holders, unattributed = _holders(at_peak)
    return DevicePeak(
        device=device,
        peak_bytes=peak_bytes,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        largest_idle_block_bytes=largest_idle,
        private_pool_bytes=sum(_int(s.get("total_size")) for s in segments if _is_private(s)),
        has_history=bool(entries),
        holders=holders,
        unattributed_bytes=unattributed,
        out_of_memory=_out_of_memory(entries, device=device, allocated=allocated, reserved=reserved, label=label),
    )


def _peak(final_bytes: int, entries: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """`(number of entries before the peak, bytes then)`: live memory before entry i is that after it, undone."""
    level, best_at, best = final_bytes, len(entries), final_bytes
    for place in range(len(entries) - 1, -1, -1):
        entry = entries[place]
        action = entry.get("action")
        if action == "alloc":
            level -= _int(entry.get("size"))
        elif action == "free_completed":
            level += _int(entry.get("size"))
        if level > best:
            best_at, best = place, level
    return best_at, best


def _live_at(live: dict[int, _Block], entries: Sequence[Mapping[str, Any]], moment: int) -> tuple[_Block, ...]:
    """The blocks that were live after the first `moment` entries."""
    blocks = dict(live)
    born = _births(entries)
    for place in range(len(entries) - 1, moment - 1, -1):
        entry = entries[place]
        address = _int(entry.get("addr"))
        if entry.get("action") == "alloc":
            blocks.pop(address, None)
        elif entry.get("action") == "free_completed":
            # A release carries the frames of the release; the block's own are those of its allocation.
            birth = born.get(place)
            frames = _frames(entries[birth]) if birth is not None else ()
            blocks[address] = _Block(size=_int(entry.get("size")), frames=frames)
    return tuple(blocks.values())


def _births(entries: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    """For each release, the allocation that it ends."""
    born: dict[int, int] = {}
    open_at: dict[int, int] = {}
    for place, entry in enumerate(entries):
        address = _int(entry.get("addr"))
        if entry.get("action") == "alloc":
            open_at[address] = place
        elif entry.get("action") == "free_completed" and address in open_at:
            born[place] = open_at.pop(address)
    return born


def _holders(blocks: tuple[_Block, ...]) -> tuple[tuple[Holder, ...], int]:
    """The places that held most, and what no place can be named for."""
    sizes: dict[tuple[str, str], list[int]] = {}
    unattributed = 0
    for block in blocks:
        if not block.frames:
            unattributed += block.size
            continue
        innermost_last = tuple(reversed(block.frames))  # a snapshot lists the innermost frame first
        own = own_frame(innermost_last) or innermost_last[-1]
        phase = phase_of(innermost_last).value
        sizes.setdefault((f"{own.file}:{own.line} in {own.function}"[:_MAX_NAME], phase), []).append(block.size)
    ranked = sorted(sizes.items(), key=lambda item: -sum(item[1]))
    holders = tuple(
        Holder(place=place, size_bytes=sum(held), num_blocks=len(held), phase=phase)
        for (place, phase), held in ranked[:MAX_HOLDERS]
    )
    return holders, unattributed


def _out_of_memory(
    entries: Sequence[Mapping[str, Any]], *, device: int, allocated: int, reserved: int, label: str
) -> MemoryEvent | None:
    """The last refusal that the history holds, as an event with figures."""
    for place in range(len(entries) - 1, -1, -1):
        entry = entries[place]
        if entry.get("action") != "oom":
            continue
        frames = tuple(reversed(_frames(entry)))
        own = own_frame(frames)
        requested, free = _int(entry.get("size")), _int(entry.get("device_free"))
        return MemoryEvent(
            kind=EventKind.DEVICE_ALLOCATOR,
            text=f"the allocator was refused {requested} bytes with {free} bytes free on the device",
            backend="cuda",
            figures=Figures(
                requested=requested, free=free, allocated=allocated, unallocated=max(0, reserved - allocated)
            ),
            gpu=device,
            phase=phase_of(frames),
            file=own.file if own else "",
            line=own.line if own else None,
            function=own.function if own else "",
            frames=frames,
            source=label,
            log_line=place,
        )
    return None


def _blocks(segments: list[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for segment in segments:
        blocks = segment.get("blocks")
        if isinstance(blocks, list):
            yield from (block for block in blocks if isinstance(block, Mapping))


def _frames(holder: Mapping[str, Any]) -> tuple[Frame, ...]:
    """The frames of a block or an entry, innermost first, bounded. Old snapshots keep them in a block's history."""
    frames = holder.get("frames")
    if not isinstance(frames, list):
        history = holder.get("history")
        first = history[0] if isinstance(history, list) and history and isinstance(history[0], Mapping) else {}
        frames = first.get("frames")
    if not isinstance(frames, list):
        return ()
    kept = []
    for frame in islice(frames, MAX_FRAMES):
        if isinstance(frame, Mapping):
            file, name = str(frame.get("filename", ""))[:400], str(frame.get("name", ""))[:_MAX_NAME]
            if file and not file.startswith("??"):
                kept.append(Frame(file=file, line=_int(frame.get("line")), function=name))
    return tuple(kept)


def _is_private(segment: Mapping[str, Any]) -> bool:
    pool = segment.get("segment_pool_id")
    return isinstance(pool, tuple | list) and any(_int(part) for part in pool)


def _int(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63 else 0
