"""What accelerators' allocators say when they have no more, of every wording since PyTorch 0.4, to figures. Pure text.

Owns the device side: PyTorch's CUDA, HIP, XPU, NPU and MPS messages, the cudaMallocAsync block, CUDA's own errors,
cuBLAS, cuDNN, NCCL, bitsandbytes, TensorFlow and JAX. Host memory is `host_text`'s; what numbers mean is `figures`'.
"""

from __future__ import annotations

import re

from planner.diagnose.records import EventKind, Figures, ProcessMemory
from planner.diagnose.sizes import compiled as sized
from planner.diagnose.sizes import find_size, size_bytes
from planner.spec._record import record

# The words by which a caching allocator (or another framework's) introduces its message.
_ALLOCATOR = re.compile(
    r"\b(?P<backend>CUDA|HIP|XPU|NPU|MPS backend|MUSA|HPU|MLU|GCU|DCU|PPU) out of memory\b"
    r"|(?P<asynchronous>Allocation on device (?P<device>\d*)\s*would exceed allowed memory)"
    r"|(?P<bfc>Allocator \((?P<pool>\w+)_bfc\) ran out of memory)"
    r"|(?P<tensorflow>OOM when allocating tensor)"
    r"|(?P<ascend>EL0004: Failed to allocate memory|(?:aclrt|rt)Malloc.{0,60}[Ff]ail|alloc device memory failed)"
    r"|(?P<habana>synNoMemory|Allocation failed for size ?:)"
    r"|(?P<jax>RESOURCE_EXHAUSTED: (?:XLA:TPU compile permanent error\. )?(?:Out of memory"
    r"|Ran out of memory|Failed to allocate))"
    r"|(?P<level_zero>Allocation is out of device memory|UR_RESULT_ERROR_OUT_OF_(?:DEVICE_MEMORY|RESOURCES)"
    r"|UR error: 39|PI_ERROR_OUT_OF_(?:RESOURCES|DEVICE_MEMORY)|PI_OUT_OF_RESOURCES|Native API failed.{0,80}OUT_OF_)"
)
_BARE = re.compile(
    r"(?P<backend>CUDA|HIP)(?: driver| runtime)? error:? ?(?:\(?2\)? ?:? ?)?out of memory"
    r"|cuda runtime error \(2\) ?: out of memory"
    r"|THCudaCheck FAIL .{0,300}error=2 : out of memory"
    r"|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|cudaErrorOutOfMemory|hipErrorOutOfMemory"
    r"|HIP_ERROR_OutOfMemory"
    r"|CUDA error 2 at .{0,300}out of memory|AcceleratorError: .{0,60}out of memory"
    r"|cudaMalloc(?:Async|Managed)? failed: out of memory|Error while calling cudaMalloc\("
)
_VGPU_LIMIT = re.compile(r"\bDevice (?P<device>\d{1,3}) OOM (?P<held>\d{1,18}) / (?P<limit>\d{1,18})\b")
_BITSANDBYTES = re.compile(r"Error out of memory at line \d+ in file (?P<file>\S{0,300})")
_LIBRARY = re.compile(
    r"(?P<library>CUBLAS|CUDNN|CUSOLVER|CUSPARSE|CUFFT|HIPBLAS|ROCBLAS|MIOPEN|CUTENSOR)_STATUS_ALLOC_FAILED"
    r"|(?P<nccl>(?:NCCL WARN |Last error:\s*)?Cuda failure (?:\d+ )?'out of memory')"
    r"|(?P<nccl_cuda>Failed to CUDA (?:m|c)alloc(?! host))"
    r"|(?P<rccl>HIP failure:? '?out of memory)"
    r"|Unable to find a valid cuDNN algorithm|(?P<workspace>CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)"
    r"|CURAND_STATUS_ALLOCATION_FAILED|Failed to create cublas handle.{0,40}ALLOC"
)
_MASKED = re.compile(
    r"NVML_SUCCESS == r INTERNAL ASSERT FAILED at .{0,200}CUDACachingAllocator"
    r"|CUBLAS_STATUS_NOT_INITIALIZED when calling `?cublasCreate"
    r"|CUDNN_STATUS_NOT_INITIALIZED|CUBLAS_STATUS_NOT_INITIALIZED|unable to find an engine to execute this"
)
_SINGLE = re.compile(
    r"Invalid buffer size: {SIZE}".replace("{SIZE}", r"[\d.]+ ?[kKMGT]i?B")
    + r"|exceeds (?:the )?(?:maximum|max) (?:buffer|allocation|alloc) (?:size|length)"
    r"|larger than (?:the )?max(?:imum)? (?:single )?(?:memory )?alloc"
    r"|Current platform can NOT allocate memory block with size larger than 4GB"
    r"|CL_INVALID_BUFFER_SIZE|UR_RESULT_ERROR_UNSUPPORTED_SIZE"
)
# `XX out of memory` of host allocations made through the device's API.
_PINNED = re.compile(
    r"\bcuda(?:HostAlloc|MallocHost|HostRegister)\b|\bhipHost(?:Malloc|Register)\b|CachingHostAllocator"
    r"|cuMemHost(?:Alloc|Register)|pin memory thread|Failed to CUDA host (?:m|c)?alloc|cudaMallocManaged"
    r"|(?:cannot|Unable to|failed to) pin memory",
    re.IGNORECASE,
)
_NONSENSE = re.compile(r"[Tt]ried to allocate (?:more than )?(?:\d+(?:\.\d+)? ?EB|\d{7,}(?:\.\d+)? ?[GTP]iB)\b")
_OTHERS = sized(r"\bProcess (\d{1,12}) has {SIZE} memory in use")
_GPU = re.compile(r"\b(?:GPU|NPU|XPU|HPU|MLU)[ _:](\d{1,4})\b|\bon device (\d{1,4})\b|\bcuda:(\d{1,4})\b")
_ENVIRONMENT = re.compile(r"\bPYTORCH_(?:(?:CUDA|HIP|NPU|XPU)_)?ALLOC_CONF\b|\bPYTORCH_MPS_HIGH_WATERMARK_RATIO\b")


