"""What a log is searched for before any line of it is read: fixed byte strings, found at gigabytes a second.

Two things make the search fast whatever the number of needles. Lines of a log repeat but for their numbers, so the
needles are looked for in the distinct lines only, digits taken out (`distinct_lines`). And needles that share a part
are skipped together when that part is absent. No needle therefore has digits, points or colons beside digits in it.
"""

from __future__ import annotations

from collections.abc import Iterator

# Lines with one of these may report a failure, by a part that all needles of the group have in common. Case matters.
_FAILURE_GROUPS: tuple[tuple[bytes, tuple[bytes, ...]], ...] = (
    (
        b"emory",
        (
            b"out of memory",
            b"Out of memory",
            b"OutOfMemory",
            b"Out Of Memory",
            b"out of device memory",
            b"exceed allowed memory",
            b"cudaErrorMemoryAllocation",
            b"MemoryError",
            b"annot allocate memory",
            b"can't allocate memory",
            b"memory allocation of",
            b"not enough memory",
            b"shared memory",
            b"memory limit",
        ),
    ),
    (
        b"lloc",
        (
            b"ried to allocate",
            b"OOM when allocating",
            b"CUDACachingAllocator",
            b"bad_alloc",
            b"Unable to allocate",
            b"cudaHostAlloc",
            b"hipHostMalloc",
            b"Failed to allocate memory",
            b"alloc device memory failed",
            b"Allocation failed",
        ),
    ),
    (b"ALLOC", (b"ALLOC_FAILED", b"ALLOCATION_FAILED")),
    (b"OUT_OF_", (b"OUT_OF_",)),
    (b"illed", (b"Killed", b": killed", b"killed by signal", b"killed due to")),
    (b"oom", (b"oom-kill", b"oom_kill", b"oom_reaper")),
    (b"OOM", (b"OOM Killed", b"OOMKilled", b" OOM ")),
    (b"SIG", (b"SIGKILL", b"SIGBUS")),
    (
        b"xit",
        (
            b"exits with return code",
            b"exitcode",
            b"exit code",
            b"Exit Code",
            b"exited with code",
            b"exit status",
            b"exited on signal",
            b"exit_code",
            b"exit_status",
            b"exit:",
            b'exit":',
        ),
    ),
    (b"return", (b"return code = ", b"returncode", b"return_code")),
    (b"uda", (b"Cuda failure", b"unhandled cuda error", b"UnhandledCudaError", b"cudaHostRegister")),
    (b"memory access", (b"illegal memory access",)),
)
_SINGLE_FAILURES: tuple[bytes, ...] = (
    b"CUDA out of",  # terminals and rich break lines anywhere
    b"RESOURCE_EXHAUSTED",
    b"Failed to CUDA",
    b"Malloc",
    b"synNoMemory",
    b"_NOT_INITIALIZED",
    b"valid cuDNN algorithm",
    b"unable to find an engine",
    b"Invalid buffer size",
    b"block with size larger than",
    b"unable to mmap",
    b"paging file is too small",
    b"can't start new thread",
    b"us error",  # Bus error, bus error
    b"/dev/shm/",
    b"No space left on device",
    b"collective operation",
    b"Segmentation fault",
    b"device-side assert",
    b"invalid device ordinal",
    b"DUE TO TIME LIMIT",
    b"DUE TO PREEMPTION",
)
TRACEBACKS: tuple[bytes, ...] = (b"Traceback (most recent call last)",)
TABLES: tuple[bytes, ...] = (b"MiB |", b" MB |", b"used_gpu_memory", b"used_memory")
# Counters of memory over time: a few lines of every chunk are read.
SAMPLES: tuple[bytes, ...] = (b"mem", b"Mem", b"llocated", b"Max_MA", b"rss", b"VRAM")
HOST_SAMPLES: tuple[bytes, ...] = (b"CPU Virtual Memory",)

FAILURES: tuple[bytes, ...] = tuple(
    dict.fromkeys((*(needle for _, group in _FAILURE_GROUPS for needle in group), *_SINGLE_FAILURES))
)
_DIGITS = b"0123456789."


def distinct_lines(data: bytes) -> bytes:
    """The different lines of this text, each once, without digits: what healthy repetition leaves of megabytes."""
    return b"\n".join(set(data.translate(None, _DIGITS).split(b"\n")))


def failures_in(distinct: bytes) -> Iterator[bytes]:
    """The failure needles that stand in the distinct lines."""
    for part, group in _FAILURE_GROUPS:
        if part in distinct:
            yield from (needle for needle in group if needle in distinct)
    yield from (needle for needle in _SINGLE_FAILURES if needle in distinct)
