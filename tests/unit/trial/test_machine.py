"""Machines as `nvidia-smi` and NVML describe them: stand-ins at the border of the process, nothing inside replaced."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from planner.spec import DeviceKind
from planner.trial.machine import Machine, probe_cpu, probe_machine
from tests.unit.probe.test_gpus import AMDSMI

MIB = 1 << 20

TWO_GPUS = """\
0, GPU-aaaa, NVIDIA H200, 143771, 143156, 580.95
1, GPU-bbbb, NVIDIA H200, 143771, 133156, 580.95
"""
ONE_APP = "GPU-bbbb, 4242, 10000\nGPU-bbbb, 4243, [N/A]\n"


def _fake_smi(folder: Path, *, gpus: str, apps: str = "", exit_code: int = 0) -> dict[str, str]:
    (folder / "gpus.csv").write_text(gpus)
    (folder / "apps.csv").write_text(apps)
    program = folder / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\n"
        f'case "$1" in *compute-apps*) cat "{folder}/apps.csv";; *) cat "{folder}/gpus.csv";; esac\n'
        f"exit {exit_code}\n"
    )
    program.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def test_usable_memory_is_what_the_driver_has_free_on_the_fullest_gpu(tmp_path: Path) -> None:
    machine = probe_machine(_fake_smi(tmp_path, gpus=TWO_GPUS, apps=ONE_APP))
    assert machine.device is DeviceKind.CUDA
    assert (machine.gpu_name, machine.num_devices) == ("NVIDIA H200", 2)
    assert machine.usable_bytes == 133156 * MIB
    assert machine.total_bytes == 143771 * MIB
    assert ("nvidia-driver", "580.95") in machine.versions


def test_other_processes_are_named_with_what_they_hold(tmp_path: Path) -> None:
    machine = probe_machine(_fake_smi(tmp_path, gpus=TWO_GPUS, apps=ONE_APP))
    assert machine.gpus[0].processes == ()
    assert [(one.pid, one.used_bytes) for one in machine.gpus[1].processes] == [(4242, 10000 * MIB), (4243, 0)]
    assert "other processes hold memory on 1" in machine.describe()


def test_fingerprint_ignores_what_others_do_and_tells_hardware_apart(tmp_path: Path) -> None:
    def probe(gpus: str) -> Machine:
        return probe_machine(_fake_smi(tmp_path, gpus=gpus))

    quiet = probe(TWO_GPUS)
    assert probe(TWO_GPUS.replace("133156", "99999")).fingerprint == quiet.fingerprint
    assert probe(TWO_GPUS.replace("H200", "H100")).fingerprint != quiet.fingerprint
    assert probe(TWO_GPUS.splitlines()[0]).fingerprint != quiet.fingerprint


@pytest.mark.parametrize(
    ("visible", "indexes", "note"),
    [
        ("1", [1], ""),
        ("1,0", [1, 0], ""),
        ("GPU-aaaa", [0], ""),
        ("0,7,1", [0], "'7' names no whole GPU"),
        ("MIG-1234", [], "'MIG-1234' names no whole GPU"),
        ("", [], "hides every GPU"),
    ],
)
def test_only_visible_gpus_count(tmp_path: Path, visible: str, indexes: list[int], note: str) -> None:
    environment = _fake_smi(tmp_path, gpus=TWO_GPUS) | {"CUDA_VISIBLE_DEVICES": visible}
    machine = probe_machine(environment)
    assert [gpu.index for gpu in machine.gpus] == indexes
    assert note in " ".join(machine.notes)
    assert machine.device is (DeviceKind.CUDA if indexes else DeviceKind.CPU)


def test_different_gpus_are_said(tmp_path: Path) -> None:
    machine = probe_machine(_fake_smi(tmp_path, gpus=TWO_GPUS.replace("NVIDIA H200", "NVIDIA H100", 1)))
    assert "the GPUs differ" in machine.notes[0]


@pytest.mark.parametrize(("gpus", "exit_code"), [("", 9), ("Failed to initialize NVML: Driver/library mismatch\n", 0)])
def test_driver_that_fails_leaves_the_cpu_and_says_why(tmp_path: Path, gpus: str, exit_code: int) -> None:
    machine = probe_machine(_fake_smi(tmp_path, gpus=gpus, exit_code=exit_code))
    assert machine.device is DeviceKind.CPU
    assert machine.notes[0].startswith("nvidia-smi: ")


def test_machine_without_a_driver_is_a_cpu_machine(tmp_path: Path) -> None:
    machine = probe_machine({"PATH": str(tmp_path)})
    assert machine.device is DeviceKind.CPU
    assert machine.notes == ()
    assert 0 < machine.usable_bytes <= machine.total_bytes
    assert machine.num_devices * machine.total_bytes <= machine.host_memory_bytes
    assert "CPU ranks" in machine.describe()
    assert "\n" not in machine.describe()


def test_probe_cpu_is_a_cpu_machine_beside_any_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", _fake_smi(tmp_path, gpus=TWO_GPUS)["PATH"])
    assert probe_machine().device is DeviceKind.CUDA
    machine = probe_cpu()
    assert (machine.device, machine.gpus, machine.notes) == (DeviceKind.CPU, (), ())


FAKE_NVML = """
class NVMLError(Exception): pass
class Memory: total, free, used = 1000, 900, 100
class Process: pid, usedGpuMemory = 77, None
def nvmlInit(): {init}
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return 1
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetMemoryInfo(handle): return Memory
def nvmlDeviceGetComputeRunningProcesses(handle): return [Process]
def nvmlDeviceGetUUID(handle): return b"GPU-cccc"
def nvmlDeviceGetName(handle): return "NVIDIA L4"
def nvmlSystemGetDriverVersion(): return "580.1"
"""
PROBE = (
    "from planner.trial.machine import probe_machine as p; m = p({}); print(m.device, m.usable_bytes, m.gpus, m.notes)"
)


@pytest.mark.parametrize(
    ("init", "words"),
    [
        ("pass", ["cuda 900 ", "'NVIDIA L4'", "pid=77, used_bytes=0"]),
        ("raise NVMLError('no driver')", ["cpu ", "NVML: no driver"]),
    ],
)
def test_nvml_is_asked_when_it_is_installed(tmp_path: Path, init: str, words: list[str]) -> None:
    (tmp_path / "pynvml.py").write_text(FAKE_NVML.format(init=init))
    root = Path(__file__).parents[3]
    environment = {"PYTHONPATH": f"{tmp_path}:{root}", "PATH": "/usr/bin:/bin"}
    answer = subprocess.run([sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True, check=True)
    for word in words:
        assert word in answer.stdout


def test_gpus_of_amd_are_found_where_there_is_nothing_of_nvidia(tmp_path: Path) -> None:
    (tmp_path / "amdsmi.py").write_text(AMDSMI.format(init="pass"))
    environment = {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[3]}", "PATH": "/usr/bin:/bin"}
    program = "from planner.trial.machine import probe_machine as p; m = p({}); print(m.device, m.gpu_name, m.versions)"
    answer = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert answer.stdout.startswith("cuda AMD Instinct MI300X")
    assert "('amdgpu-driver', '6.12.12')" in answer.stdout


def test_probing_imports_no_torch() -> None:
    program = "import sys, planner.trial; planner.trial.probe_machine(); print('torch' in sys.modules)"
    environment = {"PYTHONPATH": str(Path(__file__).parents[3]), "PATH": "/usr/bin:/bin"}
    answer = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "False"
