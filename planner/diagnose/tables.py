"""Tables of processes and devices pasted into logs and notes: nvidia-smi, gpustat, CSV queries, the kernel's task dump.
Pure text."""

from __future__ import annotations

import re
from collections.abc import Iterable

from planner.diagnose.records import ProcessMemory

PAGE_BYTES = 4096  # the kernel's table counts pages

_SMI_PROCESS = re.compile(
    r"\|\s{1,8}(?P<gpu>\d{1,4})\s+(?:(?:N/A|\d+)\s+(?:N/A"
    r"|\d+)\s+)?(?P<pid>\d{1,12})\s+(?P<type>[CGM](?:\+[CGM])?)\s+(?P<name>\S.{0,80}?)\s+(?P<memory>\d{1,9}"
    r"|N/A)\s?(?:MiB)?\s?\|"
)
_SMI_DEVICE = re.compile(r"\|\s+(?P<used>\d{1,9})\s?MiB\s?/\s?(?P<total>\d{1,9})\s?MiB\s?\|")
_GPUSTAT = re.compile(
    r"^\s?\[(?P<gpu>\d{1,4})\]\s.{1,80}\|.{0,40}\|\s{0,9}(?P<used>\d{1,9})\s?/\s?(?P<total>\d{1,9})\s?MB\s?\|(?P<rest>.{0,400})"
)
_GPUSTAT_PROCESS = re.compile(
    r"(?P<user>[\w-]{1,32}):?(?P<command>[\w.-]{0,60})?(?:/(?P<pid>\d{1,12}))?\((?P<memory>\d{1,9})M\)"
)
_CSV = re.compile(r"^\s{0,4}(?P<pid>\d{1,12}),\s?(?:(?P<name>[^,\n]{1,120}),\s?)?(?P<memory>\d{1,9})\s?MiB\s{0,4}$")
_KERNEL = re.compile(
    r"\[\s{0,9}(?P<pid>\d{1,12})\]\s+\d{1,12}\s+\d{1,12}\s+(?P<vm>\d{1,15})\s+(?P<rss>\d{1,15})\s+(?:\d{1,15}\s+){1,5}(?P<adj>-?\d{1,6})\s+(?P<name>\S.{0,60})"
)


def device_process_of(text: str) -> ProcessMemory | None:
    """A process on a device: a row of nvidia-smi's lower table, or of `--query-compute-apps`."""
    found = _SMI_PROCESS.search(text)
    if found is not None:
        memory = None if found["memory"] == "N/A" else int(found["memory"]) * 2**20
        return ProcessMemory(
            pid=int(found["pid"]), memory_bytes=memory, gpu=int(found["gpu"]), name=found["name"].strip()
        )
    found = _CSV.match(text)
    if found is not None:
        return ProcessMemory(pid=int(found["pid"]), memory_bytes=int(found["memory"]) * 2**20, name=found["name"] or "")
    return None


def device_use_of(text: str) -> tuple[int, int] | None:
    """`(used, total)` bytes of a device: nvidia-smi's upper table or gpustat's line."""
    found = _SMI_DEVICE.search(text) or _GPUSTAT.search(text)
    return (int(found["used"]) * 2**20, int(found["total"]) * 2**20) if found else None


def gpustat_processes_of(text: str) -> tuple[ProcessMemory, ...]:
    """The processes that gpustat lists behind its line; pid 0 where it shows only users."""
    found = _GPUSTAT.search(text)
    if found is None:
        return ()
    return tuple(
        ProcessMemory(
            pid=int(process["pid"] or 0),
            memory_bytes=int(process["memory"]) * 2**20,
            gpu=int(found["gpu"]),
            name=process["command"] or process["user"],
        )
        for process in list(_GPUSTAT_PROCESS.finditer(found["rest"]))[:64]
    )


def kernel_processes_of(texts: Iterable[str]) -> tuple[ProcessMemory, ...]:
    """The rows of the kernel's table of tasks, with resident memory; the largest 64."""
    rows = {}
    for text in texts:
        found = _KERNEL.search(text)
        if found is not None:
            memory = int(found["rss"]) * PAGE_BYTES
            rows[int(found["pid"])] = ProcessMemory(
                pid=int(found["pid"]), memory_bytes=memory, name=found["name"].strip()
            )
    largest = sorted(rows.values(), key=lambda process: -(process.memory_bytes or 0))
    return tuple(largest[:64])
