"""What is wrong with a machine for training, as findings of the same record that `planner check` gives. Pure.

Owns their order and their codes (`machine-…`, stable). ERROR: training fails or gives wrong numbers. WARNING: it runs,
slower or with less than the machine has, or it will fail at some size. INFO: worth knowing.
"""

from __future__ import annotations

from planner.probe.faults_gpu import gpu_faults
from planner.probe.faults_host import host_faults
from planner.probe.faults_network import network_faults
from planner.probe.faults_software import software_faults
from planner.probe.records import MachineReport
from planner.rules import Finding, Severity

_ORDER = tuple(Severity)


def find_faults(report: MachineReport, *, nodes: int) -> tuple[Finding, ...]:
    """All findings for training on `nodes` nodes like this one, the gravest first."""
    found = [
        *gpu_faults(report),
        *host_faults(report),
        *network_faults(report, nodes=nodes),
        *software_faults(report),
    ]
    return tuple(sorted(found, key=lambda finding: _ORDER.index(finding.severity)))
