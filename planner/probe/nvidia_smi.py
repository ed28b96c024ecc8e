"""NVIDIA GPUs in detail through the `nvidia-smi` program, where NVML's Python binding is not installed.

Each group of fields is asked by itself, because an older driver refuses a whole question for one field it does not
know.
"""

from __future__ import annotations

import csv
import io
import re
import subprocess
from collections.abc import Mapping, Sequence

from planner.probe.nvidia import PROGRAM_TIMEOUT_S, GpuState
from planner.probe.nvml import NVLINK_BYTES_PER_S
from planner.probe.records import EccState, GpuDetails, GpuPair, MigSlice, PcieLink
from planner.spec._record import record

_GROUPS = (
    ("pci.bus_id", "compute_mode", "persistence_mode"),
    ("pcie.link.gen.current", "pcie.link.gen.max", "pcie.link.width.current", "pcie.link.width.max"),
    ("ecc.mode.current", "ecc.errors.corrected.volatile.total", "ecc.errors.uncorrected.volatile.total"),
    ("mig.mode.current",),
    ("enforced.power.limit", "power.default_limit"),
    ("compute_cap",),
    ("remapped_rows.pending", "remapped_rows.failure"),
    ("clocks_throttle_reasons.hw_slowdown", "clocks_throttle_reasons.sw_thermal_slowdown"),
)
_THROTTLES = {
    "clocks_throttle_reasons.hw_slowdown": "the hardware slows it (heat, power brake or external trigger)",
    "clocks_throttle_reasons.sw_thermal_slowdown": "it is too hot (software)",
}
_COMPUTE_MODES = {
    "default": "default",
    "exclusive_process": "exclusive process",
    "exclusive_thread": "exclusive thread",
    "prohibited": "prohibited",
}
_MIG_DEVICE = re.compile(
    r"^\s*MIG (?P<profile>(?P<slices>\d)(?:c\.\d)?g\.(?P<gib>\d+)gb\S*).*UUID: (?P<uuid>MIG-\S+)\)"
)
_GPU_LINE = re.compile(r"^GPU (?P<index>\d+):")
_LINK_LINE = re.compile(r"^\s*Link \d+:\s*(?P<speed>[\d.]+) GB/s")
_CUDA = re.compile(r"CUDA Version\s*:\s*(\d+\.\d+)")
_GIB = 1 << 30


@record
class ProgramDetails:
    """By index of the GPU. `unseen`: what this driver's `nvidia-smi` could not be asked."""

    details: dict[int, GpuDetails]
    pairs: tuple[GpuPair, ...]
    cuda_version: str
    unseen: tuple[str, ...]


def ask_program(gpus: Sequence[GpuState], environment: Mapping[str, str]) -> ProgramDetails:
    """Details of these GPUs."""
    values: dict[int, dict[str, str]] = {gpu.index: {} for gpu in gpus}
    unseen = []
    for group in _GROUPS:
        answer = _run(["--query-gpu=index," + ",".join(group), "--format=csv,noheader,nounits"], environment)
        if answer is None:
            unseen.append(f"nvidia-smi of this driver does not tell {', '.join(group)}")
            continue
        for row in csv.reader(io.StringIO(answer)):
            cells = [cell.strip() for cell in row]
            if len(cells) == len(group) + 1 and cells[0].isdecimal() and int(cells[0]) in values:
                values[int(cells[0])].update(zip(group, cells[1:]))
    slices = ask_slices(gpus, environment)
    links = _links(_run(["nvlink", "--status"], environment) or "")
    cuda = _CUDA.search(_run([], environment) or "")
    return ProgramDetails(
        details={
            gpu.index: _details(values[gpu.index], slices.get(gpu.index, ()), links.get(gpu.index)) for gpu in gpus
        },
        pairs=parse_topology(_run(["topo", "-m"], environment) or ""),
        cuda_version=cuda[1] if cuda else "",
        unseen=tuple(unseen),
    )


def ask_slices(gpus: Sequence[GpuState], environment: Mapping[str, str]) -> dict[int, tuple[MigSlice, ...]]:
    """The MIG devices of each GPU, by its index."""
    return _slices(_run(["-L"], environment) or "", gpus)


