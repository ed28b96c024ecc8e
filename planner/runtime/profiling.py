"""What `--profile` writes of one rank: a memory snapshot, a profiler trace, and TensorBoard curves of memory.

Owns the files and the few steps that are run for them, after all that is measured. The curves are written where the
`tensorboard` package is installed, which the planner does not ask for.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

from planner.runtime.worker_process import status_bytes

PROFILED_STEPS = 2
_SAMPLING_PERIOD_S = 0.002
_HISTORY_ENTRIES = 200_000  # allocations and frees that the snapshot remembers, newest first


class Steps(Protocol):
    """What is profiled: one optimizer step at a time."""

    def train_step(self) -> Any: ...


def write_profile(session: Steps, directory: Path, *, rank: int, note: Callable[[str], None]) -> tuple[Path, ...]:
    """Run `PROFILED_STEPS` more steps and write what was seen of them. The files written.

    On a GPU `memory-rank0.pickle` is torch's snapshot (pytorch.org/memory_viz, `planner diagnose`), on a CPU there is
    none. `trace-rank0.json` opens in Perfetto or chrome://tracing.
    """
    directory.mkdir(parents=True, exist_ok=True)
    on_gpu = torch.cuda.is_initialized()
    files = []
    with _curve(on_gpu=on_gpu) as curve:
        trace = directory / f"trace-rank{rank}.json"
        with _history(directory / f"memory-rank{rank}.pickle", on_gpu=on_gpu) as snapshot:
            _trace_steps(session, trace, on_gpu=on_gpu)
        files += [trace, *snapshot]
    files += _write_curve(curve, directory, rank=rank, note=note)
    return tuple(files)


def _trace_steps(session: Steps, path: Path, *, on_gpu: bool) -> None:
    activities = [torch.profiler.ProfilerActivity.CPU]
    if on_gpu:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities, profile_memory=True, record_shapes=False) as profile:
        for _ in range(PROFILED_STEPS):
            session.train_step()
    profile.export_chrome_trace(str(path))


@contextmanager
def _history(path: Path, *, on_gpu: bool) -> Iterator[list[Path]]:
    """Record allocations meanwhile; the list holds the snapshot's path afterwards, on a GPU."""
    written: list[Path] = []
    if not on_gpu:
        yield written
        return
    torch.cuda.memory._record_memory_history(max_entries=_HISTORY_ENTRIES)
    try:
        yield written
        torch.cuda.memory._dump_snapshot(str(path))
        written.append(path)
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


Sample = tuple[float, dict[str, int]]  # Unix time, bytes by name


@contextmanager
def _curve(*, on_gpu: bool) -> Iterator[list[Sample]]:
    """Look at the memory every two milliseconds meanwhile."""
    samples: list[Sample] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_SAMPLING_PERIOD_S):
            samples.append((time.time(), _memory_now(on_gpu=on_gpu)))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield samples
    finally:
        done.set()
        watcher.join()


def _memory_now(*, on_gpu: bool) -> dict[str, int]:
    if not on_gpu:
        (resident,) = status_bytes("RssAnon")
        return {"resident": resident}
    return {"allocated": int(torch.cuda.memory_allocated()), "reserved": int(torch.cuda.memory_reserved())}


def _write_curve(samples: list[Sample], directory: Path, *, rank: int, note: Callable[[str], None]) -> tuple[Path, ...]:
    """The curve as JSON lines, and for TensorBoard where its package is there."""
    path = directory / f"memory-rank{rank}.jsonl"
    path.write_text("".join(json.dumps({"unix_s": at, **held}) + "\n" for at, held in samples), encoding="utf-8")
    if importlib.util.find_spec("tensorboard") is None:
        note("no TensorBoard curves: the package tensorboard is not installed (pip install tensorboard)")
        return (path,)
    writer_class: Any = importlib.import_module("torch.utils.tensorboard").SummaryWriter
    folder = directory / "tensorboard" / f"rank{rank}"
    with writer_class(log_dir=str(folder)) as writer:
        for at, held in samples:
            for name, value in held.items():
                writer.add_scalar(f"memory/{name}_gib", value / 2**30, int((at - samples[0][0]) * 1e6), walltime=at)
    return (path, *sorted(folder.iterdir()))
