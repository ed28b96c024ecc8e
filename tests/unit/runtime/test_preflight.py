"""Before step 1: too little free memory names its holder, and stops only where the need was measured."""

from __future__ import annotations

import pytest

from planner.runtime.preflight import FreeMemory, Holder, NotEnoughFreeMemory, check_free_memory, look_at_device
from planner.spec import DeviceKind, RunPromise

GIB = 1 << 30
FOUND = FreeMemory(free_bytes=10 * GIB, holders=(Holder(pid=77, name="other.py", used_bytes=60 * GIB),))


def promise(gib: int, *, measured: bool = True) -> RunPromise:
    return RunPromise(device_used_bytes=gib * GIB, is_measured=measured)


def test_preflight_enough_free_memory_is_said_in_figures() -> None:
    assert check_free_memory(promise(8), FOUND, sharing=1) == "preflight: 10.00 GiB free, the plan needs 8.00 GiB"
    assert check_free_memory(RunPromise(), FOUND, sharing=1) == ""


def test_preflight_too_little_names_the_process_that_holds_it() -> None:
    with pytest.raises(NotEnoughFreeMemory, match=r"process 77 \(other.py\) holds 60.00 GiB"):
        check_free_memory(promise(12), FOUND, sharing=1)
    with pytest.raises(NotEnoughFreeMemory):
        check_free_memory(promise(6), FOUND, sharing=2)


def test_preflight_computed_need_is_warned_of_only() -> None:
    said = check_free_memory(promise(12, measured=False), FOUND, sharing=1)
    assert said.startswith("warning: ") and "process 77" in said


def test_preflight_on_a_cpu_looks_at_the_host() -> None:
    found = look_at_device(DeviceKind.CPU, uuid="", gpus_before=(), fallback_free_bytes=0)
    assert found.free_bytes > 0 and found.holders
