"""What says that the host's memory, /dev/shm or a peer failed: Python, numpy, torch's CPU side, the kernel, schedulers,
launchers. Pure text.

Owns these phrases and the figures in them. Accelerators are `device_text`'s; tables of processes are `tables`'.
"""

from __future__ import annotations

import re

from planner.diagnose.records import EventKind, Figures
from planner.diagnose.sizes import compiled as sized
from planner.diagnose.sizes import find_size, size_bytes
from planner.spec._record import record

_SHARED = re.compile(
    r"posix_fallocate failed|shm\.h:\d+ NCCL WARN|shared memory segment nccl"
    r"|insufficient shared memory|out of shared memory|shared memory limit"
    r"|unable to open shared memory object|unable to write to file </torch_|unable to resize file <?/?torch_"
    r"|(?:Bus error|bus error|SIGBUS)|Error while creating shared memory segment"
    r"|/dev/shm/nccl-\S{0,80}.{0,40}(?:size|No space)"
    r"|No space left on device.{0,200}(?:/dev/shm|/torch_|shm)|(?:/dev/shm|/torch_|shm_open"
    r"|psm_).{0,200}No space left on device"
    r"|(?:/dev/shm|shm)\S{0,80} (?:is|was) (?:too small|full)"
)
_HOST = re.compile(
    r"DefaultCPUAllocator|CPUAllocator.{0,60}(?:can't allocate|not enough)|std::bad_alloc|[Cc]annot allocate memory"
    r"|_ArrayMemoryError|Unable to allocate \d|(?<![A-Za-z_])MemoryError\b|could not create a memory"
    r"|unable to mmap \d+ bytes|mmap.{0,40}Cannot allocate|can't start new thread|Errno 12\b"
    r"|not enough memory: you tried to allocate|memory allocation of \d+ bytes failed|malloc\(\d*\): .{0,20}memory"
    r"|(?:ArrowMemoryError|pyarrow.lib.ArrowMemoryError)|The paging file is too small|os error 1455"
    r"|Unable to create tensor.{0,40}host memory"
)
_KERNEL = re.compile(
    r"oom-kill:constraint=(?P<constraint>\w+)|invoked oom-killer|Out of memory: Kill(?:ed)? process (?P<pid>\d+)"
    r"|[Mm]emory cgroup out of memory|Memory cgroup stats for|Task in \S+ killed as a result of limit"
    r"|oom_reaper: reaped process (?P<reaped>\d+)|Killed process (?P<killed>\d+)[ ,].{0,80}total-vm"
)
# Schedulers and containers that watch a memory limit and say so.
_LIMIT = re.compile(
    r"Detected \d+ oom[_-]kill event|oom-kill event|OOM Killed|OOMKilled|OUT_OF_MEMORY|task \d+(?:-\d+)?: Out Of Memory"
    r"|Exceeded (?:job|step) memory limit|exceeded memory limit|TERM_MEMLIMIT|cgroup out-of-memory handler"
    r"|(?:Workers?|tasks?|actors?).{0,80}killed due to (?:memory pressure"
    r"|the node running low on memory)|ray.exceptions.OutOfMemoryError"
    r"|Container killed by the ApplicationMaster.{0,80}memory|killed as memory used by container"
)
_KILLED = re.compile(
    r"return code = (?P<code>-?\d+)|exit ?code:? ?[=:]?\s*(?P<exit>-?\d+)\b|exited with (?:exit )?code (?P<with>-?\d+)"
    r"|[Ee]xit [Cc]ode\s*:?\s*(?P<kube>-?\d+)\b|Signal (?P<signal>\d+) \(SIG|exited on signal (?P<mpi>\d+)"
    r"|died with <Signals\.SIG(?P<died>[A-Z]+): \d+>|killed by signal: (?P<named>[A-Za-z ]+)"
    r"|returned non-zero exit status (?P<status>-?\d+)|Received SIGKILL|with signal (?P<with_signal>\d+)\b"
    r"|\b(?:exit|exit_?code|exit_status|returncode|return_code)['\"]?\s{0,2}[:=]\s{0,2}['\"]?(?P<key>-?\d+)\b"
)
_KILLED_WORD = re.compile(
    r"^\s*\**Killed\**\s*$|\b\d+ Killed {2,}|: Killed\s*$|^zsh: killed\b|\bline \d+:\s+\d+ Killed\b|task \d+: Killed"
)
# A collective whose other side is gone: what a rank says when another failed, never the first cause.
_PEER_LOST = re.compile(
    r"ncclRemoteError|remote process exited or there was a network error|Connection (?:closed|reset) by peer"
    r"|Connection refused|connection was reset|Broken pipe|Socket Timeout|wait timeout after"
    r"|NCCL communicator was aborted"
    r"|Gloo connectFullMesh failed|recvValue failed|sendBytes failed|failed to recv, got 0 bytes"
)
_COLLECTIVE = re.compile(
    _PEER_LOST.pattern + r"|Watchdog caught collective operation timeout|collective operation timeout"
    r"|Some NCCL operations have failed or timed out|unhandled system error|unhandled cuda error"
    r"|ncclUnhandledCudaError|ncclInternalError"
    r"|Timed out initializing process group|store->get\(|heartbeat monitor|DistStoreError"
)
_ENDED = re.compile(
    r"DUE TO TIME LIMIT|CANCELLED AT|DUE TO PREEMPTION|Received SIGTERM|KeyboardInterrupt|SignalException"
    r"|got signal: (?:15|2)\b|illegal memory access|device-side assert|misaligned address"
    r"|Segmentation fault|SIGSEGV|SIGABRT"
    r"|invalid device ordinal|no kernel image is available|CUDA driver version is insufficient"
    r"|uncorrectable (?:NVLink|ECC)"
    r"|No space left on device|Disk quota exceeded|unspecified launch failure|CUDA error: invalid argument"
)
_SIGKILL_CODES = frozenset({-9, 137, 9})
_MEMORY_KILLS = {"Killed": -9, "KILL": -9, "Bus error": -7, "BUS": -7}
_KIB = re.compile(r"(anon-rss|total-vm|file-rss|shmem-rss):\s?([\d,]{1,20})\s?kB")