@record
class DeviceText:
    """The reading of one message."""

    kind: EventKind
    backend: str
    figures: Figures = Figures()
    others: tuple[ProcessMemory, ...] = ()
    gpu: int | None = None
    environment_variable: str = ""


def read_device_text(text: str) -> DeviceText | None:
    """The reading of a message (a few lines joined by blanks); None when it is not about an accelerator's memory."""
    if _NONSENSE.search(text):
        return DeviceText(kind=EventKind.NONSENSE_SIZE, backend="cuda", gpu=_gpu(text))
    if _SINGLE.search(text):
        backend = "mps" if "Invalid buffer size" in text else "xpu" if "4GB" in text or "UR_" in text else ""
        figures = Figures(requested=find_size(r"Invalid buffer size: {SIZE}", text))
        return DeviceText(kind=EventKind.SINGLE_LIMIT, backend=backend, figures=figures, gpu=_gpu(text))
    shared = _VGPU_LIMIT.search(text)
    if shared is not None:
        return _vgpu(shared)
    native = _BITSANDBYTES.search(text)
    if native is not None:
        return _bitsandbytes(native["file"])
    allocator = _ALLOCATOR.search(text)
    if allocator is not None:
        return _allocator(allocator, text)
    return _without_figures(text)


def _vgpu(found: re.Match[str]) -> DeviceText:
    """A layer that shares a GPU between containers: what this one would then hold, and what it may."""
    would_hold, limit = int(found["held"]), int(found["limit"])
    figures = Figures(requested=0, allocated=would_hold, unallocated=0, limit=limit)
    return DeviceText(kind=EventKind.DEVICE_ALLOCATOR, backend="cuda", figures=figures, gpu=int(found["device"]))


def _bitsandbytes(file: str) -> DeviceText:
    """`pythonInterface` holds the calls for managed memory (paged optimizers); `ops.cu` launches kernels."""
    managed = "pythonInterface" in file
    kind = EventKind.PINNED_HOST if managed else EventKind.DEVICE_ERROR
    return DeviceText(kind=kind, backend="bitsandbytes")


def _without_figures(text: str) -> DeviceText | None:
    bare, library = _BARE.search(text), _LIBRARY.search(text)
    if _PINNED.search(text) and (bare or library or "out of memory" in text or "alloc" in text.lower()):
        return DeviceText(kind=EventKind.PINNED_HOST, backend="cuda", gpu=_gpu(text))
    if library is not None:
        name = "nccl" if library["nccl"] or library["nccl_cuda"] or library["rccl"] else library["library"] or "cudnn"
        figures = Figures(requested=find_size(r"Failed to CUDA (?:m|c)alloc {SIZE}", text))
        return DeviceText(kind=EventKind.LIBRARY_ALLOCATION, backend=name.lower(), figures=figures, gpu=_gpu(text))
    if bare is not None:
        backend = "hip" if "HIP" in bare[0] or "hip" in bare[0] else "cuda"
        return DeviceText(kind=EventKind.DEVICE_ERROR, backend=backend, gpu=_gpu(text))
    if _MASKED.search(text):
        return DeviceText(kind=EventKind.MASKED, backend="cuda", gpu=_gpu(text))
    return None


