"""GPUs as drivers show them: through nvidia-smi, NVML, amdsmi and /sys, whole and in slices."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from planner.probe.gpus import look_at_gpus
from planner.probe.nvidia_smi import parse_topology
from planner.probe.records import GpuPair, GpuSight
from planner.trial import probe_machine
from tests.unit.probe.machines import DETAILS, GIB, SLICES, TOPOLOGY, cluster_node, fake_nvidia_smi, write

ROOT = Path(__file__).parents[3]


def _sight(tmp_path: Path, **given: Any) -> GpuSight:
    programs = tmp_path / "bin"
    programs.mkdir()
    return look_at_gpus(fake_nvidia_smi(programs, **given), cluster_node(tmp_path / "root"))


def pair_kind(pairs: tuple[GpuPair, ...], first: int, second: int) -> str:
    """How two GPUs are joined; "" where it is not known."""
    wanted = {first, second}
    return next((pair.kind for pair in pairs if {pair.first, pair.second} == wanted), "")


def test_every_fact_of_nvidia_smi_is_read(tmp_path: Path) -> None:
    sight = _sight(tmp_path)
    first, second = sight.gpus
    assert (sight.vendor, sight.driver_version, sight.cuda_version) == ("nvidia", "550.54", "12.4")
    assert pair_kind(sight.pairs, 1, 0) == "NV18"
    assert (first.details.nvlinks, first.details.nvlink_version) == (18, 4)
    assert (first.details.compute_capability, first.details.persistence) == ("9.0", True)
    assert (second.details.pcie.width, second.details.pcie.max_width) == (8, 16)
    assert (second.details.ecc.uncorrected, second.details.ecc.rows_pending) == (3, True)
    assert (second.details.power_limit_w, second.details.compute_mode) == (500.0, "exclusive process")
    assert second.details.throttled
    assert second.process_names == ((4242, "python3"),)


def test_slot_and_numa_node_come_from_the_kernel_where_the_driver_is_silent(tmp_path: Path) -> None:
    silent = {name: rows for name, rows in DETAILS.items() if not name.startswith("pcie")}
    gpu = _sight(tmp_path, details=silent).gpus[1]
    assert (gpu.details.numa_node, gpu.details.pcie.max_generation, gpu.details.pcie.generation) == (1, 5, 1)


def test_old_driver_that_refuses_fields_is_said_and_the_rest_stands(tmp_path: Path) -> None:
    sight = _sight(tmp_path, details={"pci.bus_id": DETAILS["pci.bus_id"]})
    assert sight.gpus[0].details.persistence is True
    assert sight.gpus[0].details.ecc.uncorrected is None
    assert any("remapped_rows" in words for words in sight.unseen)
    assert any("nvidia-ml-py is not installed" in words for words in sight.unseen)


def test_slices_are_devices_of_their_own_size(tmp_path: Path) -> None:
    details = {**DETAILS, "mig.mode.current": ["Enabled"]}
    gpus = "0, GPU-aaaa, NVIDIA H100 80GB HBM3, 81559, 80994, 550.54\n"
    (gpu,) = _sight(tmp_path, gpus=gpus, apps="", details=details, listing=SLICES).gpus
    assert gpu.details.mig_enabled
    assert [(one.profile, one.total_bytes // GIB) for one in gpu.details.mig_slices] == [
        ("3g.40gb", 40),
        ("1g.10gb", 10),
    ]
    assert gpu.details.mig_slices[0].share_fraction == pytest.approx(3 / 7)


def test_topology_of_pcie_and_sockets() -> None:
    text = TOPOLOGY.replace("GPU0\t X \tNV18", "GPU0\t X \tSYS")
    assert [pair.kind for pair in parse_topology(text)] == ["SYS"]
    assert parse_topology("") == ()
    assert parse_topology("Failed to initialize NVML") == ()


def test_gpu_without_a_driver_is_named(tmp_path: Path) -> None:
    write(tmp_path, "sys/bus/pci/devices/0000:4e:00.0/vendor", "0x10de\n")
    write(tmp_path, "sys/bus/pci/devices/0000:4e:00.0/class", "0x030200\n")
    sight = look_at_gpus({"PATH": str(tmp_path)}, tmp_path)
    assert sight.gpus == ()
    assert "1 NVIDIA GPU plugged in (0000:4e:00.0)" in sight.problem


def test_nothing_at_all_is_no_problem(tmp_path: Path) -> None:
    assert look_at_gpus({"PATH": str(tmp_path)}, tmp_path) == GpuSight()


def _amd_card(root: Path, number: int, *, used_gib: int) -> None:
    folder = f"sys/class/drm/card{number}/device"
    write(root, f"{folder}/vendor", "0x1002\n")
    write(root, f"{folder}/device", "0x74a1\n")
    write(root, f"{folder}/mem_info_vram_total", f"{192 * GIB}\n")
    write(root, f"{folder}/mem_info_vram_used", f"{used_gib * GIB}\n")
    write(root, f"{folder}/xgmi_device_id", "0x1\n")
    write(root, f"{folder}/ras/umc_err_count", "ue: 1\nce: 7\n")


def test_amd_gpus_are_read_from_the_kernel_without_any_library(tmp_path: Path) -> None:
    _amd_card(tmp_path, 2, used_gib=1)
    _amd_card(tmp_path, 10, used_gib=5)
    sight = look_at_gpus({"PATH": str(tmp_path)}, tmp_path)
    assert [gpu.state.name for gpu in sight.gpus] == ["AMD Instinct MI300X"] * 2
    assert [gpu.state.free_bytes // GIB for gpu in sight.gpus] == [191, 187]
    assert (sight.vendor, pair_kind(sight.pairs, 0, 1)) == ("amd", "XGMI")
    assert (sight.gpus[0].details.ecc.uncorrected, sight.gpus[0].details.ecc.corrected) == (1, 7)
    assert any("amdsmi is not installed" in words for words in sight.unseen)


def test_amd_gpus_that_are_hidden_do_not_count(tmp_path: Path) -> None:
    _amd_card(tmp_path, 0, used_gib=0)
    _amd_card(tmp_path, 1, used_gib=0)
    sight = look_at_gpus({"PATH": str(tmp_path), "HIP_VISIBLE_DEVICES": "1"}, tmp_path)
    assert [gpu.state.index for gpu in sight.gpus] == [1]


NVML = """
class NVMLError(Exception): pass
class _Bag:
    def __init__(self, **values): self.__dict__.update(values)
