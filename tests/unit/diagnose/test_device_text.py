"""Wordings of allocators, to figures: every family of messages, and what no device ever said."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.diagnose.device_text import read_device_text
from planner.diagnose.host_text import exit_code_of, read_host_text
from planner.diagnose.records import EventKind
from planner.diagnose.sizes import find_size, size_bytes

GIB, MIB = 2**30, 2**20


@pytest.mark.parametrize(
    ("text", "figures"),
    [
        (
            "RuntimeError: CUDA out of memory. Tried to allocate 1.86 GiB (GPU 0; 31.72 GiB total "
            "capacity; 24.58 GiB already "
            "allocated; 1.28 GiB free; 5.08 GiB cached)",
            {"requested": 1.86, "total": 31.72, "allocated": 24.58, "free": 1.28, "unallocated": 5.08},
        ),
        (
            # A version between: `cached` printed the whole reserved amount.
            "RuntimeError: CUDA out of memory. Tried to allocate 0.25 GiB (GPU 0; 10.00 GiB total "
            "capacity; 8.00 GiB already "
            "allocated; 0.10 GiB free; 9.00 GiB cached)",
            {"allocated": 8.0, "unallocated": 1.0},
        ),
        (
            "CUDA out of memory. Tried to allocate 20.00 MiB \nGPU 0; 8.00 GiB total capacity; "
            "7.20 GiB already allocated; 0 bytes "
            "free; 7.30 GiB reserved in total by PyTorch",
            {"total": 8.0, "allocated": 7.2, "free": 0.0, "unallocated": 0.1},
        ),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a "
            "total capacity of 79.15 GiB of "
            "which 1.00 GiB is free. Including non-PyTorch memory, this process has 78.00 GiB "
            "memory in use. 70.00 GiB allowed; Of "
            "the allocated memory 75.00 GiB is allocated by PyTorch, with 1.50 GiB allocated in "
            "private pools (e.g., CUDA Graphs), "
            "and 512.00 MiB is reserved by PyTorch but unallocated.",
            {"in_use": 78.0, "limit": 70.0, "private_pools": 1.5, "unallocated": 0.5, "requested": 2.0},
        ),
        (
            "MPS backend out of memory (MPS allocated: 9.00 GB, other allocations: 2.00 GB, max "
            "allowed: 12.00 GB). Tried to "
            "allocate 1.50 GB on private pool.",
            {"allocated": 9.0, "in_use": 11.0, "limit": 12.0, "requested": 1.5},
        ),
    ],
)
def test_figures_of_a_wording_are_read(text: str, figures: dict[str, float]) -> None:
    reading = read_device_text(text)
    assert reading is not None
    for name, gib in figures.items():
        assert getattr(reading.figures, name) == pytest.approx(gib * GIB, abs=2 * MIB), name


def test_counter_of_2_to_the_34_gib_is_no_figure() -> None:
    text = (
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacty of 8.00 "
        "GiB of which 0 bytes is free. Process 11 "
        "has 17179869184.00 GiB memory in use. Including non-PyTorch memory, this process has "
        "17179869184.00 GiB memory in use."
    )
    reading = read_device_text(text)
    assert reading is not None
    assert reading.figures.in_use is None
    assert reading.others[0].memory_bytes is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("CUDA out of memory. Tried to allocate more than 1EB memory.", EventKind.NONSENSE_SIZE),
        (
            "CUDA out of memory. Tried to allocate 17179869182.00 GiB (GPU 0; 11 GiB total capacity)",
            EventKind.NONSENSE_SIZE,
        ),
        ("RuntimeError: CUDA error: out of memory", EventKind.DEVICE_ERROR),
        ("RuntimeError: HIP error: out of memory", EventKind.DEVICE_ERROR),
        ("cuda runtime error (2) : out of memory at /pytorch/THC/THCStorage.cu:58", EventKind.DEVICE_ERROR),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", EventKind.LIBRARY_ALLOCATION),
        ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", EventKind.LIBRARY_ALLOCATION),
        ("NCCL WARN Cuda failure 2 'out of memory'", EventKind.LIBRARY_ALLOCATION),
        ("NCCL WARN Cuda failure 'out of memory'", EventKind.LIBRARY_ALLOCATION),
        ("RuntimeError: UR error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)", EventKind.DEVICE_ALLOCATOR),
        ("Error out of memory at line 380 in file /x/csrc/pythonInterface.c", EventKind.PINNED_HOST),
        ("Error out of memory at line 90 in file /x/csrc/ops.cu", EventKind.DEVICE_ERROR),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.", EventKind.DEVICE_ALLOCATOR),
        ("RuntimeError: Invalid buffer size: 24.00 GiB", EventKind.SINGLE_LIMIT),
    ],
)
def test_kind_of_a_device_failure(text: str, kind: EventKind) -> None:
    reading = read_device_text(text)
    assert reading is not None
    assert reading.kind is kind


@pytest.mark.parametrize(
    "text",
    [
        "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        "CUDA error: an illegal memory access was encountered",
        "torch.cuda.memory_allocated: 12 GiB",
        "the GPU has 24 GiB of memory",
        "",
    ],
)
def test_words_that_are_no_shortage_of_device_memory(text: str) -> None:
    assert read_device_text(text) is None


@pytest.mark.parametrize(
    ("text", "kind", "code"),
    [
        ("exits with return code = -9", EventKind.KILLED, -9),
        ("failed (exitcode: -9) local_rank: 0 (pid: 438) of binary: python", EventKind.KILLED, -9),
        ("  exitcode  : -9 (pid: 438)", EventKind.KILLED, -9),
        ("container exited with code 137", EventKind.KILLED, 137),
        ("exited on signal 9 (Killed).", EventKind.KILLED, -9),
        ("Exit Code:    137", EventKind.KILLED, 137),
        ("exits with return code = 1", EventKind.OTHER_FAILURE, 1),
        ("failed (exitcode: -11) local_rank: 0", EventKind.OTHER_FAILURE, -11),
        ("DataLoader worker (pid 325) is killed by signal: Bus error.", EventKind.SHARED_MEMORY, None),
        ("DataLoader worker (pid 325) is killed by signal: Killed.", EventKind.KILLED, -9),
        ("numpy.core._exceptions._ArrayMemoryError: Unable to allocate 71.5 GiB", EventKind.HOST_ALLOCATOR, None),
        ("terminate called after throwing an instance of 'std::bad_alloc'", EventKind.HOST_ALLOCATOR, None),
        ("Memory cgroup out of memory: Killed process 140339 (python3) total-vm:1kB", EventKind.KERNEL_KILL, None),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=1.0.", EventKind.KERNEL_KILL, None),
        ("Watchdog caught collective operation timeout", EventKind.COLLECTIVE, None),
    ],
)
def test_kind_of_a_host_failure(text: str, kind: EventKind, code: int | None) -> None:
    reading = read_host_text(text)
    assert reading is not None
    assert reading.kind is kind
    assert reading.exit_code == code


@pytest.mark.parametrize(
    "text", ["exits with return code = 0", "exitcode: 0", "the killer feature", "memory: 12 GiB", "step 9"]
)
def test_words_that_are_no_failure_of_the_host(text: str) -> None:
    assert read_host_text(text) is None


def test_resident_memory_of_a_killed_process_is_read() -> None:
    text = (
        "Out of memory: Killed process 25315 (python3) total-vm:53312244kB, "
        "anon-rss:31451456kB, file-rss:74816kB, shmem-rss:0kB"
    )
    reading = read_host_text(text)
    assert reading is not None
    assert (reading.pid, reading.figures.in_use) == (25315, (31451456 + 74816) * 1024)


@settings(deadline=None)
@given(st.floats(min_value=0.01, max_value=1000), st.sampled_from(["KiB", "MiB", "GiB"]))
def test_printed_size_is_read_back_within_its_two_decimals(value: float, unit: str) -> None:
    scale = {"KiB": 2**10, "MiB": MIB, "GiB": GIB}[unit]
    read = find_size(r"asked {SIZE} of", f"asked {value:.2f} {unit} of memory")
    assert read is not None
    assert abs(read - value * scale) <= 0.005 * scale + 1


@pytest.mark.parametrize(
    ("number", "unit", "size"), [("26,184,840", "kB", 26184840 * 1024), ("0", "bytes", 0), ("1", "EB", None)]
)
def test_sizes_of_the_kernel_and_of_nonsense(number: str, unit: str, size: int | None) -> None:
    assert size_bytes(number, unit) == size


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=300))
def test_any_text_is_read_without_an_error(text: str) -> None:
    read_device_text(f"CUDA out of memory. Tried to allocate {text}")
    read_host_text(text)
    exit_code_of(f"exitcode: {text}")
