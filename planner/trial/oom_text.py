"""What programs say when memory runs out or a peer is gone, and the figures in it. Pure text.

Owns the phrases of PyTorch 1.13 to 2.13, glibc, CUDA's libraries, NCCL and gloo. Leaves what they mean for a trial to
`classify`.
"""

from __future__ import annotations

import re

from planner.spec._record import record

_UNITS = {"bytes": 1, "byte": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "EB": 10**18}
_SIZE = r"(\d+(?:\.\d+)?)\s*(bytes?|[KMGT]iB|EB)"

_DEVICE_PHRASES = (
    "CUDA error: out of memory",
    "HIP error: out of memory",
    "CUDA driver error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUSOLVER_STATUS_ALLOC_FAILED",
    "cudaErrorMemoryAllocation",
)
_ALLOCATOR = re.compile(r"\b(?:CUDA|HIP|XPU|NPU|MPS|MUSA) out of memory")
_NCCL_MEMORY = re.compile(r"Cuda failure (?:\d+ )?'out of memory'")
_PINNED_PHRASES = ("cudaHostAlloc", "cudaHostRegister", "CachingHostAllocator", "pin_memory")
_HOST_PHRASES = (
    "DefaultCPUAllocator",
    "std::bad_alloc",
    "Cannot allocate memory",
    "cannot allocate memory for thread-local data",  # glibc's loader, which then exits with 127
    "can't start new thread",
    "Resource temporarily unavailable",  # a thread's stack could not be had
    "Unable to allocate",  # numpy
    "could not create a memory",  # oneDNN
)
_PEER_PHRASES = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Connection refused",
    "Broken pipe",
    "connection was reset",
    "ncclRemoteError",
    "remote process exited or there was a network error",
    "NCCL communicator was aborted",
    "Socket Timeout",
    "wait timeout after",
    "Gloo connectFullMesh failed",
    "recvValue failed",
    "sendBytes failed",
    "failed to recv, got 0 bytes",
)


@record
class CudaOutOfMemory:
    """The figures of PyTorch's message; 0 where it does not give one. `limit_bytes`: the per-process fraction's."""

    requested_bytes: int
    total_bytes: int
    free_bytes: int
    in_use_bytes: int  # by this process, context included
    allocated_bytes: int
    cached_bytes: int  # reserved but not allocated
    limit_bytes: int

    @property
    def capacity_bytes(self) -> int:
        """What this process can have at most: its limit, else what it has and what is free, else the device's total.

        Older messages do not say how much the process has; then other processes are not told from it.
        """
        own = self.free_bytes + self.in_use_bytes if self.in_use_bytes else self.total_bytes
        candidates = [size for size in (own, self.limit_bytes) if size]
        return min(candidates, default=0)


def parse_cuda_out_of_memory(text: str) -> CudaOutOfMemory | None:
    """The figures of a `CUDA out of memory. Tried to allocate …` message of any PyTorch since 1.6; None for others."""
    if not _ALLOCATOR.search(text) or "Tried to allocate" not in text:
        return None
    allocated = _size(rf"Of the allocated memory {_SIZE} is allocated", text) or _size(
        rf"{_SIZE} already allocated", text
    )
    reserved = _size(rf"{_SIZE} (?:reserved in total|cached)", text)
    return CudaOutOfMemory(
        requested_bytes=_size(rf"Tried to allocate (?:more than )?{_SIZE}", text),
        total_bytes=_size(rf"total capaci?ty of {_SIZE}", text) or _size(rf"{_SIZE} total capacity", text),
        free_bytes=_size(rf"of which {_SIZE} is free", text) or _size(rf"{_SIZE} free", text),
        in_use_bytes=_size(rf"this process has {_SIZE} memory in use", text),
        allocated_bytes=allocated,
        cached_bytes=_size(rf"{_SIZE} is reserved by PyTorch but unallocated", text) or max(0, reserved - allocated),
        limit_bytes=_size(rf"{_SIZE} allowed", text),
    )


def requested_of_cpu_allocator(text: str) -> int:
    """Bytes asked of PyTorch's CPU allocator or of numpy when they failed; 0 when the text does not say."""
    return _size(rf"tried to allocate {_SIZE}", text) or _size(rf"Unable to allocate {_SIZE}", text)


def says_device_memory_ran_out(text: str) -> bool:
    """Whether the text is that of an accelerator without memory; pinned host memory is the host's."""
    if any(phrase in text for phrase in _PINNED_PHRASES):
        return False
    return any(phrase in text for phrase in _DEVICE_PHRASES) or bool(
        _ALLOCATOR.search(text) or _NCCL_MEMORY.search(text)
    )


def says_host_memory_ran_out(text: str) -> bool:
    """Whether the text is that of a host allocator that was refused."""
    pinned = any(phrase in text for phrase in _PINNED_PHRASES) and "out of memory" in text
    return pinned or any(phrase in text for phrase in _HOST_PHRASES)


def says_peer_was_lost(text: str) -> bool:
    """Whether the text is that of a collective whose other side is gone: collateral damage, never the first cause."""
    return any(phrase in text for phrase in _PEER_PHRASES)


def _size(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    return round(float(found[1]) * _UNITS[found[2]]) if found else 0
