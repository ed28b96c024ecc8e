"""The arithmetic on one message's figures: what is whose, what is idle, what is missing. Pure.

Symbols (bytes): T total, F free, A live tensors (allocated), U idle in the allocator's cache (reserved but
unallocated), R = A + U, P in use by this process (context included), r the request, L the limit on this process.

    unaccounted  X = T - F - R          what is on the device and not this process's allocator
    own          C = P - R              context and libraries of this process, where P is believed
    foreign      O = T - F - P          other processes, where P is believed;
                 O = max(0, X - C0)     else, with C0 the context allowance below
    idle room    F + U                  what a perfect allocator could still give

P is believed when it is at least R (a driver that cannot see processes reports 0) and at most T. In a container the
driver's process ids are the host's, so a message may name this very process as another: where P is missing, the named
process whose memory is R with a context on top is taken as this one.
"""

from __future__ import annotations

from planner.diagnose.records import EventKind, Figures, MemoryEvent, ProcessMemory
from planner.spec._record import record

GIB = 2**30
MIB = 2**20

# A CUDA context with its loaded kernels takes 0.3 to 0.9 GiB; with NCCL 1.7 GiB were seen on an H200. Small cards get
# small contexts, so the allowance is capped by a share of the device.
CONTEXT_BYTES, CONTEXT_WITH_NCCL_BYTES, CONTEXT_FRACTION = 1.25 * GIB, 2.2 * GIB, 0.25
_LEAST_OWN_BYTES = GIB  # with less reserved, any context could be taken for this process
# Windows' display driver model (WSL included) keeps memory back for the desktop and reports "0 bytes free" of a whole
# number of GiB; what is unaccounted there is rarely a process that could be ended.
WDDM_FRACTION, WDDM_ROUND_BYTES = 0.22, 24 * MIB


@record
class Shares:
    """Whose memory is where, in bytes; None where the message is too short to say."""

    total: int | None
    free: int | None
    live: int | None
    idle: int | None
    request: int | None
    own_outside: int | None  # C
    foreign: int | None  # O
    is_exact: bool  # the message told P or named the processes, so that `foreign` needs no allowance
    context_allowance: int
    missing: int | None  # r - F

    @property
    def idle_room(self) -> int | None:
        """F + U."""
        return None if self.idle is None else (self.free or 0) + self.idle


def shares_of(event: MemoryEvent, *, many_ranks: bool) -> Shares:
    """The division of the device that the event's figures tell."""
    f = event.figures
    free = f.free if f.free is not None else _implied_free(f, many_ranks=many_ranks)
    allowance = context_allowance(f, many_ranks=many_ranks)
    reserved = f.reserved
    itself = itself_among(event, many_ranks=many_ranks)
    in_use = itself.memory_bytes if itself is not None else _believed(f)
    listed = sum(process.memory_bytes or 0 for process in strangers(event, many_ranks=many_ranks))
    foreign: int | None = None
    if f.total is not None and free is not None and f.free is not None:
        if in_use is not None:
            foreign = max(0, f.total - free - in_use)
        elif reserved is not None:
            foreign = max(0, f.total - free - reserved - allowance)
    exact = in_use is not None or listed > 0
    if listed and (foreign is None or listed > foreign or in_use is None):
        foreign = listed
    return Shares(
        total=f.total,
        free=f.free,
        live=f.allocated,
        idle=f.unallocated,
        request=f.requested,
        own_outside=in_use - reserved if in_use is not None and reserved is not None else None,
        foreign=foreign,
        is_exact=exact,
        context_allowance=allowance,
        missing=f.requested - f.free if f.requested is not None and f.free is not None else None,
    )


def itself_among(event: MemoryEvent, *, many_ranks: bool) -> ProcessMemory | None:
    """The process among those named that is the failing one under another id: R <= its memory <= R + C0 + 2 % of T."""
    f, reserved = event.figures, event.figures.reserved
    if _believed(f) is not None or reserved is None or reserved < _LEAST_OWN_BYTES:
        return None
    most = reserved + context_allowance(f, many_ranks=many_ranks) + 0.02 * (f.total or 0)
    near = [other for other in event.others if other.memory_bytes and 0.98 * reserved <= other.memory_bytes <= most]
    return min(near, key=lambda other: other.memory_bytes or 0, default=None)


def strangers(event: MemoryEvent, *, many_ranks: bool) -> tuple[ProcessMemory, ...]:
    """The other processes that the message names, without the failing one itself."""
    itself = itself_among(event, many_ranks=many_ranks)
    return tuple(other for other in event.others if other is not itself and other.memory_bytes)


def context_allowance(figures: Figures, *, many_ranks: bool) -> int:
    """C0: what this process's context may take beside its allocator, before somebody else is suspected."""
    allowance = CONTEXT_WITH_NCCL_BYTES if many_ranks else CONTEXT_BYTES
    if figures.total is None:
        return round(allowance)
    if is_wddm(figures):
        return round(max(allowance, WDDM_FRACTION * figures.total))
    return round(min(allowance, CONTEXT_FRACTION * figures.total))


def is_wddm(figures: Figures) -> bool:
    """Windows' way of reporting: nothing free, and a total that is a whole number of GiB."""
    if figures.total is None or figures.free != 0:
        return False
    rest = figures.total % GIB
    return min(rest, GIB - rest) <= WDDM_ROUND_BYTES


def implied_free(event: MemoryEvent, *, many_ranks: bool) -> int | None:
    """What must be free by the other figures, for messages that do not say: T - R - C0."""
    return _implied_free(event.figures, many_ranks=many_ranks)


def _implied_free(figures: Figures, *, many_ranks: bool) -> int | None:
    if figures.total is None or figures.reserved is None:
        return None
    return max(0, figures.total - figures.reserved - context_allowance(figures, many_ranks=many_ranks))


def _believed(figures: Figures) -> int | None:
    in_use, reserved = figures.in_use, figures.reserved
    if in_use is None or reserved is None or in_use < 0.98 * reserved:
        return None
    return in_use if figures.total is None or in_use <= figures.total else None


def has_figures(event: MemoryEvent) -> bool:
    """Whether the event is an accelerator's message with numbers to reckon with."""
    return event.kind is EventKind.DEVICE_ALLOCATOR and event.figures.requested is not None
