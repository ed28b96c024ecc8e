"""The exact commands that come after planning: how this plan's run is started, and whether it can be verified."""

from __future__ import annotations

import shlex
from math import ceil

from planner.report.document import Command
from planner.report.input import ReportInput
from planner.spec.kinds import Launcher
from planner.spec.replan import CheckpointWay


def next_commands(report: ReportInput) -> tuple[Command, ...]:
    """What to type next, the start first."""
    steps = [*_conversion(report), _start(report)]
    if _num_nodes(report) == 1:
        verify = f"planner verify {shlex.quote(report.plan_dir)}"
        steps.append(Command(command=verify, does="runs a few steps on the target machine, compares with the promise"))
    return tuple(steps)


def _conversion(report: ReportInput) -> tuple[Command, ...]:
    """What brings the checkpoints of the plan before to this one; nothing where they load as they are or none is
    saved."""
    before = report.plan.replanned
    if before is None or not before.checkpoint.script or not _saves(report):
        return ()
    folder = " CHECKPOINT_DIR" if report.job.launch.command else ""
    command = f"bash {shlex.quote(before.checkpoint.script)}{folder}"
    return (Command(command=command, does="first, where the old plan saved a checkpoint: converts the newest"),)


def _saves(report: ReportInput) -> bool:
    """A script of the user's own may, without the job saying so."""
    return bool(report.job.training.checkpoint_dir or report.job.launch.command)


def _goes_on(report: ReportInput) -> bool:
    """Whether the run goes on with the checkpoints of the plan before. Options of a user's own script are not known."""
    before = report.plan.replanned
    loads = before is not None and before.checkpoint.way in (CheckpointWay.AS_IS, CheckpointWay.CONVERT)
    return loads and bool(report.job.training.checkpoint_dir) and not report.job.launch.command


def _start(report: ReportInput) -> Command:
    start = _start_anew(report)
    if not _goes_on(report):
        return start
    if report.plan.launcher is Launcher.KUBERNETES:  # its pods take their options from the manifest
        return Command(
            command=start.command, does=f"{start.does}; to go on, first add --resume in launch/kubernetes.yaml"
        )
    return Command(command=f"{start.command} --resume", does=f"{start.does}, going on from the old plan's checkpoint")


def _start_anew(report: ReportInput) -> Command:
    script = f"bash {shlex.quote(report.launch_script)}"
    nodes = _num_nodes(report)
    match report.plan.launcher:
        case Launcher.SLURM | Launcher.SRUN:
            return Command(command=script, does="submits the training run to Slurm")
        case Launcher.KUBERNETES:
            return Command(command=script, does="hands the training run to the Kubernetes cluster")
        case Launcher.DEEPSPEED if nodes > 1:
            hosts = f"{report.plan_dir}/hostfile"
            return Command(command=script, does=f"starts the training run on the {nodes} nodes that {hosts} names")
        case Launcher.TORCHRUN if nodes > 1:
            does = f"on the first of the {nodes} nodes; on the others with their number and the first one's name"
            return Command(command=f'NODE_RANK=0 MASTER_ADDR="$(hostname)" {script}', does=does)
    return Command(command=script, does="starts the training run")


def _num_nodes(report: ReportInput) -> int:
    """Nodes that the plan takes: fewer than the job has where fewer GPUs do."""
    return ceil(report.plan.candidate.layout.world_size / report.job.cluster.gpus_per_node)
