"""The use case `probe`: look at this machine, measure what was asked for, write the cluster file."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from planner.app.probe_request import MachineFinding, ProbeRequest, ProbeResult
from planner.app.progress import Progress
from planner.errors import InputError
from planner.probe.cluster_file import ClusterText, render_cluster_file
from planner.probe.examine import assemble, with_link, with_staircases
from planner.probe.faults import find_faults
from planner.probe.gpus import look_at_gpus
from planner.probe.host import look_at_host
from planner.probe.measurements import Unusable, parse_link, parse_staircases
from planner.probe.network import look_at_network
from planner.probe.records import GpuSight, MachineReport, SoftwareState
from planner.probe.software import read_software
from planner.rules import Finding
from planner.rundir.atomic import write_whole
from planner.spec import DeviceKind
from planner.trial.environment import worker_environment
from planner.trial.program import run_program

_SOFTWARE_S = 180.0  # importing torch and DeepSpeed from a slow disk
_STAIRCASE_S = 120.0  # of climbing on one device; importing comes on top
_LINKS_S = 120.0
_SMALL_FREE_SHARE = 8  # a message of an all-reduce takes at most this part of what is free
_LARGEST_MESSAGE = 1 << 30


def probe_this_machine(request: ProbeRequest, *, console: Progress, root: Path = Path("/")) -> ProbeResult:
    """Describe this machine. InputError when the cluster file was asked for and cannot be written."""
    environment = dict(os.environ)
    _refuse_unwritable(request.out_path)
    console.stage("look at the machine")
    sight = look_at_gpus(environment, root)
    console.stage("ask what torch and DeepSpeed are built for")
    report = assemble(
        sight=sight,
        host=look_at_host(environment, root),
        network=look_at_network(root),
        software=_software(sight, environment),
    )
    if request.measure_links or (request.measure_links is None and len(sight.gpus) > 1):
        console.stage(f"measure the links between {report.num_devices} devices")
        report = _measure_links(report, environment)
    if request.stress:
        console.stage("raise a training step's batch until memory ends")
        report = _climb(report, request, environment)
    text = render_cluster_file(report, nodes=request.nodes)
    return ProbeResult(
        report=report,
        findings=tuple(map(_finding, find_faults(report, nodes=request.nodes))),
        cluster_file=text.text,
        lacks=text.lacks,
        written=_write(text, request.out_path),
    )


def _finding(finding: Finding) -> MachineFinding:
    return MachineFinding(
        code=finding.code,
        severity=finding.severity.value,
        key=finding.key,
        message=finding.message,
        why=finding.why,
        fix=finding.fix,
    )


def _software(sight: GpuSight, environment: Mapping[str, str]) -> SoftwareState:
    device = DeviceKind.CUDA if sight.gpus else DeviceKind.CPU
    said, problem = _child(["planner.runtime.software"], device, environment, limit_s=_SOFTWARE_S)
    return read_software(said, environment=environment, problem=problem)


def _measure_links(report: MachineReport, environment: Mapping[str, str]) -> MachineReport:
    """With what an all-reduce over all devices showed; why not, otherwise, is something that could not be seen."""
    if any(gpu.details.mig_enabled for gpu in report.sight.gpus):
        return _unseen(report, "the speed of links: NCCL does not join MIG slices")
    ranks = len(report.sight.gpus) or 2
    if report.device is DeviceKind.CUDA and ranks < 2:
        return _unseen(report, "the speed of links: there is one GPU")
    largest = min(_LARGEST_MESSAGE, report.usable_bytes // _SMALL_FREE_SHARE)
    module = ["planner.runtime.all_reduce", "--device", report.device.value, "--ranks", str(ranks)]
    module += ["--largest-bytes", str(largest), "--time-limit-s", str(_LINKS_S)]
    said, problem = _child(module, report.device, environment, limit_s=_LINKS_S + _SOFTWARE_S)
    try:
        return with_link(report, parse_link(said))
    except Unusable as nothing:
        return _unseen(report, f"the speed of links: the all-reduce did not run ({problem or nothing})")


def _climb(report: MachineReport, request: ProbeRequest, environment: Mapping[str, str]) -> MachineReport:
    """With what a staircase on every GPU reached, or on one rank's share of the host's memory."""
    limit = request.stress_memory_bytes
    if report.device is DeviceKind.CPU:
        limit = min(limit or report.usable_bytes, report.usable_bytes)
    devices = ",".join(str(place) for place in range(len(report.sight.gpus) or 1))
    if any(gpu.details.mig_slices for gpu in report.sight.gpus):
        devices = "0"  # a process sees one slice
    module = ["planner.runtime.staircase", "--device", report.device.value, "--devices", devices]
    module += ["--memory-limit-bytes", str(limit), "--time-limit-s", str(_STAIRCASE_S)]
    limit_s = _STAIRCASE_S * (len(devices.split(",")) + 1) + _SOFTWARE_S  # a step may outlast the climbing's end
    said, problem = _child(module, report.device, environment, limit_s=limit_s)
    try:
        climbed = with_staircases(report, parse_staircases(said))
    except Unusable as nothing:
        return _unseen(report, f"the real capacity: the staircase did not run ({problem or nothing})")
    # A limit that was asked for says nothing of the machine.
    return replace(climbed, usable_bytes=report.usable_bytes) if request.stress_memory_bytes else climbed


def _child(
    module: Sequence[str], device: DeviceKind, environment: Mapping[str, str], *, limit_s: float
) -> tuple[str, str]:
    """What a child program printed, and why it printed nothing useful ("" when it ended well)."""
    end = run_program(
        [sys.executable, "-m", *module], environment=worker_environment(device, environment), timeout_s=limit_s
    )
    if end.timed_out:
        return end.output, f"no answer within {limit_s:.0f} s"
    return end.output, "" if end.exit_code == 0 else end.last_words


def _unseen(report: MachineReport, words: str) -> MachineReport:
    return replace(report, unseen=(*report.unseen, words))


def _refuse_unwritable(path: Path | None) -> None:
    """Before anything is measured."""
    if path is None:
        return
    if path.is_dir():
        raise InputError(f"{str(path)!r} is a folder", why="--out names the cluster file", fix="name a file in it")
    if not path.parent.is_dir():
        raise InputError(f"there is no folder {str(path.parent)!r}", why="--out names a file in it", fix="create it")


def _write(text: ClusterText, path: Path | None) -> Path | None:
    if path is None:
        return None
    if not text.text:
        raise InputError(
            "the cluster file cannot be written",
            why=f"it lacks {text.lacks}",
            fix="add the GPU to your catalog (configs/README.md: a GPU in five lines), with its device_names",
        )
    write_whole(path, text.text.encode())
    return path
