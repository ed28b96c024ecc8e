"""The short answer on a single message: whose memory ran out, and the figures of it."""

from __future__ import annotations

import pytest

from planner.diagnose.memory_text import (
    read_device_figures,
    requested_of_host,
    says_device_memory_ran_out,
    says_host_memory_ran_out,
    says_peer_was_lost,
)
from tests.unit.trial import messages

MIB = 1 << 20
GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "requested", "allocated", "capacity"),
    [
        (messages.TORCH_1_0, 12.5 * MIB, 8.57 * MIB, 10.92 * GIB),
        (messages.TORCH_1_8, 2.26 * GIB, 781.59 * MIB, 6 * GIB),
        (messages.TORCH_2_1, 55.57 * GIB, 984.52 * MIB, 12 * GIB),
        (messages.TORCH_2_5, 22.78 * GIB, 9.08 * GIB, (12.73 + 18.73) * GIB),
        (messages.TORCH_LIMITED, 512 * MIB, 9 * GIB, 10 * GIB),
        (messages.TORCH_BYTES, 20 * MIB, 0, 3.44 * GIB),
    ],
)
def test_cuda_message_of_each_version_gives_its_figures(
    text: str, requested: float, allocated: float, capacity: float
) -> None:
    found = read_device_figures(text)
    assert found is not None
    assert found.requested_bytes == pytest.approx(requested, abs=1)
    assert found.allocated_bytes == pytest.approx(allocated, abs=1)
    assert found.capacity_bytes == pytest.approx(capacity, abs=2)


def test_capacity_beside_another_process_leaves_its_share_out() -> None:
    without_limit = messages.TORCH_LIMITED.replace("10.00 GiB allowed; ", "")
    found = read_device_figures(without_limit)
    assert found is not None
    assert found.capacity_bytes == pytest.approx(69.8 * GIB, abs=2)  # of 139.8: another process has 70


def test_cuda_message_without_figures_is_still_one() -> None:
    found = read_device_figures(messages.TORCH_ABSURD)
    assert found is not None
    assert found.requested_bytes == 0  # an exabyte is no request but a number gone wrong
    assert found.capacity_bytes == 0


@pytest.mark.parametrize("text", ["", "all is well", "loss 3.2", messages.CPU_ALLOCATOR, messages.NCCL_MEMORY])
def test_other_texts_are_no_cuda_message(text: str) -> None:
    assert read_device_figures(text) is None


def test_cpu_allocator_names_what_it_was_asked_for() -> None:
    assert requested_of_host(messages.CPU_ALLOCATOR) == GIB
    assert requested_of_host(messages.NUMPY) == pytest.approx(7.45 * GIB, abs=1)
    assert requested_of_host("std::bad_alloc") == 0


@pytest.mark.parametrize(
    "text",
    [
        messages.TORCH_1_0,
        messages.TORCH_2_5,
        messages.TORCH_ABSURD,
        messages.CUBLAS,
        messages.CUDA_PLAIN,
        messages.NCCL_MEMORY,
        "HIP out of memory. Tried to allocate 2.00 MiB.",
    ],
)
def test_device_memory_is_recognised(text: str) -> None:
    assert says_device_memory_ran_out(text)
    assert not says_host_memory_ran_out(text)


@pytest.mark.parametrize("text", [messages.CPU_ALLOCATOR, messages.NUMPY, messages.BAD_ALLOC_ABORT, messages.PINNED])
def test_host_memory_is_told_from_the_devices(text: str) -> None:
    assert says_host_memory_ran_out(text)
    assert not says_device_memory_ran_out(text)


@pytest.mark.parametrize("text", [messages.GLOO_CLOSED, messages.GLOO_RESET, messages.NCCL_REMOTE])
def test_lost_peer_is_recognised(text: str) -> None:
    assert says_peer_was_lost(text)


@pytest.mark.parametrize(
    "text", [messages.NCCL_SYSTEM, messages.TORCH_2_5, "shapes cannot be multiplied (4x8 and 9x2)"]
)
def test_own_failure_is_not_a_lost_peer(text: str) -> None:
    assert not says_peer_was_lost(text)
