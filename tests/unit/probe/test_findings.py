"""What is wrong with a machine: every finding has its cause, its reason and its mend, and a sound machine has none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.probe.examine import assemble
from planner.probe.faults import find_faults
from planner.probe.gpus import look_at_gpus
from planner.probe.network import look_at_network
from planner.probe.nvidia import GpuState
from planner.probe.records import (
    EccState,
    GpuDetails,
    GpuPair,
    GpuSight,
    HostState,
    InfinibandPort,
    MachineReport,
    MigSlice,
    NetworkInterface,
    NetworkState,
    PcieLink,
    SeenGpu,
    SoftwareState,
)
from tests.unit.probe.machines import GIB, cluster_node, fake_nvidia_smi

GBIT = 1e9 / 8

HOST = HostState(
    cpu_name="x",
    cores=96,
    machine_cores=96,
    numa_nodes=(0, 1),
    allowed_numa_nodes=(0, 1),
    total_bytes=2048 * GIB,
    available_bytes=2000 * GIB,
    machine_bytes=2048 * GIB,
    limit_bytes=None,
    swap_bytes=0,
    shm_total_bytes=1024 * GIB,
    shm_free_bytes=1024 * GIB,
    locked_memory_bytes=None,
    open_files=1_000_000,
    container="",
    kernel="6.8",
    oom_kills=0,
)
PORTS = tuple(
    InfinibandPort(device=f"mlx5_{place}", port=1, state="ACTIVE", bytes_per_s=400 * GBIT, link_layer="InfiniBand")
    for place in range(8)
)
NETWORK = NetworkState(ports=PORTS, has_gpu_direct=True)
SOFTWARE = SoftwareState(
    python="3.11.7",
    versions=(("torch", "2.11.0"), ("deepspeed", "0.19.8"), ("transformers", "5.24.0")),
    torch_cuda="12.8",
    architectures=("sm_80", "sm_90", "sm_100"),
    torch_sees_gpus=8,
    toolkit_cuda="12.8",
)


def gpu(index: int = 0, **details: Any) -> SeenGpu:
    """A sound H100; `details` differ."""
    usual: dict[str, Any] = {
        "compute_capability": "9.0",
        "numa_node": index // 4,
        "pcie": PcieLink(generation=5, max_generation=5, width=16, max_width=16),
        "ecc": EccState(enabled=True, corrected=0, uncorrected=0, rows_pending=False, rows_failed=False),
        "persistence": True,
        "compute_mode": "default",
        "nvlinks": 18,
        "nvlink_version": 4,
        "nvlink_bytes_per_s": 25e9,
        "fabric_state": "completed",
    }
    total = 81_559 << 20
    state = GpuState(index=index, uuid=str(index), name="NVIDIA H100 80GB HBM3", total_bytes=total, free_bytes=79 * GIB)
    return SeenGpu(state=state, details=GpuDetails(**{**usual, **details}))


GPUS = tuple(gpu(index) for index in range(8))
PAIRS = tuple(GpuPair(first=one, second=other, kind="NV18") for one in range(8) for other in range(one + 1, 8))
SIGHT = GpuSight(gpus=GPUS, pairs=PAIRS, vendor="nvidia", source="NVML", driver_version="570.1", cuda_version="12.8")


def report(**parts: Any) -> MachineReport:
    """A sound node of eight H100, but for `parts`."""
    whole: dict[str, Any] = {"sight": SIGHT, "host": HOST, "network": NETWORK, "software": SOFTWARE, **parts}
    return assemble(**whole)


def with_gpu(**details: Any) -> MachineReport:
    return report(sight=replace(SIGHT, gpus=(gpu(0, **details), *GPUS[1:])))


def test_sound_machine_has_no_finding() -> None:
    assert find_faults(report(), nodes=4) == ()


SLICE = MigSlice(uuid="MIG-1", profile="1g.10gb", total_bytes=10 * GIB, free_bytes=9 * GIB, share_fraction=1 / 7)
_SMALL_HOST = replace(HOST, total_bytes=512 * GIB, machine_bytes=512 * GIB, available_bytes=500 * GIB)
_ONE_DOWN = replace(NETWORK, ports=(replace(PORTS[0], state="DOWN"), *PORTS[1:5]))
_ONE_SLOW = replace(NETWORK, ports=(replace(PORTS[0], bytes_per_s=100 * GBIT), *PORTS[1:]))
_AMPERE_ONLY = replace(SOFTWARE, architectures=("sm_80", "sm_86"))
_NO_IMPORT = replace(SOFTWARE, problems=(("deepspeed", "ImportError: x"),))
WRONG: list[tuple[str, str, MachineReport, int]] = [
    ("machine-gpu-ecc-errors", "error", with_gpu(ecc=EccState(uncorrected=2)), 1),
    ("machine-gpu-broken-memory", "error", with_gpu(ecc=EccState(rows_failed=True)), 1),
    ("machine-gpu-needs-reset", "warning", with_gpu(ecc=EccState(rows_pending=True)), 1),
    ("machine-gpu-ecc-corrected", "info", with_gpu(ecc=EccState(corrected=5000)), 1),
    ("machine-pcie-narrow", "warning", with_gpu(pcie=PcieLink(width=8, max_width=16)), 1),
    ("machine-persistence-off", "info", with_gpu(persistence=False), 1),
    ("machine-gpu-prohibited", "error", with_gpu(compute_mode="prohibited"), 1),
    ("machine-gpu-exclusive", "info", with_gpu(compute_mode="exclusive process"), 1),
    ("machine-gpu-slowed", "warning", with_gpu(throttled=("it is too hot",)), 1),
    ("machine-gpu-power-limit", "info", with_gpu(power_limit_w=500.0, power_default_w=700.0), 1),
    ("machine-fabric-not-ready", "error", with_gpu(fabric_state="in progress"), 1),
    ("machine-nvlink-down", "warning", with_gpu(nvlinks=17), 1),
    ("machine-mig-without-slices", "error", with_gpu(mig_enabled=True), 1),
    ("machine-mig", "info", report(sight=GpuSight(gpus=(gpu(mig_enabled=True, mig_slices=(SLICE,)),))), 1),
    ("machine-no-nvlink", "info", report(sight=replace(SIGHT, pairs=(GpuPair(first=0, second=1, kind="PHB"),))), 1),
    (
        "machine-nvlink-partial",
        "warning",
        report(sight=replace(SIGHT, pairs=(*PAIRS[1:], GpuPair(first=0, second=1, kind="SYS")))),
        1,
    ),
    ("machine-shm-small", "error", report(host=replace(HOST, shm_total_bytes=64 << 20, shm_free_bytes=64 << 20)), 1),
    ("machine-shm-small", "warning", report(host=replace(HOST, shm_total_bytes=2 * GIB, shm_free_bytes=2 * GIB)), 1),
    (
        "machine-memory-limited",
        "warning",
        report(host=replace(HOST, total_bytes=700 * GIB, limit_bytes=700 * GIB, available_bytes=690 * GIB)),
        1,
    ),
    ("machine-memory-taken", "info", report(host=replace(HOST, available_bytes=500 * GIB)), 1),
    ("machine-host-smaller-than-gpus", "info", report(host=_SMALL_HOST), 1),
    ("machine-memlock-low", "warning", report(host=replace(HOST, locked_memory_bytes=8 << 20)), 1),
    ("machine-open-files-low", "info", report(host=replace(HOST, open_files=1024)), 1),
    ("machine-few-cores", "warning", report(host=replace(HOST, cores=8)), 1),
    ("machine-numa-far", "warning", report(host=replace(HOST, allowed_numa_nodes=(0,))), 1),
    ("machine-oom-kills", "info", report(host=replace(HOST, oom_kills=3)), 1),
    ("machine-no-infiniband", "warning", report(network=NetworkState()), 2),
    ("machine-infiniband-down", "info", report(network=_ONE_DOWN), 1),
    ("machine-infiniband-slow", "warning", report(network=_ONE_SLOW), 1),
    ("machine-no-gpu-direct", "info", report(network=replace(NETWORK, has_gpu_direct=False)), 2),
    ("machine-ports-uneven", "info", report(network=replace(NETWORK, ports=PORTS[:3])), 2),
    ("machine-torch-without-gpu", "error", report(software=replace(SOFTWARE, torch_cuda="")), 1),
    ("machine-driver-old", "error", report(software=replace(SOFTWARE, torch_cuda="13.0")), 1),
    ("machine-driver-old", "info", report(sight=replace(SIGHT, cuda_version="12.4")), 1),
    ("machine-torch-lacks-architecture", "error", report(software=_AMPERE_ONLY), 1),
    ("machine-torch-sees-no-gpu", "error", report(software=replace(SOFTWARE, torch_sees_gpus=0)), 1),
    ("machine-nvcc-mismatch", "warning", report(software=replace(SOFTWARE, toolkit_cuda="11.8")), 1),
    ("machine-no-nvcc", "info", report(software=replace(SOFTWARE, toolkit_cuda="")), 1),
    ("machine-operator-missing", "info", report(software=replace(SOFTWARE, ops_not_buildable=("async_io",))), 1),
    ("machine-package-broken", "error", report(software=_NO_IMPORT), 1),
    ("machine-package-missing", "error", report(software=replace(SOFTWARE, versions=SOFTWARE.versions[1:])), 1),
    ("machine-driver-mismatch", "error", report(sight=GpuSight(problem="NVML: Driver/library version mismatch")), 1),
    ("machine-gpu-unusable", "error", report(sight=GpuSight(problem="NVML: Unknown Error")), 1),
    ("machine-no-gpu", "info", report(sight=GpuSight()), 1),
]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "severity", "machine", "nodes"), WRONG, ids=[f"{case[0]}-{case[1]}" for case in WRONG]
)
def test_each_fault_is_found_with_its_mend(code: str, severity: str, machine: MachineReport, nodes: int) -> None:
    found = find_faults(machine, nodes=nodes)
    (finding,) = [item for item in found if item.code == code]
    assert finding.severity.value == severity
    assert finding.message
    assert finding.why
    assert finding.fix
    gravest = [item for item in found if item.severity.value == "error"]
    assert {item.code for item in gravest} <= {code}  # a fault of one part is no error of another


def test_newer_gpu_runs_code_that_the_driver_compiles() -> None:
    old = replace(SOFTWARE, architectures=("sm_80", "compute_80"))
    assert not any(
        item.code == "machine-torch-lacks-architecture" for item in find_faults(report(software=old), nodes=1)
    )
    minor = replace(SIGHT, gpus=tuple(gpu(index, compute_capability="8.6") for index in range(8)))
    built = replace(SOFTWARE, architectures=("sm_80", "sm_90"))
    found = find_faults(report(sight=minor, software=built), nodes=1)
    assert not any(item.code == "machine-torch-lacks-architecture" for item in found)


def test_other_processes_are_named_with_what_they_hold(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    root = cluster_node(tmp_path / "root")
    sight = look_at_gpus(fake_nvidia_smi(tmp_path / "bin"), root)
    network = look_at_network(root)
    machine = report(sight=sight, network=network)
    messages = {item.code: item.message for item in find_faults(machine, nodes=2)}
    assert "process 4242 (python3) holds 9.77 GiB" in messages["machine-gpu-shared"]
    assert "mlx5_1:1 DOWN" in messages["machine-infiniband-down"]
    assert machine.usable_bytes == 70994 << 20


def test_slow_ethernet_between_nodes_is_named_with_its_speed() -> None:
    slow = NetworkInterface(name="eth0", is_up=True, bytes_per_s=10 * GBIT, is_physical=True)
    (finding,) = find_faults(report(network=NetworkState(interfaces=(slow,))), nodes=2)
    assert "2 nodes" in finding.message
    assert "10 Gbit/s" in finding.message
    fast = replace(slow, bytes_per_s=400 * GBIT)
    assert find_faults(report(network=NetworkState(interfaces=(fast,))), nodes=2) == ()


def test_a_container_says_what_it_may_hide() -> None:
    machine = report(host=replace(HOST, container="docker"))
    assert any("container (docker)" in words for words in machine.unseen)
    small = replace(HOST, container="docker", shm_total_bytes=64 << 20, shm_free_bytes=64 << 20)
    (finding,) = find_faults(report(host=small), nodes=1)
    assert "--shm-size=4g" in finding.fix