@record
class HostText:
    """The reading of one line."""

    kind: EventKind
    figures: Figures = Figures()
    exit_code: int | None = None
    pid: int | None = None
    is_cgroup: bool = False


def read_host_text(text: str) -> HostText | None:
    """The reading of a line or message; None when it reports no failure that is known here."""
    kernel = _KERNEL.search(text)
    if kernel is not None:
        return _kernel(kernel, text)
    if _LIMIT.search(text):
        return HostText(kind=EventKind.KERNEL_KILL, is_cgroup=True)
    if _SHARED.search(text):
        return HostText(kind=EventKind.SHARED_MEMORY, figures=Figures(requested=_shared_request(text)))
    if _HOST.search(text):
        return HostText(kind=EventKind.HOST_ALLOCATOR, figures=Figures(requested=_requested(text)))
    return _ending(text)


def says_peer_was_lost(text: str) -> bool:
    """Whether the text is that of a collective whose other side is gone: collateral damage, never the first cause."""
    return _PEER_LOST.search(text) is not None


def _ending(text: str) -> HostText | None:
    if _COLLECTIVE.search(text):
        return HostText(kind=EventKind.COLLECTIVE)
    code = exit_code_of(text)
    if code in _SIGKILL_CODES:
        return HostText(kind=EventKind.KILLED, exit_code=-9 if code == 9 else code, pid=_pid(text))
    if _KILLED_WORD.search(text) or "Received SIGKILL" in text:
        return HostText(kind=EventKind.KILLED, exit_code=-9, pid=_pid(text))
    if code == -7:
        return HostText(kind=EventKind.SHARED_MEMORY, exit_code=code, pid=_pid(text))
    if _ENDED.search(text) or code not in (None, 0):
        return HostText(kind=EventKind.OTHER_FAILURE, exit_code=code, pid=_pid(text))
    return None


def exit_code_of(text: str) -> int | None:
    """The exit code or (negative) signal that a launcher's line reports; None when it reports none."""
    found = _KILLED.search(text)
    if found is None:
        return None
    name = found["named"] or found["died"]
    if name:
        return _MEMORY_KILLS.get(name.strip(" ."), 1)
    signal = found["signal"] or found["mpi"] or found["with_signal"]
    if signal:
        return -int(signal[:4])
    code = found["code"] or found["exit"] or found["with"] or found["kube"] or found["status"] or found["key"]
    return int(code[:6]) if code else None


def _kernel(found: re.Match[str], text: str) -> HostText:
    pid = found["pid"] or found["killed"] or found["reaped"]
    sizes = {name: size_bytes(number, "kB") or 0 for name, number in _KIB.findall(text)}
    resident = sizes.get("anon-rss", 0) + sizes.get("file-rss", 0) + sizes.get("shmem-rss", 0)
    in_cgroup = "MEMCG" in (found["constraint"] or "") or "cgroup" in text or "as a result of limit" in text
    reaped_by_now = found["reaped"] is not None  # then its memory is gone already and the figures are those of nothing
    return HostText(
        kind=EventKind.KERNEL_KILL,
        figures=Figures(in_use=resident if resident and not reaped_by_now else None),
        pid=int(pid[:12]) if pid else _pid(text),
        is_cgroup=in_cgroup,
    )


def _requested(text: str) -> int | None:
    return (
        find_size(r"tried to allocate {SIZE}", text)
        or find_size(r"Unable to allocate {SIZE}", text)
        or find_size(r"memory allocation of {SIZE} failed", text)
        or find_size(r"unable to mmap {SIZE}", text)
    )


def _shared_request(text: str) -> int | None:
    found = sized(r"\(size (\d{1,18})[,)]").search(text)
    return int(found[1]) if found else None


def _pid(text: str) -> int | None:
    found = re.search(r"\bpid[:=]?\s?(\d{1,12})\b|\bPID (\d{1,12})\b|\bsubprocess (\d{1,12})\b", text)
    return int(next(filter(None, found.groups()))) if found else None
