"""How much memory a training step can really have: a batch raised until there is no more. A child of `planner probe`.

    python -m planner.runtime.staircase --device cuda --devices 0,1
    python -m planner.runtime.staircase --device cpu --memory-limit-bytes 1073741824

Prints one JSON list on standard output, one entry a device. On CPU the limit is the kernel's (RLIMIT_DATA), so memory
ends here and not for everybody else on the host. The step is that of a deep stack of small layers: what it keeps for
the backward pass comes in many pieces of a hundredth of the device, so the end is met closely.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from typing import Any

import torch

from planner.diagnose.memory_text import says_memory_ran_out
from planner.runtime.measure import Meter, open_meter, read_driver_memory
from planner.runtime.result_channel import result_channel
from planner.runtime.worker_process import leave_no_core_dump, lift_data_limit, limit_data_segment
from planner.spec import DeviceKind

_LAYERS = 64
_WIDTH = {DeviceKind.CUDA: 512, DeviceKind.CPU: 32}  # narrow on CPU, where computing would take minutes
_SAMPLES_PER_DEVICE = 256  # of the first guess: a sample is about so small a part of the device
# The last batch that fits and the first that does not differ by at most this.
_CLOSE_FRACTION = {DeviceKind.CUDA: 0.01, DeviceKind.CPU: 0.03}
_SMALLEST_SAMPLE_ROWS = 16
_SAVED_PER_LAYER = 2  # tensors that a linear layer and its activation keep for the backward pass
_LONGEST_TEXT = 400


def climb(device: torch.device, *, capacity_bytes: int, meter: Meter, ends_at_s: float) -> dict[str, Any]:
    """Raise the batch by doubling until it does not fit, then halve the gap until the end is met closely."""
    kind = DeviceKind(device.type)
    width = _WIDTH[kind]
    sample_bytes = max(capacity_bytes // _SAMPLES_PER_DEVICE, 1)
    rows = max(_SMALLEST_SAMPLE_ROWS, sample_bytes // (_LAYERS * _SAVED_PER_LAYER * width * 4))
    model = torch.nn.Sequential(
        *(layer for _ in range(_LAYERS) for layer in (torch.nn.Linear(width, width), torch.nn.Tanh()))
    ).to(device)
    meter.end_section()
    steps: list[tuple[int, int]] = []
    peaks = {"used": 0, "allocated": 0, "reserved": 0}
    ended_by = ""
    good, bad = 0, 0
    while time.monotonic() < ends_at_s:
        batch = _next_batch(good, bad, close_fraction=_CLOSE_FRACTION[kind])
        if not batch:
            break
        failure, held = _try_step(model, rows=batch * rows, device=device, meter=meter)
        section = meter.end_section()
        peaks["used"] = max(peaks["used"], section.used_bytes, held)
        peaks["allocated"] = max(peaks["allocated"], section.allocated_bytes, held)
        peaks["reserved"] = max(peaks["reserved"], section.reserved_bytes)
        steps.append((batch, max(section.allocated_bytes, held)))
        good, bad = (good, batch) if failure else (batch, bad)
        ended_by = failure or ended_by
    return {
        "capacity_bytes": peaks["used"],
        "allocated_bytes": peaks["allocated"],
        "context_bytes": max(0, peaks["used"] - max(peaks["reserved"], peaks["allocated"])),
        "largest_batch": good,
        "failed_batch": bad,
        "bytes_per_sample": _slope(steps, good),
        "steps": steps,
        "ended_by": ended_by,
    }


def _next_batch(good: int, bad: int, *, close_fraction: float) -> int:
    """1, 2, 4, … until one fails, then the middle of what is left; 0 at the end."""
    if not bad:
        return max(1, 2 * good)
    return (good + bad) // 2 if bad - good > max(1, close_fraction * good) else 0


def _try_step(model: torch.nn.Module, *, rows: int, device: torch.device, meter: Meter) -> tuple[str, int]:
    """One forward and backward pass: what the end of memory said ("" when it fitted), and what was held at its fullest.

    Other errors are raised. The meter's own peak is sampled where the kernel keeps none, and a starved sampler misses.
    """
    said, held = "", 0
    try:
        held = _step(model, rows=rows, device=device, meter=meter)
    except (RuntimeError, MemoryError) as problem:  # torch.OutOfMemoryError is a RuntimeError
        held = meter.allocated_bytes()  # Keep: here, while the traceback still holds all that was allocated
        said = f"{type(problem).__name__}: {problem}"[:_LONGEST_TEXT]
        if not isinstance(problem, MemoryError) and not says_memory_ran_out(said):
            raise
    model.zero_grad(set_to_none=True)
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return said, held


def _step(model: torch.nn.Module, *, rows: int, device: torch.device, meter: Meter) -> int:
    """A function of its own, so that nothing of the step outlives it. Returns what the forward pass left held."""
    inputs = torch.randn(rows, next(model.parameters()).shape[0], device=device)
    loss = model(inputs).square().mean()
    held = meter.allocated_bytes()
    loss.backward()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return held


def _slope(steps: list[tuple[int, int]], good: int) -> int:
    """Bytes that one more sample takes, between the smallest and the largest batch that fitted."""
    fitted = sorted((batch, peak) for batch, peak in steps if batch <= good)
    if len(fitted) < 2:
        return fitted[0][1] if fitted else 0
    (low, low_bytes), (high, high_bytes) = fitted[0], fitted[-1]
    return max(0, high_bytes - low_bytes) // (high - low)


def _climb_all(options: Any) -> list[dict[str, Any]]:
    if options.device == DeviceKind.CPU.value:
        torch.set_num_threads(1)  # it is memory that is measured; more threads wait for each other on a busy machine
        _warm_up()
        meter = open_meter(DeviceKind.CPU, local_rank=0, gpus_before=())
        limit_data_segment(options.memory_limit_bytes)
        try:
            found = climb(
                torch.device("cpu"),
                capacity_bytes=options.memory_limit_bytes,
                meter=meter,
                ends_at_s=time.monotonic() + options.time_limit_s,
            )
        finally:
            lift_data_limit()
        return [{"device": 0, **found}]
    before = read_driver_memory()
    results = []
    for index in options.devices:
        torch.cuda.set_device(index)
        capacity = int(torch.cuda.mem_get_info(index)[0])
        if options.memory_limit_bytes:
            capacity = min(capacity, options.memory_limit_bytes)
            total = torch.cuda.get_device_properties(index).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, capacity / total), index)
        meter = open_meter(DeviceKind.CUDA, local_rank=index, gpus_before=before)
        ends_at_s = time.monotonic() + options.time_limit_s
        found = climb(torch.device("cuda", index), capacity_bytes=capacity, meter=meter, ends_at_s=ends_at_s)
        results.append({"device": index, **found})
    return results


def _warm_up() -> None:
    """Let libraries and threads take what they take once, before memory is counted."""
    layer = torch.nn.Linear(8, 8)
    layer(torch.randn(64, 8)).sum().backward()


def main(arguments: list[str] | None = None) -> int:
    """Climb and print."""
    parser = argparse.ArgumentParser(prog="python -m planner.runtime.staircase", description=__doc__)
    parser.add_argument("--device", required=True, choices=[kind.value for kind in DeviceKind])
    parser.add_argument("--devices", type=lambda text: [int(word) for word in text.split(",")], default=[0])
    parser.add_argument("--memory-limit-bytes", type=int, default=0)
    parser.add_argument("--time-limit-s", type=float, default=120.0, help="for one device")
    options = parser.parse_args(arguments)
    if options.device == DeviceKind.CPU.value and options.memory_limit_bytes <= 0:
        parser.error("--device cpu needs --memory-limit-bytes")
    leave_no_core_dump()
    with result_channel() as channel:
        os.write(channel, (json.dumps(_climb_all(options)) + "\n").encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
