"""What is wrong with the host for training: /dev/shm, memory, limits, cores. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from planner.diagnose.words import size
from planner.probe.records import MachineReport
from planner.rules import Finding, Severity
from planner.spec import DeviceKind

_GIB = 1 << 30
_SHM = "/dev/shm"  # noqa: S108 - the name of what is looked at
_SHM_BYTES_PER_RANK = _GIB // 2  # NCCL's buffers to its peers, and batches that data loader workers hand over
_SHM_TOO_SMALL_BYTES = 128 << 20  # Docker's default is 64 MiB
_FAR_BELOW_FRACTION = 0.5
_CORES_PER_GPU = 4  # the training process, its data loader workers, NCCL's and autograd's threads
_OPEN_FILES = 4096
_LOCKED_BYTES = 64 << 20


def host_faults(report: MachineReport) -> Iterator[Finding]:
    """Findings about the host."""
    yield from _shared_memory(report)
    yield from _memory(report)
    yield from _limits(report)
    yield from _cores(report)


def _shared_memory(report: MachineReport) -> Iterator[Finding]:
    total, free = report.host.shm_total_bytes, report.host.shm_free_bytes
    if total is None or free is None:
        return
    wanted = max(_GIB, _SHM_BYTES_PER_RANK * report.num_devices)
    if free >= wanted:
        return
    tiny = total < _SHM_TOO_SMALL_BYTES
    full = f", of which {size(free)} is free" if free < 0.9 * total else ""
    yield Finding(
        code="machine-shm-small",
        severity=Severity.ERROR if tiny and report.num_devices > 1 else Severity.WARNING,
        key="host.shm",
        message=f"{_SHM} has {size(total)}{full}; {report.num_devices} ranks want about {size(wanted)}",
        why="NCCL and data loader workers exchange data there and end with 'Bus error' or 'No space left on device' "
        "when it is full",
        fix=_shm_fix(report.host.container, wanted),
    )


def _shm_fix(container: str, wanted: int) -> str:
    gib = max(1, round(wanted / _GIB))
    if container == "kubernetes":
        return f"mount an emptyDir with medium: Memory and sizeLimit: {gib}Gi at /dev/shm"
    if container in ("docker", "podman"):
        return f"start the container with --shm-size={gib}g, or --ipc=host"
    return f"mount -o remount,size={gib}G /dev/shm (as root)"


def _memory(report: MachineReport) -> Iterator[Finding]:
    host = report.host
    if host.limit_bytes is not None and host.limit_bytes < _FAR_BELOW_FRACTION * host.machine_bytes:
        yield Finding(
            code="machine-memory-limited",
            severity=Severity.WARNING,
            key="host.memory",
            message=f"this process may have {size(host.limit_bytes)} of the host's {size(host.machine_bytes)}",
            why="a control group (of a container or a batch job) limits it; beyond that the kernel kills (exit -9)",
            fix="ask for more (docker run --memory, resources.limits.memory, sbatch --mem=0), or plan with this limit: "
            "the cluster file has it",
        )
    elif host.available_bytes < _FAR_BELOW_FRACTION * host.total_bytes:
        yield Finding(
            code="machine-memory-taken",
            severity=Severity.INFO,
            key="host.memory",
            message=f"{size(host.available_bytes)} of {size(host.total_bytes)} of host memory is available",
            why="others use the rest: offloading and loading of checkpoints have that much less",
            fix="see what it is (ps aux --sort=-rss | head)",
        )
    devices = sum(gpu.state.total_bytes for gpu in report.sight.gpus)
    if devices and host.total_bytes < devices:
        yield Finding(
            code="machine-host-smaller-than-gpus",
            severity=Severity.INFO,
            key="host.memory",
            message=f"host memory ({size(host.total_bytes)}) is less than that of the GPUs ({size(devices)})",
            why="optimizer offload and checkpoints that pass through the host may not fit, although the GPUs are full "
            "only in part",
            fix="keep offload off, and let ranks load checkpoints one after the other",
        )
    if host.oom_kills:
        yield Finding(
            code="machine-oom-kills",
            severity=Severity.INFO,
            key="host.memory",
            message=f"the kernel has killed {host.oom_kills} process(es) for want of memory since the host started",
            why="host memory has run out here before",
            fix="dmesg -T | grep -i 'killed process' shows which and when",
        )


def _limits(report: MachineReport) -> Iterator[Finding]:
    host = report.host
    locked, has_infiniband = host.locked_memory_bytes, bool(report.network.ports)
    trains = report.device is DeviceKind.CUDA
    if locked is not None and (has_infiniband or (trains and locked < _LOCKED_BYTES)):
        yield Finding(
            code="machine-memlock-low",
            severity=Severity.WARNING if has_infiniband else Severity.INFO,
            key="host.memlock",
            message=f"a process may lock {size(locked)} of memory (ulimit -l)",
            why="InfiniBand and RoCE register buffers as locked memory and fail with 'cannot allocate memory' beyond it"
            if has_infiniband
            else "DeepSpeed's offload to disk (aio with locked buffers) and InfiniBand need more",
            fix="ulimit -l unlimited (docker run --ulimit memlock=-1, LimitMEMLOCK=infinity in systemd, memlock in "
            "/etc/security/limits.conf)",
        )
    if host.open_files is not None and host.open_files < _OPEN_FILES and report.device is DeviceKind.CUDA:
        yield Finding(
            code="machine-open-files-low",
            severity=Severity.INFO,
            key="host.open_files",
            message=f"a process may open {host.open_files} files (ulimit -n)",
            why="many data loader workers and many ranks end with 'Too many open files'",
            fix="ulimit -n 65536",
        )


def _cores(report: MachineReport) -> Iterator[Finding]:
    host, gpus = report.host, len(report.sight.gpus)
    if gpus and host.cores < _CORES_PER_GPU * gpus:
        allowed = f" of the machine's {host.machine_cores}" if host.cores < host.machine_cores else ""
        yield Finding(
            code="machine-few-cores",
            severity=Severity.WARNING if host.cores < 2 * gpus else Severity.INFO,
            key="host.cores",
            message=f"{host.cores} CPU cores{allowed} for {gpus} GPU{'s' if gpus > 1 else ''}",
            why="loading data, starting kernels and NCCL share them; GPUs that wait for a core are idle",
            fix="ask for more cores (sbatch --cpus-per-task, resources.limits.cpu), or prepare the data beforehand",
        )
    nodes = {gpu.details.numa_node for gpu in report.sight.gpus if gpu.details.numa_node is not None}
    missing = nodes - set(host.allowed_numa_nodes)
    if missing and host.allowed_numa_nodes:
        yield Finding(
            code="machine-numa-far",
            severity=Severity.WARNING,
            key="host.numa",
            message=f"GPUs sit at NUMA node {', '.join(map(str, sorted(missing)))}, where this process may not run",
            why="its data then crosses the sockets on the way to them",
            fix="widen the process's cores (taskset, cpuset, sbatch --cpu-bind), or use the GPUs of its own node",
        )
