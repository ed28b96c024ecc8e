"""Throughput and memory of `planner diagnose` on a generated log of many interleaved ranks.

    python -m tests.benchmarks.bench_diagnose [--megabytes 1000] [--ranks 64] [--kind quiet|chatty|failing]

The log is written to a temporary file, diagnosed by the console script in a child process, and removed. Printed: size,
seconds, MB/s (of 10^6 bytes), the child's peak resident memory, and the verdict. Kinds: `quiet` has progress lines and
one failure at its end; `chatty` names memory in every line; `failing` prints an out-of-memory message every few lines.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from planner.spec._record import record

TARGET_MB_PER_S, TARGET_MIB = 50.0, 200.0
_BLOCK_LINES = 20_000

_FAILURE = """\
[rank{rank}]: Traceback (most recent call last):
[rank{rank}]:   File "/work/train.py", line 310, in <module>
[rank{rank}]:     main()
[rank{rank}]:   File "/work/train.py", line 288, in main
[rank{rank}]:     loss = engine(batch)
[rank{rank}]:   File "/opt/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1775, in _call_impl
[rank{rank}]:     return forward_call(*args, **kwargs)
[rank{rank}]:   File "/work/model.py", line 91, in forward
[rank{rank}]:     return self.mlp(x)
[rank{rank}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.75 GiB. GPU {gpu} has a total capacity \
of 79.15 GiB of which 1.20 GiB is free. Including non-PyTorch memory, this process has 77.94 GiB memory in use. Of the \
allocated memory 75.31 GiB is allocated by PyTorch, and 645.12 MiB is reserved by PyTorch but unallocated.
"""


@record
class Result:
    """One measurement."""

    kind: str
    megabytes: float
    seconds: float
    peak_mib: float
    cause: str

    @property
    def megabytes_per_s(self) -> float:
        return self.megabytes / self.seconds


def log_block(rng: random.Random, *, ranks: int, kind: str) -> str:
    """Some thousand lines of interleaved ranks."""
    lines = []
    for number in range(_BLOCK_LINES):
        rank, step = rng.randrange(ranks), number // ranks
        head = f"[rank{rank}]: 2026-05-01 12:{step % 60:02d}:{number % 60:02d},123 [INFO] "
        if kind == "chatty":
            memory = f"memory: {40 + number % 3}.{number % 100:02d}GiB({50 + number % 9}%) reserved 61.20GiB"
            lines.append(f"{head}step: {step}  loss: 2.{number % 1000:03d}  {memory}  tps: 12,345\n")
        elif kind == "failing" and number % 7 == 0:
            lines.append(_FAILURE.format(rank=rank, gpu=rank % 8))
        else:
            lines.append(
                f"{head}iteration {step}/100000 | lm loss 2.{number % 1000:03d} | lr 3.0e-04 | grad norm 0.812 |\n"
            )
    return "".join(lines)


def write_log(path: Path, *, megabytes: int, ranks: int, kind: str) -> float:
    """Write the log; returns its size in MB."""
    rng = random.Random(7)  # noqa: S311 - no secret
    block = log_block(rng, ranks=ranks, kind=kind).encode()
    with path.open("wb") as file:
        while file.tell() < megabytes * 10**6:
            file.write(block)
        for rank in range(ranks):
            file.write(_FAILURE.format(rank=rank, gpu=rank % 8).encode())
        return file.tell() / 1e6


def measure(*, megabytes: int, ranks: int, kind: str) -> Result:
    """Generate, diagnose in a child, remove."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.log"
        size = write_log(path, megabytes=megabytes, ranks=ranks, kind=kind)
        start = time.perf_counter()
        command = [sys.executable, "-m", "planner", "diagnose", str(path), "--json"]
        done = subprocess.run(command, capture_output=True, check=True, text=True)
        seconds = time.perf_counter() - start
    peak_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return Result(kind=kind, megabytes=size, seconds=seconds, peak_mib=peak_mib, cause=json.loads(done.stdout)["cause"])


def results(*, megabytes: int, ranks: int, kinds: list[str]) -> Iterator[Result]:
    """One result a kind."""
    for kind in kinds:
        yield measure(megabytes=megabytes, ranks=ranks, kind=kind)


def main() -> int:
    """Measure and print; 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--kind", choices=("quiet", "chatty", "failing"), action="append")
    given = parser.parse_args()
    missed = False
    for result in results(
        megabytes=given.megabytes, ranks=given.ranks, kinds=given.kind or ["quiet", "chatty", "failing"]
    ):
        print(
            f"{result.kind}: {result.megabytes:.0f} MB of {given.ranks} ranks in {result.seconds:.1f} s = "
            f"{result.megabytes_per_s:.0f} MB/s, peak {result.peak_mib:.0f} MiB (so far), cause {result.cause}"
        )
        missed |= result.megabytes_per_s < TARGET_MB_PER_S or result.peak_mib > TARGET_MIB
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())
