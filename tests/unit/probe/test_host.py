"""Cores and memory as control groups and the kernel tell them, read from a made-up root folder."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from planner.probe.host import cpu_name, host_memory, kernel_oom_kills, usable_cores


def _write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_cores_follow_the_quota_rounded_up(tmp_path: Path) -> None:
    _write(tmp_path, "sys/fs/cgroup/cpu.max", "50000 100000\n")
    assert usable_cores(tmp_path) == 1


def test_cores_without_a_quota_are_those_of_the_affinity(tmp_path: Path) -> None:
    unlimited = usable_cores(tmp_path)
    _write(tmp_path, "sys/fs/cgroup/cpu.max", "max 100000\n")
    assert usable_cores(tmp_path) == unlimited >= 1


@pytest.mark.parametrize(
    ("limit", "used"),
    [
        ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.current"),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ],
)
def test_memory_is_the_containers_where_it_is_limited(tmp_path: Path, limit: str, used: str) -> None:
    _write(tmp_path, limit, "100000000\n")
    _write(tmp_path, used, "40000000\n")
    assert host_memory(tmp_path) == (100_000_000, 60_000_000)


@pytest.mark.parametrize("limit", ["max\n", "9223372036854771712\n"])
def test_memory_without_a_limit_is_the_hosts(tmp_path: Path, limit: str) -> None:
    _write(tmp_path, "sys/fs/cgroup/memory.max", limit)
    assert host_memory(tmp_path)[0] == psutil.virtual_memory().total


def test_oom_kills_are_read_from_the_kernels_counters(tmp_path: Path) -> None:
    assert kernel_oom_kills(tmp_path) == 0
    _write(tmp_path, "proc/vmstat", "nr_free_pages 12\noom_kill 3\npgfault 9\n")
    assert kernel_oom_kills(tmp_path) == 3


def test_cpu_name_is_the_model(tmp_path: Path) -> None:
    assert cpu_name(tmp_path) == "CPU"
    _write(tmp_path, "proc/cpuinfo", "processor\t: 0\nmodel name\t: Example 9000\n")
    assert cpu_name(tmp_path) == "Example 9000"
