"""Which trials of a job this machine can run, decided from records: pure.

A real trial needs every GPU of the candidate here, and the very GPU the job names; processes of the CPU stand in for
each other, but never for a GPU.
"""

from __future__ import annotations

from planner.catalog import match_device_name
from planner.errors import TrialsUnavailable
from planner.spec import ClusterSpec, DeviceKind, JobSpec, TrialMode
from planner.spec._record import record
from planner.trial import Machine


@record
class Ability:
    """`mode`: what will be done, REAL or NONE. `note` says it in words, with the reason."""

    mode: TrialMode
    note: str


def decide_trials(job: JobSpec, machine: Machine) -> Ability:
    """What the job's trial mode comes to on this machine. Raises TrialsUnavailable when it cannot be had."""
    wanted = job.trials.mode
    if wanted is TrialMode.NONE:
        return Ability(mode=TrialMode.NONE, note="no trials were asked for: every number is computed")
    if wanted is TrialMode.EMULATED:
        raise TrialsUnavailable(
            "emulated trials are not part of this version",
            why="this version runs real trials only; emulating a rank of a larger cluster is not built yet",
            fix="use --trials auto (real trials where this machine can run them) or --trials none",
        )
    obstacle = obstacle_to_trials(job.cluster, machine)
    if not obstacle:
        note = f"real trials on this machine ({machine.describe()})"
        return Ability(mode=TrialMode.REAL, note=note)
    if wanted is TrialMode.REAL:
        raise TrialsUnavailable(
            "real trials of this job cannot run on this machine",
            why=obstacle,
            fix="run on the target machine, or let the model decide with --trials auto or --trials none",
        )
    note = f"none of the trials could run here, every number is computed: {obstacle}"
    return Ability(mode=TrialMode.NONE, note=note)


def obstacle_to_trials(cluster: ClusterSpec, machine: Machine) -> str:
    """Why nothing that takes the whole cluster can run here as it would there; "" when it can."""
    target = f"{cluster.world_size} x {cluster.gpu.name}"
    if cluster.gpu.device is not machine.device:
        lacks = "no GPU: " if machine.device is DeviceKind.CPU else ""
        return f"the job is for {target}; this machine has {lacks}{machine.describe()}"
    if cluster.nodes > 1:
        here = f"this is one node of {machine.num_devices}"
        return f"the job is for {cluster.nodes} nodes ({target}); {here}, and trials over several nodes are not built"
    if cluster.world_size > machine.num_devices:
        return f"the job is for {target}; this machine runs at most {machine.num_devices} ranks"
    if cluster.gpu.device is DeviceKind.CUDA and not cluster.is_this_machine:
        found = match_device_name(machine.gpu_name, total_bytes=machine.total_bytes)
        if found is None or found.name != cluster.gpu.name:
            name = found.name if found is not None else machine.gpu_name
            return f"the job is for {target}; the GPU here is {name}"
    return ""
