"""The NVIDIA GPUs of this machine as the driver describes them, without opening one.

Asks NVML when `nvidia-ml-py` is installed, else the `nvidia-smi` program. Owns which of them `CUDA_VISIBLE_DEVICES`
leaves. Leaves judging to `machine`.
"""

from __future__ import annotations

import csv
import importlib
import importlib.util
import io
import subprocess
from collections.abc import Mapping
from typing import Any

from planner.spec._record import record

_MIB = 1 << 20
PROGRAM_TIMEOUT_S = 30.0  # without persistence mode the driver loads first, which takes seconds


@record
class ProcessMemory:
    pid: int
    used_bytes: int  # 0: the driver does not tell


@record
class GpuState:
    """One GPU. `free_bytes` is what the driver would give a process now; `processes` are those that hold some of it."""

    index: int
    uuid: str
    name: str
    total_bytes: int
    free_bytes: int
    processes: tuple[ProcessMemory, ...] = ()


@record
class NvidiaReport:
    """`note` says why there is nothing to see although there might be; "" when that is simply so."""

    gpus: tuple[GpuState, ...] = ()
    driver_version: str = ""
    note: str = ""


def probe_nvidia(environment: Mapping[str, str]) -> NvidiaReport:
    """The GPUs that a program started in this environment could use."""
    has_library = importlib.util.find_spec("pynvml") is not None
    report = _ask_library() if has_library else _ask_program(environment)
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None or not report.gpus:
        return report
    gpus, note = _only_visible(report.gpus, visible)
    return NvidiaReport(gpus=gpus, driver_version=report.driver_version, note=note)


def _only_visible(gpus: tuple[GpuState, ...], visible: str) -> tuple[tuple[GpuState, ...], str]:
    """In the order the variable names them; like CUDA, stop at the first entry that names no GPU."""
    chosen: list[GpuState] = []
    for entry in filter(None, (word.strip() for word in visible.split(","))):
        matches = [
            gpu for gpu in gpus if entry == str(gpu.index) or (entry[:4] == "GPU-" and gpu.uuid.startswith(entry))
        ]
        if len(matches) != 1:
            return tuple(chosen), f"CUDA_VISIBLE_DEVICES={visible!r}: {entry!r} names no whole GPU of this machine"
        chosen += matches
    return tuple(chosen), "" if chosen else "CUDA_VISIBLE_DEVICES hides every GPU"


def _ask_library() -> NvidiaReport:
    nvml: Any = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as problem:
        return NvidiaReport(note=f"NVML: {problem}")
    try:
        gpus = tuple(_library_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
        return NvidiaReport(gpus=gpus, driver_version=_text(nvml.nvmlSystemGetDriverVersion()))
    except nvml.NVMLError as problem:
        return NvidiaReport(note=f"NVML: {problem}")
    finally:
        nvml.nvmlShutdown()


def _library_gpu(nvml: Any, index: int) -> GpuState:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    return GpuState(
        index=index,
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        name=_text(nvml.nvmlDeviceGetName(handle)),
        total_bytes=int(memory.total),
        free_bytes=int(memory.free),
        processes=tuple(ProcessMemory(pid=one.pid, used_bytes=int(one.usedGpuMemory or 0)) for one in running),
    )


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()


def _ask_program(environment: Mapping[str, str]) -> NvidiaReport:
    try:
        rows = _query("--query-gpu=index,uuid,name,memory.total,memory.free,driver_version", environment)
        apps = _query("--query-compute-apps=gpu_uuid,pid,used_memory", environment)
        gpus = tuple(_program_gpu(row, apps) for row in rows)
    except (FileNotFoundError, PermissionError):  # the latter: it is in a folder of PATH that may not be looked into
        return NvidiaReport()  # no driver here
    except (subprocess.SubprocessError, ValueError) as problem:
        return NvidiaReport(note=f"nvidia-smi: {problem}")
    return NvidiaReport(gpus=gpus, driver_version=rows[0][5] if rows else "")


def _query(question: str, environment: Mapping[str, str]) -> list[list[str]]:
    answer = subprocess.run(
        ["nvidia-smi", question, "--format=csv,noheader,nounits"],
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=PROGRAM_TIMEOUT_S,
        check=True,
    )
    return [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(answer.stdout)) if row]


def _program_gpu(row: list[str], apps: list[list[str]]) -> GpuState:
    index, uuid, name, total_mib, free_mib = row[:5]
    return GpuState(
        index=int(index),
        uuid=uuid,
        name=name,
        total_bytes=int(total_mib) * _MIB,
        free_bytes=int(free_mib) * _MIB,
        processes=tuple(
            ProcessMemory(pid=int(pid), used_bytes=int(used) * _MIB if used.isdecimal() else 0)
            for app_uuid, pid, used in apps
            if app_uuid == uuid
        ),
    )
