"""The logs of a trial: a bounded tail of each rank's, and all of them joined into the one file that is kept.

Owns bounds and prefixes. Leaves where the files lie to the pool.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

TAIL_BYTES = 4096  # kept with every outcome
KEPT_BYTES_PER_RANK = 8 << 20  # of a longer log, half from its beginning and half from its end


def read_tail(path: Path, *, limit_bytes: int = TAIL_BYTES) -> str:
    """The last part of a file, from a line's start where it was cut; "" when there is no file."""
    if not path.exists():
        return ""
    with path.open("rb") as log:
        size = log.seek(0, 2)
        log.seek(max(0, size - limit_bytes))
        tail = log.read()
    if size > limit_bytes and b"\n" in tail:
        tail = tail.partition(b"\n")[2]
    return tail.decode(errors="replace")


def join_logs(rank_logs: Iterable[tuple[int, Path]], *, into: Path, remarks: tuple[str, ...] = ()) -> None:
    """Write the ranks' logs one after the other into one file, each line prefixed with its rank."""
    with into.open("w", encoding="utf-8") as joined:
        for rank, path in rank_logs:
            if path.exists():
                for line in _kept_lines(path):
                    joined.write(f"[rank {rank}] {line}\n")
        for remark in remarks:
            joined.write(f"[trial] {remark}\n")


def _kept_lines(path: Path) -> Iterable[str]:
    size = path.stat().st_size
    with path.open("rb") as log:
        if size <= KEPT_BYTES_PER_RANK:
            yield from (line.rstrip(b"\r\n").decode(errors="replace") for line in log)
            return
        half = KEPT_BYTES_PER_RANK // 2
        yield from log.read(half).decode(errors="replace").splitlines()
        yield f"... {size - 2 * half} bytes left out ..."
        log.seek(size - half)
        yield from log.read(half).decode(errors="replace").splitlines()
