"""Throughput and memory of `planner diagnose` on a generated log of many interleaved ranks.

    python -m tests.benchmarks.bench_diagnose [--megabytes 1000] [--ranks 64] [--kind quiet|chatty|failing]

The log is written to a temporary file, diagnosed by the console script in a child process, and removed. Printed: size,
seconds, CPU seconds, MB/s (of 10^6 bytes), the child's peak resident memory, and the verdict. Kinds: `quiet` has
progress lines and one failure at its end; `chatty` names memory in every line; `failing` prints an out-of-memory
message every few lines.
"""

from __future__ import annotations

import argparse
import json
import os
import random
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

# The child says its own high-water mark: what the kernel reports of a child may still be that of its parent.
_CHILD = """
import re, sys
from pathlib import Path
from planner.cli import main
try:
    main(["diagnose", sys.argv[1], "--json"])
except SystemExit as end:
    assert not end.code, end.code
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1], file=sys.stderr)
"""


@record
class Result:
    """One measurement."""

    kind: str
    megabytes: float
    seconds: float
    cpu_seconds: float
    peak_mib: float
    cause: str
    num_events: int

    @property
    def megabytes_per_s(self) -> float:
        """Megabytes read per second of the clock."""
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
        path, answer, marks = (Path(folder) / name for name in ("run.log", "answer.json", "marks.txt"))
        size = write_log(path, megabytes=megabytes, ranks=ranks, kind=kind)
        start = time.perf_counter()
        with answer.open("wb") as stdout, marks.open("wb") as stderr:
            child = subprocess.Popen([sys.executable, "-c", _CHILD, str(path)], stdout=stdout, stderr=stderr)
            _, status, used = os.wait4(child.pid, 0)  # the CPU time of this child alone
        seconds = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        document, peak_kib = json.loads(answer.read_text()), int(marks.read_text().split()[-1])
    return Result(
        kind=kind,
        megabytes=size,
        seconds=seconds,
        cpu_seconds=used.ru_utime + used.ru_stime,
        peak_mib=peak_kib / 1024,
        cause=document["cause"],
        num_events=len(document["events"]),
    )


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
            f"{result.kind}: {result.megabytes:.0f} MB of {given.ranks} ranks in {result.seconds:.1f} s "
            f"({result.cpu_seconds:.1f} s of CPU) = {result.megabytes_per_s:.0f} MB/s, "
            f"peak {result.peak_mib:.0f} MiB, cause {result.cause}"
        )
        missed |= result.megabytes_per_s < TARGET_MB_PER_S or result.peak_mib > TARGET_MIB
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())