def _details(values: Mapping[str, str], slices: tuple[MigSlice, ...], links: tuple[int, float] | None) -> GpuDetails:
    number = {name: int(value) for name, value in values.items() if value.isdecimal()}
    switch = {name: _switch(value) for name, value in values.items()}
    version = _version_of(links[1]) if links else None
    return GpuDetails(
        pci_address=values.get("pci.bus_id", "").lower(),
        compute_capability=values.get("compute_cap", "") if "." in values.get("compute_cap", "") else "",
        pcie=PcieLink(
            generation=number.get("pcie.link.gen.current"),
            max_generation=number.get("pcie.link.gen.max"),
            width=number.get("pcie.link.width.current"),
            max_width=number.get("pcie.link.width.max"),
        ),
        ecc=EccState(
            enabled=switch.get("ecc.mode.current"),
            corrected=number.get("ecc.errors.corrected.volatile.total"),
            uncorrected=number.get("ecc.errors.uncorrected.volatile.total"),
            rows_pending=switch.get("remapped_rows.pending"),
            rows_failed=switch.get("remapped_rows.failure"),
        ),
        mig_enabled=bool(switch.get("mig.mode.current")),
        mig_slices=slices,
        persistence=switch.get("persistence_mode"),
        compute_mode=_COMPUTE_MODES.get(values.get("compute_mode", "").lower().replace(" ", "_"), ""),
        power_limit_w=_float(values.get("enforced.power.limit", "")),
        power_default_w=_float(values.get("power.default_limit", "")),
        throttled=tuple(words for name, words in _THROTTLES.items() if values.get(name) == "Active"),
        nvlinks=links[0] if links else None,
        nvlink_version=version,
        nvlink_bytes_per_s=NVLINK_BYTES_PER_S.get(version or 0),
    )


_GPU_NAME = re.compile(r"GPU[0-9]{1,4}")


def parse_topology(text: str) -> tuple[GpuPair, ...]:
    """The pairs of GPUs in the matrix of `nvidia-smi topo -m`."""
    lines = [line.split() for line in re.sub(r"\x1b\[\d*m", "", text).splitlines()]
    heads = next(([word for word in words if _GPU_NAME.fullmatch(word)] for words in lines if "GPU0" in words[:1]), [])
    columns = [word[3:] for word in heads]
    pairs = []
    for words in lines:
        if not words or words[0] not in heads or len(words) <= len(columns) or words[1] in heads:
            continue
        first = int(words[0][3:])
        for column, kind in zip(columns, words[1:]):
            if int(column) > first and re.fullmatch(r"NV\d+|PIX|PXB|PHB|NODE|SYS", kind):
                pairs.append(GpuPair(first=first, second=int(column), kind=kind))
    return tuple(pairs)


def _slices(text: str, gpus: Sequence[GpuState]) -> dict[int, tuple[MigSlice, ...]]:
    """MIG devices as `nvidia-smi -L` lists them: their size is that of their profile's name."""
    found: dict[int, tuple[MigSlice, ...]] = {gpu.index: () for gpu in gpus}
    index = -1
    for line in text.splitlines():
        gpu = _GPU_LINE.match(line)
        if gpu:
            index = int(gpu["index"])
        device = _MIG_DEVICE.match(line)
        if device and index in found:
            size = int(device["gib"]) * _GIB
            one = MigSlice(
                uuid=device["uuid"],
                profile=device["profile"],
                total_bytes=size,
                free_bytes=size,
                share_fraction=min(1.0, int(device["slices"]) / 7),
            )
            found[index] = (*found[index], one)
    return found


def _links(text: str) -> dict[int, tuple[int, float]]:
    """How many NVLinks of each GPU are up, and the GB/s of one."""
    found: dict[int, tuple[int, float]] = {}
    index = -1
    for line in text.splitlines():
        gpu, link = _GPU_LINE.match(line), _LINK_LINE.match(line)
        if gpu:
            index = int(gpu["index"])
            found[index] = (0, 0.0)
        elif link and index >= 0 and float(link["speed"]) > 0:
            found[index] = (found[index][0] + 1, float(link["speed"]))
    return found


def _version_of(gb_per_s: float) -> int | None:
    """The NVLink version by a link's raw rate: 19.9 (1), 25.781 (2, 3), 26.562 (4), 53.125 (5)."""
    steps = ((40.0, 5), (26.0, 4), (24.0, 3), (19.0, 1))
    return next((version for lowest, version in steps if gb_per_s >= lowest), None)


def _switch(value: str) -> bool | None:
    return {"enabled": True, "disabled": False, "yes": True, "no": False}.get(value.lower())


def _float(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else None


def _run(arguments: list[str], environment: Mapping[str, str]) -> str | None:
    """What it prints; None when it refuses, is not there, or does not answer in time."""
    try:
        answer = subprocess.run(
            ["nvidia-smi", *arguments],
            env=dict(environment),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROGRAM_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout if answer.returncode == 0 else None