def _gpu(index, mig):
    return _Bag(index=index, mig=mig)
GPUS = [_gpu(0, 0), _gpu(1, 0)]
MIG = {mig}
def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return 2
def nvmlSystemGetDriverVersion(): return b"580.95"
def nvmlSystemGetCudaDriverVersion(): return 13000
def nvmlDeviceGetHandleByIndex(index): return GPUS[index]
def nvmlDeviceGetUUID(handle): return f"GPU-{{handle.index}}" if not handle.mig else f"MIG-{{handle.index}}"
def nvmlDeviceGetName(handle): return "NVIDIA H200"
def nvmlDeviceGetMemoryInfo(handle):
    return _Bag(total=18 << 30, free=17 << 30, used=0) if handle.mig else _Bag(total=141 << 30, free=140 << 30, used=0)
def nvmlDeviceGetComputeRunningProcesses(handle): return []
def nvmlDeviceGetCudaComputeCapability(handle): return (9, 0)
def nvmlDeviceGetPciInfo(handle): return _Bag(busId=f"0000000{{handle.index}}:4E:00.0".encode())
def nvmlDeviceGetMaxPcieLinkWidth(handle): return 16
def nvmlDeviceGetCurrPcieLinkWidth(handle): raise NVMLError("not supported")
def nvmlDeviceGetTotalEccErrors(handle, kind, counter): return 5 if kind == 1 and handle.index == 1 else 0
def nvmlDeviceGetRemappedRows(handle): return (0, 0, 1, 0)
def nvmlDeviceGetMigMode(handle): return (MIG, MIG)
def nvmlDeviceGetMaxMigDeviceCount(handle): return 7
def nvmlDeviceGetMigDeviceHandleByIndex(handle, place):
    if place > 1: raise NVMLError("not found")
    return _gpu(place, 1)
def nvmlDeviceGetAttributes_v2(handle): return _Bag(gpuInstanceSliceCount=1)
def nvmlDeviceGetNvLinkState(handle, link):
    if link > 17: raise NVMLError("invalid")
    return 1 if handle.index == 0 or link < 16 else 0
