"""`planner probe` on a machine with GPUs: what it reports is what torch then sees and can have."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.app.probe import probe_this_machine
from planner.app.probe_request import ProbeRequest
from planner.app.progress import SilentProgress
from planner.catalog import read_cluster_file, resolve_cluster
from planner.spec import DeviceKind

pytestmark = pytest.mark.gpu


def test_staircase_reaches_what_the_driver_calls_free(tmp_path: Path) -> None:
    request = ProbeRequest(out_path=tmp_path / "cluster.yaml", stress=True)
    report = probe_this_machine(request, console=SilentProgress()).report
    assert report.device is DeviceKind.CUDA
    assert len(report.staircases) == report.num_devices
    for one in report.staircases:
        free = report.sight.gpus[one.device].state.free_bytes
        assert one.failed_batch > one.largest_batch
        assert 0.95 * free < one.capacity_bytes <= 1.01 * free
        assert 0 < one.context_bytes < 0.05 * free
    cluster = resolve_cluster(read_cluster_file(tmp_path / "cluster.yaml"))
    assert cluster.gpus_per_node == report.num_devices
    assert cluster.gpu.memory_usable_bytes == pytest.approx(report.usable_bytes, rel=1e-3)


def test_links_between_gpus_are_measured() -> None:
    result = probe_this_machine(ProbeRequest(), console=SilentProgress())
    if result.report.num_devices < 2:
        pytest.skip("one GPU")
    link = result.report.link
    assert link is not None
    assert link.backend == "nccl"
    assert link.rows[-1].bus_bytes_per_s > 100 * link.rows[0].bus_bytes_per_s
