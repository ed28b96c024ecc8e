"""What the host gives this process: cores, memory, limits, and how often the kernel has killed for want of memory.

Containers and batch jobs are given less than the machine has; control groups say how much, each group on the way from
the root to the process's own. Leaves devices to `nvidia`, and putting all together to whoever asks.
"""

from __future__ import annotations

import math
import os
import platform
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from planner.probe.files import read_all
from planner.probe.records import HostState

MAX_CPU_RANKS = 4  # processes over gloo; more than that measures the operating system's scheduler
_ROOT = Path("/")
_UNLIMITED = 1 << 60  # what control groups of version 1 write for no limit is near 2^63
_CONTAINERS = (("kubepods", "kubernetes"), ("docker", "docker"), ("libpod", "podman"), ("lxc", "lxc"))


def usable_cores(root: Path = _ROOT) -> int:
    """Cores this process may keep busy: its affinity, and its control groups' quota rounded up."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in _groups(root, "cpu"):
        quota = _words(folder / "cpu.max") or [
            *_words(folder / "cpu.cfs_quota_us"),
            *_words(folder / "cpu.cfs_period_us"),
        ]
        if len(quota) == 2 and all(word.isdecimal() for word in quota) and int(quota[1]):
            cores = min(cores, math.ceil(int(quota[0]) / int(quota[1])))
    return max(1, cores)


def host_memory(root: Path = _ROOT) -> tuple[int, int]:
    """Total and available bytes, the control groups' limits included."""
    memory = psutil.virtual_memory()
    total, available = int(memory.total), int(memory.available)
    for folder in _groups(root, "memory"):
        limit = _first_number(folder / "memory.max", folder / "memory.limit_in_bytes")
        if limit is None or limit >= min(int(memory.total), _UNLIMITED):
            continue
        used = _first_number(folder / "memory.current", folder / "memory.usage_in_bytes")
        total = min(total, limit)
        available = min(available, max(0, limit - (used or 0) + _cache_bytes(folder)))
    return total, available


def kernel_oom_kills(root: Path = _ROOT) -> int:
    """Processes the kernel has killed for want of memory since the host started; 0 where it does not count them."""
    words = _words(root / "proc/vmstat")
    return int(words[words.index("oom_kill") + 1]) if "oom_kill" in words else 0


def cpu_name(root: Path = _ROOT) -> str:
    """The processor's name, or "CPU"."""
    lines = read_all(root / "proc/cpuinfo").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "CPU"


def look_at_host(environment: Mapping[str, str], root: Path = _ROOT) -> HostState:
    """Everything of the host that bears on training."""
    total, available = host_memory(root)
    machine_bytes = int(psutil.virtual_memory().total)
    shared = _shared_memory(root)
    nodes = _number_list(read_all(root / "sys/devices/system/node/online"))
    return HostState(
        cpu_name=cpu_name(root),
        cores=usable_cores(root),
        machine_cores=os.cpu_count() or 1,
        numa_nodes=nodes,
        allowed_numa_nodes=_allowed_nodes(root) or nodes,
        total_bytes=total,
        available_bytes=available,
        machine_bytes=machine_bytes,
        limit_bytes=total if total < machine_bytes else None,
        swap_bytes=int(psutil.swap_memory().total),
        shm_total_bytes=shared[0] if shared else None,
        shm_free_bytes=shared[1] if shared else None,
        locked_memory_bytes=_soft_limit(resource.RLIMIT_MEMLOCK),
        open_files=_soft_limit(resource.RLIMIT_NOFILE),
        container=_container(environment, root),
        kernel=platform.release(),
        oom_kills=kernel_oom_kills(root),
    )


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's control groups, the root's first, in both versions' layouts."""
    base = root / "sys/fs/cgroup"
    yield base
    yield base / controller
    for line in read_all(root / "proc/self/cgroup").splitlines():
        _number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if names and controller not in names.split(","):
            continue
        folder = base / controller if names else base
        for part in Path(path).parts:
            if part not in ("/", ".."):
                folder = folder / part
                yield folder


def _cache_bytes(folder: Path) -> int:
    """Pages of files that a group counts as used and the kernel gives back before anything is killed."""
    words = _words(folder / "memory.stat")
    values = dict(zip(words[::2], words[1::2]))
    found = values.get("inactive_file") or values.get("total_inactive_file") or ""
    return int(found) if found.isdecimal() else 0


def _shared_memory(root: Path) -> tuple[int, int] | None:
    try:
        stat = os.statvfs(root / "dev/shm")
    except OSError:
        return None
    return stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize


def _soft_limit(which: int) -> int | None:
    soft, _hard = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft


def _allowed_nodes(root: Path) -> tuple[int, ...]:
    """NUMA nodes with a core that this process may run on."""
    if not hasattr(os, "sched_getaffinity"):
        return ()
    allowed = os.sched_getaffinity(0)
    folders = sorted((root / "sys/devices/system/node").glob("node[0-9]*"))
    return tuple(
        int(folder.name[4:]) for folder in folders if allowed & set(_number_list(read_all(folder / "cpulist")))
    )


def _container(environment: Mapping[str, str], root: Path) -> str:
    if environment.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    groups = read_all(root / "proc/self/cgroup") + read_all(root / "proc/1/cgroup")
    named = next((name for word, name in _CONTAINERS if word in groups), "")
    if named:
        return named
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    if environment.get("APPTAINER_CONTAINER") or environment.get("SINGULARITY_CONTAINER"):
        return "apptainer"
    return "a container" if environment.get("container") else ""


def _number_list(text: str) -> tuple[int, ...]:
    """`0-3,8` to (0, 1, 2, 3, 8), as the kernel writes sets of cores and nodes."""
    found: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            found += range(int(first), min(int(last or first), 100_000) + 1)
    return tuple(found)


def _words(path: Path) -> list[str]:
    return read_all(path).split()


def _first_number(*paths: Path) -> int | None:
    for path in paths:
        words = _words(path)
        if words and words[0].isdecimal():
            return int(words[0])
    return None
