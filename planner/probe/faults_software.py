"""What is wrong with the software for training on this machine: versions that do not go together. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from planner.probe.records import MachineReport, SoftwareState
from planner.rules import Finding, Severity
from planner.spec import DeviceKind

_ARCHITECTURE = re.compile(r"(?P<kind>sm|compute)_(?P<major>\d+)(?P<minor>\d)(?P<letter>[a-f]?)")
# What cannot be used without an operator of DeepSpeed.
_NEEDED_FOR = {
    "cpu_adam": "optimizer offload to the CPU",
    "async_io": "offload to disk (NVMe)",
    "fused_adam": "DeepSpeed's fused Adam",
}


def software_faults(report: MachineReport) -> Iterator[Finding]:
    """Findings about packages, drivers and compilers."""
    software = report.software
    yield from _broken(software)
    if report.sight.gpus and "torch" not in dict(software.problems) and software.version("torch"):
        yield from _torch(report)
        yield from _toolkit(report)
    yield from _operators(report)


def _broken(software: SoftwareState) -> Iterator[Finding]:
    for name in ("torch", "deepspeed", "transformers"):
        words = dict(software.problems).get(name, "")
        installed = software.version(name)
        if words and installed:
            yield Finding(
                code="machine-package-broken",
                severity=Severity.ERROR,
                key=f"software.{name}",
                message=f"{name} {installed} cannot be imported: {words}",
                why="a training process ends with the same words",
                fix=f"python -c 'import {name}' shows all of it; reinstall {name} to match torch and Python",
            )
        elif words or not installed:
            yield Finding(
                code="machine-package-missing",
                severity=Severity.ERROR if name == "torch" else Severity.WARNING,
                key=f"software.{name}",
                message=f"{name} is not installed",
                why="trials and the reference trainer need it",
                fix=f"pip install {name}",
            )


def _torch(report: MachineReport) -> Iterator[Finding]:
    software, sight = report.software, report.sight
    version = software.version("torch")
    if software.unseen:
        return
    if sight.vendor == "nvidia" and not software.torch_cuda:
        yield Finding(
            code="machine-torch-without-gpu",
            severity=Severity.ERROR,
            key="software.torch",
            message=f"torch {version} is built " + ("for AMD's GPUs" if software.torch_hip else "for the CPU alone"),
            why="it does not see this machine's GPUs",
            fix="install torch for CUDA: pytorch.org/get-started names the index for this driver",
        )
        return
    if sight.vendor == "amd" and not software.torch_hip:
        yield Finding(
            code="machine-torch-without-gpu",
            severity=Severity.ERROR,
            key="software.torch",
            message=f"torch {version} is not built for ROCm",
            why="it does not see this machine's AMD GPUs",
            fix="install torch for ROCm: pytorch.org/get-started names the index",
        )
        return
    yield from _driver(report)
    yield from _architecture(report)
    if software.torch_sees_gpus == 0:
        yield Finding(
            code="machine-torch-sees-no-gpu",
            severity=Severity.ERROR,
            key="software.torch",
            message=f"the driver shows {len(sight.gpus)} GPUs, torch {version} sees none",
            why="driver and libraries do not match, or the device files are not open to this user",
            fix="python -c 'import torch; torch.cuda.init()' says why",
        )


def _driver(report: MachineReport) -> Iterator[Finding]:
    """CUDA's minor versions are compatible with each other; a newer major one needs a newer driver."""
    built, driver = _numbers(report.software.torch_cuda), _numbers(report.sight.cuda_version)
    if not built or not driver or built <= driver:
        return
    newer_major = built[0] > driver[0]
    yield Finding(
        code="machine-driver-old",
        severity=Severity.ERROR if newer_major else Severity.INFO,
        key="software.driver",
        message=f"torch is built for CUDA {report.software.torch_cuda}; driver {report.sight.driver_version} runs up "
        f"to CUDA {report.sight.cuda_version}",
        why="programs for a newer major version of CUDA do not start ('driver version is insufficient')"
        if newer_major
        else "it runs by CUDA's minor-version compatibility; what has to be compiled at run time (PTX) may not",
        fix="update the driver, or install torch for an older CUDA",
    )


def _architecture(report: MachineReport) -> Iterator[Finding]:
    built = report.software.architectures
    for capability in sorted({gpu.details.compute_capability for gpu in report.sight.gpus} - {""}):
        if built and not any(_runs_on(name, capability) for name in built):
            name = "sm_" + capability.replace(".", "")
            yield Finding(
                code="machine-torch-lacks-architecture",
                severity=Severity.ERROR,
                key="software.torch",
                message=f"torch {report.software.version('torch')} has no code for {name} ({', '.join(built)})",
                why="kernels fail with 'no kernel image is available for execution on the device'",
                fix="install a newer torch, or one for a newer CUDA",
            )


def _runs_on(name: str, capability: str) -> bool:
    """Whether code built for `sm_86` or `compute_80` runs on a GPU of this capability.

    Binaries run within their major version, on the same or a newer minor one (those with a letter on their own alone);
    `compute_` is compiled by the driver for anything newer. CUDA C++ Programming Guide, binary and PTX compatibility.
    """
    found = _ARCHITECTURE.fullmatch(name)
    wanted = _numbers(capability)
    if found is None or not wanted:
        return False
    built = (int(found["major"]), int(found["minor"]))
    if found["kind"] == "compute":
        return built <= wanted
    return built == wanted if found["letter"] else built[0] == wanted[0] and built[1] <= wanted[1]


def _toolkit(report: MachineReport) -> Iterator[Finding]:
    """DeepSpeed builds its operators with nvcc when they are first used, and refuses another major version."""
    software = report.software
    built, toolkit = _numbers(software.torch_cuda), _numbers(software.toolkit_cuda)
    if report.sight.vendor != "nvidia" or not built:
        return
    if not toolkit and not software.ops_prebuilt:
        yield Finding(
            code="machine-no-nvcc",
            severity=Severity.INFO,
            key="software.nvcc",
            message="there is no nvcc (CUDA's compiler), and DeepSpeed's operators are not built in advance",
            why="what it compiles on first use (fused Adam, CPU Adam for offload) fails; torch's own Adam works",
            fix=f"install the CUDA toolkit {software.torch_cuda}, and set CUDA_HOME",
        )
    elif toolkit and toolkit[0] != built[0]:
        yield Finding(
            code="machine-nvcc-mismatch",
            severity=Severity.WARNING,
            key="software.nvcc",
            message=f"nvcc is of CUDA {software.toolkit_cuda}, torch of {software.torch_cuda}",
            why="DeepSpeed refuses to build its operators with another major version (CUDAMismatchException)",
            fix=f"point CUDA_HOME to a CUDA {software.torch_cuda} toolkit",
        )


def _operators(report: MachineReport) -> Iterator[Finding]:
    missing = [name for name in report.software.ops_not_buildable if name in _NEEDED_FOR]
    if report.device is DeviceKind.CPU:
        return  # what runs on GPUs is not asked of a CPU machine
    for name in missing:
        yield Finding(
            code="machine-operator-missing",
            severity=Severity.INFO,
            key=f"software.ops.{name}",
            message=f"DeepSpeed's operator {name} cannot be built here",
            why=f"{_NEEDED_FOR[name]} needs it",
            fix="install libaio-dev" if name == "async_io" else "ds_report says what is missing",
        )


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split(".")[:2]
    return tuple(int(part) for part in parts) if all(part.isdecimal() for part in parts) else ()