def _allocator(found: re.Match[str], text: str) -> DeviceText:
    text = text[found.start() :]
    if found["backend"]:
        backend = found["backend"].split()[0].lower()
    elif found["asynchronous"]:
        backend = "cuda-async"
    elif found["level_zero"] or found["ascend"] or found["habana"]:
        backend = "xpu" if found["level_zero"] else "npu" if found["ascend"] else "hpu"
    else:
        backend = "jax" if found["jax"] else "tensorflow"
    figures = _mps_figures(text) if backend == "mps" else _figures(text)
    variable = _ENVIRONMENT.search(text)
    return DeviceText(
        kind=EventKind.DEVICE_ALLOCATOR,
        backend=backend,
        figures=figures,
        others=_others(text, total=figures.total),
        gpu=int(found["device"]) if found["device"] else _gpu(text),
        environment_variable=variable[0] if variable else "",
    )


def _figures(text: str) -> Figures:
    """The figures of PyTorch's messages (0.4 to 2.13), of the cudaMallocAsync block and of TensorFlow and JAX."""
    allocated = _first(
        text,
        r"Of the allocated memory {SIZE} is allocated",
        r"{SIZE} already allocated",
        r"Currently allocated\s*: {SIZE}",
    )
    return Figures(
        requested=_first(
            text,
            r"[Tt]ried to allocate (?:more than )?{SIZE}",
            r"Requested\s*: {SIZE}",
            r"trying to allocate {SIZE}",
            r"Out of memory allocating {SIZE}",
            r"Failed to allocate (?:request for )?{SIZE}",
        ),
        total=_first(text, r"total capaci?ty of {SIZE}", r"{SIZE} total capacity", r"Device limit\s*: {SIZE}"),
        free=_first(text, r"of which {SIZE} is free", r"{SIZE} free\b", r"Free \(according to CUDA\)\s*: {SIZE}"),
        allocated=allocated,
        unallocated=_unallocated(text, allocated=allocated),
        in_use=find_size(r"this process has {SIZE} memory in use", text),
        limit=_first(text, r"{SIZE} allowed\b", r"user-supplied memory fraction\)\s*: {SIZE}"),
        private_pools=find_size(r"with {SIZE} allocated in private pools", text),
    )


def _unallocated(text: str, *, allocated: int | None) -> int | None:
    """Idle memory of the allocator.

    Since 2.0 it is said. From 1.4 `reserved` includes what is allocated. Before, `cached` meant the idle part alone;
    where the three readings then exceed the total, the version printed the sum after all.
    """
    idle = find_size(r"{SIZE} is reserved by PyTorch but unallocated", text)
    if idle is not None or allocated is None:
        return idle
    reserved = find_size(r"{SIZE} reserved in total", text)
    if reserved is not None:
        return max(0, reserved - allocated)
    cached = find_size(r"{SIZE} cached", text)
    if cached is None or cached < allocated:
        return cached
    total, free = find_size(r"{SIZE} total capacity", text), find_size(r"{SIZE} free\b", text)
    sums_up = total is None or allocated + cached + (free or 0) <= 1.02 * total
    return cached if sums_up else cached - allocated


def _mps_figures(text: str) -> Figures:
    """Apple's unified memory: `max allowed` is a limit on this process, `other allocations` lie outside the
    allocator."""
    allocated = find_size(r"MPS allocated: {SIZE}", text)
    other = find_size(r"other allocations: {SIZE}", text)
    return Figures(
        requested=find_size(r"[Tt]ried to allocate {SIZE}", text),
        allocated=allocated,
        in_use=None if allocated is None else allocated + (other or 0),
        limit=find_size(r"max allowed: {SIZE}", text),
    )


def _others(text: str, *, total: int | None) -> tuple[ProcessMemory, ...]:
    """Other processes that the message names; a reading above the device's total is no reading."""
    found = []
    for match in list(_OTHERS.finditer(text))[:64]:
        memory = size_bytes(match[2], match[3])
        known = memory if memory is not None and (total is None or memory <= total) else None
        found.append(ProcessMemory(pid=int(match[1]), memory_bytes=known))
    return tuple(found)


def _gpu(text: str) -> int | None:
    found = _GPU.search(text)
    return int(next(filter(None, found.groups()))) if found else None


def _first(text: str, *patterns: str) -> int | None:
    """The first of these patterns that matches gives the size."""
    return next((size for size in (find_size(pattern, text) for pattern in patterns) if size is not None), None)
