"""What `planner probe` is asked and what it answers: records only, no work."""

from __future__ import annotations

from pathlib import Path

from planner.probe.records import MachineReport
from planner.spec._record import record


@record
class ProbeRequest:
    """`nodes`: how many alike. `measure_links` None: where there are several GPUs. `stress_memory_bytes` 0: all that is
    free, or on a CPU one rank's share."""

    nodes: int = 1
    out_path: Path | None = None
    stress: bool = False
    stress_memory_bytes: int = 0
    measure_links: bool | None = None


@record
class MachineFinding:
    """One thing wrong with the machine, as users see it: the fields of a finding of `planner check`."""

    code: str
    severity: str
    key: str
    message: str
    why: str
    fix: str


@record
class ProbeResult:
    """`cluster_file`: its text, "" when it could not be written, for `lacks`. `written`: where it was put."""

    report: MachineReport
    findings: tuple[MachineFinding, ...]
    cluster_file: str
    lacks: str = ""
    written: Path | None = None
