"""What the worker asks of the operating system for itself and its ranks: dying together, order of sacrifice, limits.

Owns the Linux calls; where a system lacks one (no /proc, no prctl), the worker still runs, and the planner's own
watching has to do. Leaves deciding when to end a process to `worker_trial`.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import signal
import sys
from pathlib import Path

import psutil

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_PR_SET_CHILD_SUBREAPER = 36
_SWEEPS = 10  # an orphan that is ended may leave orphans of its own
_RANK_OOM_SCORE = 800  # of 1000: under memory pressure the kernel takes a rank before the planner or the worker

_PTHREAD_ATTR_BYTES = 256  # more than sizeof(pthread_attr_t) on any architecture (56 on x86-64)
_SMALL_STACK_BYTES = 1 << 20


def die_with_parent(parent_pid: int, signal_number: signal.Signals) -> None:
    """Have the kernel send this process a signal when its parent ends; ends at once when it already has.

    The kernel means the parent's thread that started this process, so that thread has to live as long as its children.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal_number), 0, 0, 0)
    if os.getppid() != parent_pid:  # Keep: the parent may have died before the call above
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of whatever a rank leaves behind, so that a program which a script put into a session of its
    own, out of reach of its process group, can be ended with the trial."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_orphans() -> None:
    """End and reap every child of this process. For the worker between two trials, when none of them is a rank."""
    for _ in range(_SWEEPS):
        left = psutil.Process().children(recursive=True)
        if not left:
            return
        for orphan in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                orphan.kill()
        psutil.wait_procs(left, timeout=1.0)


def offer_to_the_kernel_first() -> None:
    """When the host runs out of memory, let it be this rank that goes; anyone may raise their own score."""
    score = Path("/proc/self/oom_score_adj")
    try:
        score.write_text(str(max(_RANK_OOM_SCORE, int(score.read_text()))))
    except OSError as problem:  # no such file, or /proc is read-only: the kernel then picks by size alone
        print(f"[rank] not offered to the kernel's out-of-memory killer: {problem}", file=sys.stderr)


def leave_no_core_dump() -> None:
    """A crash of a process that holds gigabytes must be noticed now, not after its memory was written to disk."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def status_bytes(*names: str) -> tuple[int, ...]:
    """Figures of /proc/self/status (`VmRSS`, `VmHWM`, `RssAnon`, `VmData`, …) in bytes; 0 for one that is not there."""
    path = Path("/proc/self/status")
    lines = path.read_text().splitlines() if path.exists() else []
    found = {key: rest.split() for key, _, rest in (line.partition(":") for line in lines)}
    return tuple(int(found[name][0]) * 1024 if name in found else 0 for name in names)


def limit_data_segment(limit_bytes: int) -> None:
    """Let this process allocate at most so much more than it holds now; beyond it, allocating fails as on a full host.

    RLIMIT_DATA counts private writable memory since Linux 4.7, by address space: memory asked for, not memory touched.
    So threads that are still to come get small stacks, or each would take 8 MiB of the limit and touch a few pages.
    """
    _shrink_stacks_of_new_threads()
    (held_bytes,) = status_bytes("VmData")
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (held_bytes + limit_bytes, hard))


def _shrink_stacks_of_new_threads() -> None:
    library = ctypes.CDLL(None)
    if hasattr(library, "pthread_attr_setdefault_np"):  # glibc
        attributes = ctypes.create_string_buffer(_PTHREAD_ATTR_BYTES)
        library.pthread_attr_init(attributes)
        library.pthread_attr_setstacksize(attributes, ctypes.c_size_t(_SMALL_STACK_BYTES))
        library.pthread_attr_setdefault_np(attributes)


def lift_data_limit() -> None:
    """Undo `limit_data_segment`, so that a rank that ran out of memory can still say so."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def native_threads() -> tuple[str, ...]:
    """Names of the threads that libraries started beside the main one; empty where the system cannot say."""
    tasks = Path("/proc/self/task")
    if not tasks.exists():
        return ()
    others = [task for task in tasks.iterdir() if int(task.name) != os.getpid()]
    return tuple(sorted((task / "comm").read_text().strip() for task in others))


def settle_memory() -> None:
    """Before a fork: collect garbage once, keep the collector off the shared pages, hand free heap back.

    Otherwise every child's collector would copy the parent's pages, and a child's first allocations would be served
    from free heap it inherited and not be seen as its own.
    """
    gc.collect()
    gc.freeze()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    if trim is not None:
        trim(0)
