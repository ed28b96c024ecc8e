"""Throughput and memory on a generated log of 64 interleaved ranks: the benchmark in small, by CPU time."""

from __future__ import annotations

import pytest

from tests.benchmarks.bench_diagnose import TARGET_MB_PER_S, TARGET_MIB, measure

_START_S = 1.0  # importing, which a gigabyte's reading does not show


@pytest.mark.parametrize("kind", ["quiet", "chatty"])
def test_log_of_64_ranks_is_read_fast_and_in_little_memory(kind: str) -> None:
    result = measure(megabytes=60, ranks=64, kind=kind)
    assert result.num_events >= 64
    assert result.peak_mib < TARGET_MIB
    assert result.megabytes / max(result.cpu_seconds - _START_S, 0.01) > TARGET_MB_PER_S
