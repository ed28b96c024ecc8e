"""Which trials of a job this machine can run, decided from records: pure.

A real trial needs every GPU of the candidate here, and the very GPU the job names. An emulated one needs one device of
the job's kind; a GPU of another name will do when the catalog knows it. Processes of the CPU stand in for each other,
but never for a GPU.
"""

from __future__ import annotations

from planner.catalog import match_device_name
from planner.errors import TrialsUnavailable
from planner.spec import ClusterSpec, DeviceKind, GpuSpec, JobSpec, TrialMode
from planner.spec._record import record
from planner.trial import Machine


@record
class Ability:
    """`mode`: what will be done, REAL, EMULATED or NONE. `note` says it in words, with the reason. `gpu`: the device
    here that stands in for the target's in emulated trials; None for other modes."""

    mode: TrialMode
    note: str
    gpu: GpuSpec | None = None


def decide_trials(job: JobSpec, machine: Machine) -> Ability:
    """What the job's trial mode comes to on this machine. Raises TrialsUnavailable when it cannot be had."""
    wanted = job.trials.mode
    if wanted is TrialMode.NONE:
        return Ability(mode=TrialMode.NONE, note="no trials were asked for: every number is the model's")
    if job.cluster.groups:
        return _over_groups(wanted)
    obstacle = obstacle_to_trials(job.cluster, machine)
    if not obstacle and wanted is not TrialMode.EMULATED:
        return Ability(mode=TrialMode.REAL, note=f"real trials on this machine ({machine.describe()})")
    if wanted is TrialMode.REAL:
        raise TrialsUnavailable(
            "real trials of this job cannot run on this machine",
            why=obstacle,
            fix="run on the target machine, or plan with --trials auto, emulated or none",
        )
    gpu = _stand_in(job.cluster, machine)
    if gpu is not None:
        note = _emulation_note(job.cluster, machine, gpu=gpu)
        own = "; they run the reference trainer on the same model, not your script" if job.launch.command else ""
        return Ability(mode=TrialMode.EMULATED, note=note + own, gpu=gpu)
    if wanted is TrialMode.EMULATED:
        raise TrialsUnavailable(
            "emulated trials of this job cannot run on this machine",
            why=obstacle,
            fix="run on a machine with a GPU that planner list gpus shows, or let the model decide: --trials none",
        )
    return Ability(
        mode=TrialMode.NONE, note=f"none of the trials could run here, every number is the model's: {obstacle}"
    )


def _over_groups(wanted: TrialMode) -> Ability:
    """One process cannot stand in for ranks of two kinds of nodes."""
    why = "stages of a pipeline over several kinds of nodes are not tried: every number of it is computed"
    if wanted in (TrialMode.REAL, TrialMode.EMULATED):
        raise TrialsUnavailable(
            f"{wanted} trials of this plan cannot run", why=why, fix="plan with --trials auto or none"
        )
    return Ability(mode=TrialMode.NONE, note=why)


def _stand_in(cluster: ClusterSpec, machine: Machine) -> GpuSpec | None:
    """The device here that can stand in for one of the cluster's; None when there is none."""
    if cluster.gpu.device is not machine.device:
        return None
    if cluster.gpu.device is DeviceKind.CPU or cluster.is_this_machine:
        return cluster.gpu
    return match_device_name(machine.gpu_name, total_bytes=machine.total_bytes)


def _emulation_note(cluster: ClusterSpec, machine: Machine, *, gpu: GpuSpec) -> str:
    target = f"{cluster.world_size} x {cluster.gpu.name}"
    note = f"emulated trials: one process here stands in for single ranks of {target} ({machine.describe()})"
    if gpu.name != cluster.gpu.name:
        note += f"; memory is that of the target, times seen on {gpu.name} are scaled by the model, so computed"
    return note


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