def nvmlDeviceGetNvLinkVersion(handle, link): return 4
def nvmlDeviceGetNvLinkRemoteDeviceType(handle, link): return 2
def nvmlDeviceGetTopologyCommonAncestor(one, other): return 50
def nvmlDeviceGetCurrentClocksThrottleReasons(handle): return 0x40
def nvmlDeviceGetPersistenceMode(handle): return 0
def nvmlDeviceGetComputeMode(handle): return 2
"""
_LOOK = (
    "import json; from planner.probe.gpus import look_at_gpus; from planner.spec.codec import to_plain; "
    "print(json.dumps(to_plain(look_at_gpus({}))))"
)


def _with_module(folder: Path, name: str, text: str) -> dict[str, Any]:
    """What a process with this module beside it sees."""
    (folder / f"{name}.py").write_text(text)
    environment = {"PYTHONPATH": f"{folder}:{ROOT}", "PATH": "/usr/bin:/bin"}
    answer = subprocess.run([sys.executable, "-c", _LOOK], env=environment, capture_output=True, text=True, check=True)
    sight: dict[str, Any] = json.loads(answer.stdout)
    return sight


def test_nvml_tells_details_and_what_it_does_not_answer_is_none(tmp_path: Path) -> None:
    sight = _with_module(tmp_path, "pynvml", NVML.format(mig=0))
    first, second = (gpu["details"] for gpu in sight["gpus"])
    assert (sight["source"], sight["driver_version"], sight["cuda_version"]) == ("NVML", "580.95", "13.0")
    assert (first["nvlinks"], second["nvlinks"], first["nvlink_bytes_per_s"]) == (18, 16, 25e9)
    assert sight["pairs"] == [{"first": 0, "second": 1, "kind": "NV18"}]
    assert (first["pcie"]["width"], first["pcie"]["max_width"]) == (None, 16)
    assert (second["ecc"]["uncorrected"], second["ecc"]["rows_pending"]) == (5, True)
    assert first["throttled"] == ["it is too hot (hardware)"]
    assert (first["persistence"], first["compute_mode"], first["num_cores"]) == (False, "prohibited", None)


def test_nvml_tells_slices(tmp_path: Path) -> None:
    sight = _with_module(tmp_path, "pynvml", NVML.format(mig=1))
    slices = sight["gpus"][0]["details"]["mig_slices"]
    assert [(one["profile"], one["free_bytes"]) for one in slices] == [("1g.18gb", 17 * GIB)] * 2


AMDSMI = """
def amdsmi_init(): {init}
def amdsmi_shut_down(): pass
def amdsmi_get_processor_handles(): return ["a", "b"]
def amdsmi_get_gpu_asic_info(handle): return {{"market_name": "AMD Instinct MI300X"}}
def amdsmi_get_gpu_vram_usage(handle): return {{"vram_total": 196608, "vram_used": 1024}}
def amdsmi_get_gpu_device_uuid(handle): return "uuid-" + handle
def amdsmi_get_gpu_process_list(handle):
    return [{{"pid": 77, "name": "python", "memory_usage": {{"vram_mem": 512}}}}] if handle == "b" else []
def amdsmi_topo_get_link_type(one, other): return {{"hops": 1, "type": 2}}
def amdsmi_get_gpu_driver_info(handle): return {{"driver_version": "6.12.12"}}
"""


def test_amdsmi_is_asked_where_it_is_installed(tmp_path: Path) -> None:
    sight = _with_module(tmp_path, "amdsmi", AMDSMI.format(init="pass"))
    assert (sight["vendor"], sight["source"], sight["driver_version"]) == ("amd", "amdsmi", "6.12.12")
    assert sight["gpus"][1]["state"]["free_bytes"] == (196608 - 1024) << 20
    assert sight["gpus"][1]["process_names"] == [[77, "python"]]
    assert sight["pairs"][0]["kind"] == "XGMI"


def test_amdsmi_that_fails_leaves_words(tmp_path: Path) -> None:
    sight = _with_module(tmp_path, "amdsmi", AMDSMI.format(init="raise RuntimeError('no driver')"))
    assert sight["gpus"] == []
    assert sight["problem"] == "amdsmi: no driver"


def test_only_the_slices_that_are_visible_count(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    gpus = "0, GPU-aaaa, NVIDIA H100 80GB HBM3, 81559, 80994, 550.54\n"
    details = {**DETAILS, "mig.mode.current": ["Enabled"]}
    environment = fake_nvidia_smi(programs, gpus=gpus, apps="", details=details, listing=SLICES)
    sight = look_at_gpus(environment | {"CUDA_VISIBLE_DEVICES": "MIG-2222"}, tmp_path)
    assert [one.profile for one in sight.gpus[0].details.mig_slices] == ["1g.10gb"]
    nothing = look_at_gpus(environment | {"CUDA_VISIBLE_DEVICES": "MIG-3333"}, tmp_path)
    assert (nothing.gpus, "names no MIG slice" in nothing.problem) == ((), True)


def test_trials_see_a_slice_as_a_device_of_its_own_size(tmp_path: Path) -> None:
    gpus = "0, GPU-aaaa, NVIDIA H100 80GB HBM3, 81559, 80994, 550.54\n"
    machine = probe_machine(fake_nvidia_smi(tmp_path, gpus=gpus, apps="", listing=SLICES))
    assert (machine.num_devices, machine.usable_bytes) == (2, 10 * GIB)
    assert machine.gpu_name == "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
