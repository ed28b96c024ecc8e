"""The cluster file of a machine is read back by a job: catalog GPU, described GPU, slices, links, several nodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.catalog import load_gpu, load_link
from planner.probe.cluster_file import render_cluster_file
from planner.probe.examine import with_link, with_staircases
from planner.probe.measurements import Unusable, parse_link, parse_staircases
from planner.probe.records import (
    GpuPair,
    GpuSight,
    MachineReport,
    NetworkInterface,
    NetworkState,
    PcieLink,
    StaircaseResult,
)
from planner.spec import ClusterSpec, DeviceKind, Provenance
from tests.unit.jobfile.jobs import job_of
from tests.unit.probe.machines import GIB
from tests.unit.probe.test_findings import GBIT, GPUS, SIGHT, SLICE, gpu, report

JOB = """\
model: {name: tiny-llama-cpu}
training: {seq_len: 128, global_batch_size: 16}
cluster: {file: cluster.yaml}
"""


def read_back(folder: Path, machine: MachineReport, *, nodes: int = 1) -> ClusterSpec:
    """The cluster of a job that names the file."""
    (folder / "cluster.yaml").write_text(render_cluster_file(machine, nodes=nodes).text)
    return job_of(folder, JOB).cluster


def test_known_gpu_keeps_the_catalogs_speed_and_the_machines_memory(tmp_path: Path) -> None:
    cluster = read_back(tmp_path, report(), nodes=4)
    known = load_gpu("h100-sxm-80gb")
    assert (cluster.gpu.name, cluster.nodes, cluster.gpus_per_node) == ("h100-sxm-80gb", 4, 8)
    assert cluster.gpu.memory_usable_bytes == 79 * GIB
    assert cluster.gpu.peak_bf16_flops_per_s == known.peak_bf16_flops_per_s
    assert cluster.intra_node_link == load_link("nvlink4")
    assert cluster.inter_node_link == load_link("infiniband-ndr")
    assert cluster.host_memory_bytes == 2048 * GIB
    assert not cluster.is_this_machine  # it may be read anywhere


def test_cpu_machine_is_processes_with_an_even_share(tmp_path: Path) -> None:
    cluster = read_back(tmp_path, report(sight=GpuSight()))
    assert (cluster.gpu.device, cluster.gpus_per_node) == (DeviceKind.CPU, 4)
    assert cluster.gpu.memory_usable_bytes == 500 * GIB
    assert cluster.intra_node_link == load_link("loopback")


def test_gpu_of_no_catalog_is_described_from_its_clocks_and_cores(tmp_path: Path) -> None:
    card = gpu(
        compute_capability="8.9", memory_clock_mhz=10_501, memory_bus_bits=384, sm_clock_mhz=2520, num_cores=16_384
    )
    card = replace(card, state=replace(card.state, name="NVIDIA GeForce RTX 9999"))
    machine = report(sight=replace(SIGHT, gpus=(card,), pairs=()))
    cluster = read_back(tmp_path, machine)
    assert cluster.gpu.name == "geforce-rtx-9999"
    assert cluster.gpu.memory_bandwidth_bytes_per_s == pytest.approx(1008e9, rel=0.01)  # a 4090's, by these figures
    assert cluster.gpu.peak_bf16_flops_per_s == pytest.approx(165e12, rel=0.01)
    assert cluster.gpu.kind is Provenance.COMPUTED


def test_gpu_without_any_figures_is_not_made_up() -> None:
    card = replace(gpu(), state=replace(gpu().state, name="NVIDIA Unheard Of"))
    text = render_cluster_file(report(sight=replace(SIGHT, gpus=(card,))), nodes=1)
    assert text.text == ""
    assert "NVIDIA Unheard Of" in text.lacks


def test_slices_are_devices_with_their_share_of_speed(tmp_path: Path) -> None:
    cut = gpu(mig_enabled=True, mig_slices=(SLICE, SLICE))
    cluster = read_back(tmp_path, report(sight=GpuSight(gpus=(cut,), vendor="nvidia", source="NVML")))
    whole = load_gpu("h100-sxm-80gb")
    assert (cluster.gpus_per_node, cluster.gpu.memory_usable_bytes) == (2, 9 * GIB)
    assert cluster.gpu.peak_bf16_flops_per_s == pytest.approx(whole.peak_bf16_flops_per_s / 7, rel=0.01)
    assert cluster.gpu.memory_bandwidth_bytes_per_s < 0.2 * whole.memory_bandwidth_bytes_per_s


def test_narrow_slot_without_nvlink_is_its_share_of_pcie(tmp_path: Path) -> None:
    slot = PcieLink(max_generation=4, width=8, max_width=16)
    pair = (GpuPair(first=0, second=1, kind="PHB"),)
    sight = replace(SIGHT, gpus=tuple(gpu(index, pcie=slot, nvlinks=None) for index in range(2)), pairs=pair)
    link = read_back(tmp_path, report(sight=sight)).intra_node_link
    assert link.bandwidth_bytes_per_s == load_link("pcie4").bandwidth_bytes_per_s / 2


def test_network_is_shared_by_the_gpus_of_a_node(tmp_path: Path) -> None:
    wire = NetworkInterface(name="eth0", is_up=True, bytes_per_s=100 * GBIT, is_physical=True)
    machine = report(network=NetworkState(interfaces=(wire,)))
    assert read_back(tmp_path, machine, nodes=2).inter_node_link.bandwidth_bytes_per_s == pytest.approx(
        12.5 * GBIT, rel=1e-3
    )


def test_unknown_network_and_topology_are_as_usual_and_said(tmp_path: Path) -> None:
    machine = report(network=NetworkState(), sight=replace(SIGHT, pairs=()))
    text = render_cluster_file(machine, nodes=2).text
    assert "# inter_node_link: as usual for the GPU: no network" in text
    assert read_back(tmp_path, machine, nodes=2).inter_node_link == load_link("infiniband-ndr")


def _staircase(capacity: int, *, failed: int = 9) -> StaircaseResult:
    return StaircaseResult(
        device=0,
        capacity_bytes=capacity,
        allocated_bytes=capacity,
        context_bytes=0,
        largest_batch=8,
        failed_batch=failed,
        bytes_per_sample=1,
        steps=((1, 1), (8, capacity)),
        ended_by="CUDA out of memory",
    )


def test_measured_capacity_goes_before_what_is_free(tmp_path: Path) -> None:
    machine = with_staircases(report(), (_staircase(70 * GIB), _staircase(75 * GIB)))
    assert read_back(tmp_path, machine).gpu.memory_usable_bytes == 70 * GIB
    assert "--stress" in render_cluster_file(machine, nodes=1).text
    limited = replace(machine, usable_bytes=79 * GIB)  # a limit that was asked for: what is free stands
    assert "--stress" not in render_cluster_file(limited, nodes=1).text


def test_staircase_that_time_ended_says_nothing_of_the_capacity() -> None:
    assert with_staircases(report(), (_staircase(3 * GIB, failed=0),)).usable_bytes == 79 * GIB


LINK = """noise
{"backend": "nccl", "ranks": 8, "all_gather_bytes_per_s": 250e9, "rows": [
 {"message_bytes": 1024, "time_s": 3e-5, "bus_bytes_per_s": 6e7},
 {"message_bytes": 1073741824, "time_s": 4.3e-3, "bus_bytes_per_s": 436e9}]}""".replace("\n ", " ")


def test_measured_link_is_written_with_its_efficiency(tmp_path: Path) -> None:
    link = parse_link(LINK)
    assert link.bandwidth_bytes_per_s == pytest.approx(312e9)  # the mean of all-reduce, all-gather, reduce-scatter
    assert link.latency_s == pytest.approx(3e-5 / 6)
    seen = read_back(tmp_path, with_link(report(), link)).intra_node_link
    assert seen.kind is Provenance.MEASURED
    assert seen.bandwidth_bytes_per_s * seen.efficiency_fraction == pytest.approx(312e9, rel=0.01)
    assert seen.bandwidth_bytes_per_s == pytest.approx(450e9, rel=0.01)


@pytest.mark.parametrize("said", ["", "Traceback", "[]", "{}", '{"ranks": 1, "rows": []}', "[1]", "null", LINK[:80]])
def test_other_words_are_no_measurement(said: str) -> None:
    with pytest.raises(Unusable):
        parse_link(said)
    if said != "[]":
        with pytest.raises(Unusable):
            parse_staircases(said)


def test_every_gpu_of_a_sound_node_is_counted() -> None:
    assert report().num_devices == len(GPUS)
