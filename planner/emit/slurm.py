"""Slurm: a start script that submits, and the batch script it submits, one torchrun a node.

Owns the `#SBATCH` lines. A directive is a comment to the shell and a command line to Slurm, so values are quoted for
Slurm and may hold no line break, which would end the comment.
"""

from __future__ import annotations

import re
import shlex

from planner.emit.agent import agent_text
from planner.emit.files import EmittedFile, LaunchPaths
from planner.emit.program import TRAINER_OPTIONS, Program
from planner.emit.shell import (
    environment_text,
    fill_skeleton,
    header,
    plan_dir_text,
    python_text,
    script_dir_lines,
)
from planner.emit.slurm_groups import batch_slots, submit_slots
from planner.emit.topology import NodeShape
from planner.errors import InputError, NotExpressible
from planner.spec import Candidate, DeviceKind, JobSpec, Launcher

_OPTION_NAME = re.compile(r"[a-z][a-z0-9-]*\Z")
OWNED = frozenset({"nodes", "ntasks", "ntasks-per-node"})  # the plan's layout decides these
GPU_OPTIONS = frozenset({"gres", "gpus", "gpus-per-node"})
CPU_OPTIONS = frozenset({"exclusive", "cpus-per-task", "oversubscribe"})


def render_slurm(
    job: JobSpec,
    candidate: Candidate,
    paths: LaunchPaths,
    *,
    shape: NodeShape,
    program: Program,
    launcher: Launcher = Launcher.SLURM,
) -> tuple[EmittedFile, ...]:
    """`launch.sh`, which submits, and the batch script: one agent a node, or (SRUN) one task a rank."""
    if launcher is Launcher.SRUN and program.uses_accelerate:
        raise NotExpressible(
            "plain srun cannot start a launch.command of accelerate launch",
            why="accelerate starts the ranks of a node itself, and srun would start one for every rank",
            fix="use launch.launcher: slurm, which calls accelerate launch once a node",
        )
    kind = "srun" if launcher is Launcher.SRUN else "slurm"
    options = f" {TRAINER_OPTIONS}" if program.in_plan_dir else ""
    opening = header(job, candidate, paths, start=f"bash {shlex.quote(paths.script)}{options}, which submits the job")
    batch_path = f"launch/{kind}.sbatch"
    submit = fill_skeleton(
        "slurm.sh",
        header=opening,
        plan_dir=plan_dir_text(paths, stay=not program.in_plan_dir, folder=program.folder),
        batch=batch_path,
        **submit_slots(job, candidate),
    )
    tasks = shape.processes_per_node if launcher is Launcher.SRUN else 1
    slots = {
        "directives": directives(job, shape, in_plan_dir=program.in_plan_dir, tasks_per_node=tasks),
        "header": opening,
        "enter_plan_dir": _enter(program),
        "environment": environment_text(job, candidate, processes=shape.processes_per_node, nodes=shape.nodes),
        "python": python_text(paths),
        "program": program.torchrun_words,
        "nodes": str(shape.nodes),
        "processes": str(shape.processes_per_node),
        "world_size": str(shape.nodes * shape.processes_per_node),
        "master_port": str(job.launch.master_port),
        "agent": agent_text(shape, program),
        "supervisor": program.supervisor_words(
            shape.nodes, '"$NODE_RANK"' if job.cluster.groups else '"$SLURM_NODEID"'
        ),
    }
    if launcher is Launcher.SLURM:
        slots |= batch_slots(job, shape)
    return (
        EmittedFile(path=paths.script, text=submit, executable=True),
        EmittedFile(path=batch_path, text=fill_skeleton(f"{kind}.sbatch", **slots), executable=True),
    )


def _enter(program: Program) -> str:
    if program.in_plan_dir:
        return 'cd -- "$PLAN_DIR"'
    lines = script_dir_lines(program.folder)
    return "\n".join(lines) if lines else "# The program starts where it was submitted."


def directives(job: JobSpec, shape: NodeShape, *, in_plan_dir: bool, tasks_per_node: int = 1) -> str:
    """The `#SBATCH` lines: the plan's, then the job's. Raises InputError for an option that Slurm would misread."""
    chosen = {name.replace("_", "-"): value for name, value in job.launch.slurm}
    for name, value in chosen.items():
        check_option(name, value)
    lines = {"job-name": _job_name(job), "nodes": str(shape.nodes), "ntasks-per-node": str(tasks_per_node)}
    if job.cluster.gpu.device is DeviceKind.CUDA and not GPU_OPTIONS & chosen.keys():
        lines["gpus-per-node"] = str(shape.processes_per_node)
    if not CPU_OPTIONS & chosen.keys():
        lines["exclusive"] = ""  # one task a node otherwise gets one core for all its ranks
    if in_plan_dir:
        lines["output"] = "logs/slurm-%j.out"  # the start script submits from the plan folder
    lines |= chosen
    return "\n".join(f"#SBATCH --{name}" + (f"={shlex.quote(value)}" if value else "") for name, value in lines.items())


def _job_name(job: JobSpec) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", job.model.name).strip("-")[:60] or "meshplan"


def check_option(name: str, value: str) -> None:
    """Raise InputError for an option of sbatch that the plan decides, or that the batch script could not carry."""
    if name == "gpus-per-task" and value not in ("", "0"):
        raise InputError(
            f"slurm.gpus-per-task={value} would hide a node's GPUs from its ranks",
            why="Slurm then shows each task its own GPUs as 0, 1, …, but a rank takes the device of its LOCAL_RANK: "
            "all but the first end with 'invalid device ordinal'",
            fix="leave it out (the plan asks for --gpus-per-node), or write gpus-per-node or gres",
        )
    if name in OWNED:
        raise InputError(
            f"slurm.{name} is set by the plan",
            why="the number of nodes and processes is what the plan decides",
            fix=f"leave {name} out of the slurm section; change cluster.nodes to use other nodes",
        )
    if not _OPTION_NAME.match(name):
        raise InputError(
            f"slurm: {name!r} is no option of sbatch",
            why="keys of this section are sbatch's long options without the dashes",
            fix="write them like: partition: gpu",
        )
    if not value.isprintable():
        raise InputError(
            f"slurm.{name} holds a character that cannot be written in a batch script",
            why="a line break would end the #SBATCH line and start a command",
            fix="remove control characters from the value",
        )
