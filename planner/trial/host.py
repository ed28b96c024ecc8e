"""What the host gives this process: cores, memory, and how often the kernel has killed for want of it.

Containers are given less than the machine has; control groups say how much. Leaves devices to `nvidia`, and putting
all together to `machine`.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import psutil

_ROOT = Path("/")


def usable_cores(root: Path = _ROOT) -> int:
    """Cores this process may keep busy: its affinity, and the container's quota rounded up."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _words(root / "sys/fs/cgroup/cpu.max")
    if len(quota) == 2 and quota[0].isdecimal():
        cores = min(cores, math.ceil(int(quota[0]) / int(quota[1])))
    return max(1, cores)


def host_memory(root: Path = _ROOT) -> tuple[int, int]:
    """Total and available bytes, the container's limit included."""
    memory = psutil.virtual_memory()
    total, available = int(memory.total), int(memory.available)
    limit = _first_number(root / "sys/fs/cgroup/memory.max", root / "sys/fs/cgroup/memory/memory.limit_in_bytes")
    if limit is None or limit >= total:
        return total, available
    used = _first_number(root / "sys/fs/cgroup/memory.current", root / "sys/fs/cgroup/memory/memory.usage_in_bytes")
    return limit, max(0, min(available, limit - (used or 0)))


def kernel_oom_kills(root: Path = _ROOT) -> int:
    """Processes the kernel has killed for want of memory since the host started; 0 where it does not count them."""
    words = _words(root / "proc/vmstat")
    return int(words[words.index("oom_kill") + 1]) if "oom_kill" in words else 0


def cpu_name(root: Path = _ROOT) -> str:
    """The processor's name, or "CPU"."""
    path = root / "proc/cpuinfo"
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "CPU"


def _words(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def _first_number(*paths: Path) -> int | None:
    for path in paths:
        words = _words(path)
        if words and words[0].isdecimal():
            return int(words[0])
    return None
