"""What is wrong with this machine's GPUs: who else holds their memory, errors, slots, links, how they are set. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from planner.diagnose.words import size
from planner.probe.cluster_file import catalog_gpu
from planner.probe.examine import all_slices
from planner.probe.records import MachineReport, SeenGpu
from planner.rules import Finding, Severity

_GIB = 1 << 30
_DRIVER_FRACTION = 0.03  # of a GPU's memory, that a driver may keep for itself
_DRIVER_BYTES = _GIB
_UNEVEN_FRACTION = 0.02
_MANY_CORRECTED = 1000  # single-bit errors are mended on the fly; thousands announce worse
_POWER_FRACTION = 0.97


def gpu_faults(report: MachineReport) -> Iterator[Finding]:
    """Findings about the GPUs, or about there being none."""
    if not report.sight.gpus:
        yield from _no_gpu(report)
        return
    for gpu in report.sight.gpus:
        yield from _memory(gpu)
        yield from _errors(gpu)
        yield from _slot(gpu)
        yield from _settings(gpu)
        yield from _pace(gpu)
    yield from _differences(report)
    yield from _slices(report)
    yield from _links(report)
    yield from _catalog(report)


def _no_gpu(report: MachineReport) -> Iterator[Finding]:
    problem = report.sight.problem
    if "mismatch" in problem:
        yield Finding(
            code="machine-driver-mismatch",
            severity=Severity.ERROR,
            key="gpus",
            message=f"the driver does not answer: {problem}",
            why="the loaded kernel module and the driver's libraries are of two versions, as after an update",
            fix="reboot, or unload and load the driver's modules again",
        )
    elif problem:
        yield Finding(
            code="machine-gpu-unusable",
            severity=Severity.ERROR,
            key="gpus",
            message=f"no GPU can be used here: {problem}",
            why="training would run on the CPU",
            fix="install the driver; in a container, start it with the GPUs (docker run --gpus all, or the device "
            "plugin's resource limit)",
        )
    else:
        yield Finding(
            code="machine-no-gpu",
            severity=Severity.INFO,
            key="gpus",
            message="no GPU: what is described is processes of the CPU",
            why="neither NVIDIA's nor AMD's driver shows one, and none is plugged in",
            fix="run planner probe on the machine that will train",
        )


def _memory(gpu: SeenGpu) -> Iterator[Finding]:
    state, key = gpu.state, f"gpus[{gpu.state.index}].memory"
    missing = state.total_bytes - state.free_bytes
    if state.processes:
        names = dict(gpu.process_names)
        held = [
            f"{one.pid}{f' ({names[one.pid]})' if one.pid in names else ''}"
            + (f" holds {size(one.used_bytes)}" if one.used_bytes else "")
            for one in state.processes[:4]
        ]
        more = f" and {len(state.processes) - 4} more" if len(state.processes) > 4 else ""
        yield Finding(
            code="machine-gpu-shared",
            severity=Severity.WARNING,
            key=key,
            message=f"GPU {state.index}: {size(state.free_bytes)} of {size(state.total_bytes)} is free; "
            f"process {', '.join(held)}{more}",
            why="their memory is missing to training, and every measurement is disturbed by them",
            fix=f"end them if they are yours (kill {state.processes[0].pid}), or choose GPUs with CUDA_VISIBLE_DEVICES",
        )
    elif missing > max(_DRIVER_BYTES, _DRIVER_FRACTION * state.total_bytes) and not gpu.details.mig_enabled:
        yield Finding(
            code="machine-gpu-memory-held",
            severity=Severity.WARNING,
            key=key,
            message=f"GPU {state.index}: {size(missing)} of {size(state.total_bytes)} is taken, "
            "by no process that can be seen",
            why="processes outside this container are not shown to it, and a killed one may hold memory until it is "
            "reaped",
            fix="look with nvidia-smi on the host; `fuser -v /dev/nvidia*` shows processes that it does not list",
        )


def _errors(gpu: SeenGpu) -> Iterator[Finding]:
    index, ecc = gpu.state.index, gpu.details.ecc
    key = f"gpus[{index}].ecc"
    if ecc.rows_failed:
        yield Finding(
            code="machine-gpu-broken-memory",
            severity=Severity.ERROR,
            key=key,
            message=f"GPU {index}: a broken row of its memory could not be replaced",
            why="spare rows are used up; the next error there ends the run",
            fix="take the GPU out of service and have it replaced",
        )
    if ecc.uncorrected:
        yield Finding(
            code="machine-gpu-ecc-errors",
            severity=Severity.ERROR,
            key=key,
            message=f"GPU {index}: {ecc.uncorrected} memory error(s) since the driver was loaded that could not be "
            "corrected",
            why="each ends the process that met it, and more follow as a rule",
            fix="reset the GPU (nvidia-smi --gpu-reset) or reboot; replace it when they come back",
        )
    elif ecc.rows_pending:
        yield Finding(
            code="machine-gpu-needs-reset",
            severity=Severity.WARNING,
            key=key,
            message=f"GPU {index}: a broken row of its memory waits to be replaced by a spare one",
            why="that happens at the next reset",
            fix="reset the GPU (nvidia-smi --gpu-reset) or reboot before a long run",
        )
    elif (ecc.corrected or 0) >= _MANY_CORRECTED:
        yield Finding(
            code="machine-gpu-ecc-corrected",
            severity=Severity.INFO,
            key=key,
            message=f"GPU {index}: {ecc.corrected} corrected memory errors since the driver was loaded",
            why="they do no harm by themselves, but so many announce worse",
            fix="watch it; a health check (dcgmi diag -r 3) tells more",
        )


def _slot(gpu: SeenGpu) -> Iterator[Finding]:
    index, pcie = gpu.state.index, gpu.details.pcie
    if pcie.width and pcie.max_width and pcie.width < pcie.max_width:
        yield Finding(
            code="machine-pcie-narrow",
            severity=Severity.WARNING,
            key=f"gpus[{index}].pcie",
            message=f"GPU {index} has {pcie.width} PCIe lanes of {pcie.max_width}",
            why="offloading, data loading and GPUs without NVLink go through them; a card that sits badly, a riser or "
            "a shared slot takes some away",
            fix="reseat the card or use another slot; in a virtual machine ask the provider",
        )


def _settings(gpu: SeenGpu) -> Iterator[Finding]:
    index, details = gpu.state.index, gpu.details
    if details.compute_mode == "prohibited":
        yield Finding(
            code="machine-gpu-prohibited",
            severity=Severity.ERROR,
            key=f"gpus[{index}].compute_mode",
            message=f"GPU {index} is set to take no compute processes",
            why="every CUDA program fails on it",
            fix=f"nvidia-smi -i {index} -c DEFAULT (as root)",
        )
    elif details.compute_mode.startswith("exclusive"):
        yield Finding(
            code="machine-gpu-exclusive",
            severity=Severity.INFO,
            key=f"gpus[{index}].compute_mode",
            message=f"GPU {index} takes one process at a time ({details.compute_mode})",
            why="a second process on it (a test beside the run, a data loader that touches the GPU) fails",
            fix=f"nothing, if that is meant; else nvidia-smi -i {index} -c DEFAULT (as root)",
        )
    if details.persistence is False:
        yield Finding(
            code="machine-persistence-off",
            severity=Severity.INFO,
            key=f"gpus[{index}].persistence",
            message=f"GPU {index} is not in persistence mode",
            why="the driver unloads when no program runs: every start takes seconds longer and settings are lost",
            fix="start nvidia-persistenced, or nvidia-smi -pm 1 (as root)",
        )
    if details.fabric_state and details.fabric_state != "completed":
        yield Finding(
            code="machine-fabric-not-ready",
            severity=Severity.ERROR,
            key=f"gpus[{index}].fabric",
            message=f"GPU {index} has not joined the NVSwitch fabric ({details.fabric_state})",
            why="CUDA programs fail with error 802 (system not yet initialized) until it has",
            fix="start nvidia-fabricmanager, of exactly the driver's version",
        )


def _pace(gpu: SeenGpu) -> Iterator[Finding]:
    """What keeps it from its full speed now."""
    index, details = gpu.state.index, gpu.details
    if details.throttled:
        yield Finding(
            code="machine-gpu-slowed",
            severity=Severity.WARNING,
            key=f"gpus[{index}].clocks",
            message=f"GPU {index} is slowed down now: {'; '.join(details.throttled)}",
            why="the slowest GPU sets the pace of all",
            fix="look after cooling and power, and measure again",
        )
    limit, usual = details.power_limit_w, details.power_default_w
    if limit and usual and limit < _POWER_FRACTION * usual:
        yield Finding(
            code="machine-gpu-power-limit",
            severity=Severity.INFO,
            key=f"gpus[{index}].power",
            message=f"GPU {index} is limited to {limit:.0f} W of its {usual:.0f} W",
            why="matrix products run slower than the data sheet says",
            fix=f"nothing, if that is meant; else nvidia-smi -i {index} -pl {usual:.0f} (as root)",
        )


def _differences(report: MachineReport) -> Iterator[Finding]:
    states = [gpu.state for gpu in report.sight.gpus]
    names = sorted({state.name for state in states})
    sizes = {round(state.total_bytes / _GIB) for state in states}
    if len(names) > 1 or len(sizes) > 1:
        yield Finding(
            code="machine-gpus-differ",
            severity=Severity.WARNING,
            key="gpus",
            message=f"the GPUs differ: {', '.join(names)}"
            + (f", {min(sizes)} to {max(sizes)} GiB" if len(sizes) > 1 else ""),
            why="ranks wait for each other, so each is used like the least",
            fix="leave the odd ones out with CUDA_VISIBLE_DEVICES",
        )
        return
    free = [state.free_bytes for state in states]
    others = any(state.processes for state in states)
    if not others and max(free) - min(free) > _UNEVEN_FRACTION * states[0].total_bytes:
        fullest = min(states, key=lambda state: state.free_bytes)
        yield Finding(
            code="machine-gpus-uneven",
            severity=Severity.INFO,
            key=f"gpus[{fullest.index}].memory",
            message=f"GPU {fullest.index} has {size(min(free))} free, another {size(max(free))}",
            why="the fullest sets the limit for all",
            fix="see what it is; a display or a monitoring agent takes memory of one GPU",
        )


def _slices(report: MachineReport) -> Iterator[Finding]:
    cut = [gpu for gpu in report.sight.gpus if gpu.details.mig_enabled]
    slices = all_slices(report.sight)
    for gpu in cut:
        if not gpu.details.mig_slices:
            yield Finding(
                code="machine-mig-without-slices",
                severity=Severity.ERROR,
                key=f"gpus[{gpu.state.index}].mig",
                message=f"GPU {gpu.state.index} is in MIG mode and has no slices",
                why="CUDA programs find no device on it",
                fix=f"nvidia-smi mig -cgi 0 -C makes one of the whole, nvidia-smi -i {gpu.state.index} -mig 0 ends MIG",
            )
    if slices:
        sizes = sorted({one.profile for one in slices})
        yield Finding(
            code="machine-mig",
            severity=Severity.INFO if len(slices) == 1 else Severity.WARNING,
            key="gpus",
            message=f"the GPUs are cut into {len(slices)} MIG slices ({', '.join(sizes)}), each a device by itself",
            why="a process sees one slice, and NCCL does not join slices: training over several of them is not possible"
            if len(slices) > 1
            else "training has this slice's memory and its share of the GPU's speed",
            fix="train on one slice each, or end MIG (nvidia-smi -mig 0, as root) for the whole GPU",
        )


def _links(report: MachineReport) -> Iterator[Finding]:
    pairs = [pair for pair in report.sight.pairs if pair.kind]
    linked = [pair for pair in pairs if pair.kind.startswith(("NV", "XGMI"))]
    if pairs and linked and len(linked) < len(pairs):
        apart = next(pair for pair in pairs if pair not in linked)
        yield Finding(
            code="machine-nvlink-partial",
            severity=Severity.WARNING,
            key="links",
            message=f"{len(linked)} of {len(pairs)} pairs of GPUs are joined by NVLink; "
            f"GPU {apart.first} and {apart.second} are not ({apart.kind})",
            why="collectives over all GPUs run at the speed of the slowest pair",
            fix="keep tensor parallelism within joined GPUs, and check nvidia-smi nvlink --status for links that are "
            "down",
        )
    elif pairs and not linked:
        across = sum(pair.kind == "SYS" for pair in pairs)
        yield Finding(
            code="machine-no-nvlink",
            severity=Severity.INFO,
            key="links",
            message="the GPUs reach each other over PCIe only" + (f", {across} pairs across sockets" if across else ""),
            why="tensor parallelism and ZeRO-3 are slow over it; the cluster file says so to the planner",
            fix="nothing to mend; plans for this machine take it into account",
        )
    expected = [gpu.details.nvlinks for gpu in report.sight.gpus if gpu.details.nvlinks is not None]
    if expected and min(expected) < max(expected):
        weak = min(report.sight.gpus, key=lambda gpu: gpu.details.nvlinks or 0)
        yield Finding(
            code="machine-nvlink-down",
            severity=Severity.WARNING,
            key=f"gpus[{weak.state.index}].nvlink",
            message=f"GPU {weak.state.index} has {min(expected)} NVLinks up, another {max(expected)}",
            why="a link that is down slows every collective",
            fix="nvidia-smi nvlink --status and dmesg (Xid 74) say which; reset the GPU, or have it looked at",
        )


def _catalog(report: MachineReport) -> Iterator[Finding]:
    if catalog_gpu(report) is None:
        yield Finding(
            code="machine-gpu-not-in-catalog",
            severity=Severity.INFO,
            key="gpus",
            message=f"{report.sight.gpus[0].state.name} is not in the catalog",
            why="its peak rates are computed from its clocks and cores, where the driver tells them",
            fix="correct them in the cluster file, or add gpus/<name>.yaml to your catalog folder "
            "(configs/README.md says how)",
        )
