"""The exact commands that come after planning: how this plan's run is started, and whether it can be verified."""

from __future__ import annotations

import shlex
from math import ceil

from planner.report.document import Command
from planner.report.input import ReportInput
from planner.spec.kinds import Launcher


def next_commands(report: ReportInput) -> tuple[Command, ...]:
    """What to type next, the start first."""
    steps = [_start(report)]
    if _num_nodes(report) == 1:
        verify = f"planner verify {shlex.quote(report.plan_dir)}"
        steps.append(Command(command=verify, does="runs a few steps on the target machine, compares with the promise"))
    return tuple(steps)


def _start(report: ReportInput) -> Command:
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
