"""How fast the devices of this machine reach each other: all-reduce by message size. A child of `planner probe`.

    python -m planner.runtime.all_reduce --device cuda --ranks 8

Forks a rank per device, joins them (NCCL, or gloo on CPU) and prints one JSON document on standard output. Bus
bandwidth as nccl-tests count it, so that it can be held against a link's own: 2 (n - 1) / n x size / time of an
all-reduce, (n - 1) / n x size / time of an all-gather.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from planner.runtime.result_channel import result_channel
from planner.runtime.worker_process import die_with_parent
from planner.spec import DeviceKind

_SIZES = {
    DeviceKind.CUDA: tuple(1 << power for power in range(10, 31, 2)),  # 1 KiB to 1 GiB
    DeviceKind.CPU: tuple(1 << power for power in range(10, 25, 2)),  # 1 KiB to 16 MiB
}
_BYTES_PER_SIZE = {DeviceKind.CUDA: 1 << 31, DeviceKind.CPU: 1 << 25}  # moved while one size is measured, about
_FEWEST, _MOST = 5, 50  # repetitions of one size
_WARM_UPS = 3
_JOIN_TIMEOUT_S = 60.0


def measure_links(device: DeviceKind, *, ranks: int, largest_bytes: int, timeout_s: float) -> dict[str, Any]:
    """Fork the ranks, wait for them, return what rank 0 saw. RuntimeError when one of them fails or time is over."""
    context = multiprocessing.get_context("fork")  # nothing has touched a device in this process
    with tempfile.TemporaryDirectory(prefix="meshplan-") as scratch:
        arguments = (ranks, device, scratch, largest_bytes, os.getpid())
        children = [context.Process(target=_be_rank, args=(rank, *arguments)) for rank in range(ranks)]
        for child in children:
            child.start()
        try:
            _wait(children, ends_at_s=time.monotonic() + timeout_s)
        finally:
            for child in children:
                if child.is_alive():
                    child.kill()
                child.join()
        found: dict[str, Any] = json.loads((Path(scratch) / "result.json").read_text())
        return found


def _wait(children: list[Any], *, ends_at_s: float) -> None:
    """Until all have ended well."""
    while any(child.is_alive() for child in children):
        failed = [rank for rank, child in enumerate(children) if child.exitcode not in (None, 0)]
        if failed:
            raise RuntimeError(f"rank {failed[0]} ended with exit code {children[failed[0]].exitcode}")
        if time.monotonic() > ends_at_s:
            raise RuntimeError("the ranks did not finish in time")
        time.sleep(0.05)
    failed = [rank for rank, child in enumerate(children) if child.exitcode]
    if failed:
        raise RuntimeError(f"rank {failed[0]} ended with exit code {children[failed[0]].exitcode}")


def _be_rank(rank: int, ranks: int, device: DeviceKind, scratch: str, largest_bytes: int, parent: int) -> None:
    die_with_parent(parent, signal.SIGKILL)
    torch.set_num_threads(1)
    target = torch.device("cuda", rank) if device is DeviceKind.CUDA else torch.device("cpu")
    if device is DeviceKind.CUDA:
        torch.cuda.set_device(target)
    dist.init_process_group(
        "nccl" if device is DeviceKind.CUDA else "gloo",
        init_method=f"file://{scratch}/store",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=_JOIN_TIMEOUT_S),
    )
    sizes = [size for size in _SIZES[device] if size <= largest_bytes] or [_SIZES[device][0]]
    rows = [_all_reduce_row(size, ranks=ranks, device=target) for size in sizes]
    gathered = _all_gather_rate(sizes[-1], ranks=ranks, device=target)
    if rank == 0:
        result = {"backend": dist.get_backend(), "ranks": ranks, "rows": rows, "all_gather_bytes_per_s": gathered}
        (Path(scratch) / "result.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


def _all_reduce_row(size_bytes: int, *, ranks: int, device: torch.device) -> dict[str, Any]:
    buffer = torch.zeros(size_bytes // 4, dtype=torch.float32, device=device)
    time_s = _median_s(lambda: dist.all_reduce(buffer), size_bytes=size_bytes, device=device)
    moved = 2 * (ranks - 1) / ranks * size_bytes
    return {"message_bytes": size_bytes, "time_s": time_s, "bus_bytes_per_s": moved / time_s}


def _all_gather_rate(size_bytes: int, *, ranks: int, device: torch.device) -> float:
    share = torch.zeros(max(1, size_bytes // 4 // ranks), dtype=torch.float32, device=device)
    whole = torch.zeros(share.numel() * ranks, dtype=torch.float32, device=device)
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # renamed in torch 2.13
    time_s = _median_s(lambda: gather(whole, share), size_bytes=size_bytes, device=device)
    return float((ranks - 1) / ranks * whole.numel() * 4 / time_s)


def _median_s(collective: Any, *, size_bytes: int, device: torch.device) -> float:
    """The median of several; as many on every rank."""
    repeat = max(_FEWEST, min(_MOST, _BYTES_PER_SIZE[DeviceKind(device.type)] // size_bytes))
    times = []
    for number in range(_WARM_UPS + repeat):
        _settle(device)
        start = time.perf_counter()
        collective()
        _settle(device)
        if number >= _WARM_UPS:
            times.append(time.perf_counter() - start)
    return max(median(times), 1e-9)


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m planner.runtime.all_reduce", description=__doc__)
    parser.add_argument("--device", required=True, choices=[kind.value for kind in DeviceKind])
    parser.add_argument("--ranks", required=True, type=int)
    parser.add_argument("--largest-bytes", type=int, default=1 << 30)
    parser.add_argument("--time-limit-s", type=float, default=120.0)
    options = parser.parse_args(arguments)
    with result_channel() as channel:
        found = measure_links(
            DeviceKind(options.device),
            ranks=options.ranks,
            largest_bytes=options.largest_bytes,
            timeout_s=options.time_limit_s,
        )
        os.write(channel, (json.dumps(found) + "\n").encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
