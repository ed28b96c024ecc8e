"""Slurm: a start script that submits, and the batch script it submits, one torchrun a node.

Owns the `#SBATCH` lines. A directive is a comment to the shell and a command line to Slurm, so values are quoted for
Slurm and may hold no line break, which would end the comment.
"""

from __future__ import annotations

import re
import shlex

from planner.emit.files import EmittedFile, LaunchPaths
from planner.emit.program import Program
from planner.emit.shell import environment_text, fill_skeleton, header, plan_dir_text, python_text
from planner.emit.topology import NodeShape
from planner.errors import InputError
from planner.spec import Candidate, DeviceKind, JobSpec

_OPTION_NAME = re.compile(r"[a-z][a-z0-9-]*\Z")
OWNED = frozenset({"nodes", "ntasks", "ntasks-per-node"})  # the plan's layout decides these
_GPU_OPTIONS = frozenset({"gres", "gpus", "gpus-per-node", "gpus-per-task"})
_CPU_OPTIONS = frozenset({"exclusive", "cpus-per-task", "oversubscribe"})


def render_slurm(
    job: JobSpec, candidate: Candidate, paths: LaunchPaths, *, shape: NodeShape, program: Program
) -> tuple[EmittedFile, ...]:
    """`launch.sh`, which submits, and `launch/slurm.sbatch`."""
    options = (
        " [options of python -m planner.runtime.train, such as --steps 10, or --resume]" if program.in_plan_dir else ""
    )
    opening = header(job, candidate, paths, start=f"bash {shlex.quote(paths.script)}{options}, which submits the job")
    stay = not program.in_plan_dir
    submit = fill_skeleton("slurm.sh", header=opening, plan_dir=plan_dir_text(paths, stay=stay))
    batch = fill_skeleton(
        "slurm.sbatch",
        directives=directives(job, shape, in_plan_dir=program.in_plan_dir),
        header=opening,
        enter_plan_dir='cd -- "$PLAN_DIR"' if program.in_plan_dir else "# The program starts where it was submitted.",
        environment=environment_text(job, candidate, processes=shape.processes_per_node),
        python=python_text(paths),
        program=program.torchrun_words,
        supervisor=program.supervisor_words(shape.nodes, '"$SLURM_NODEID"'),
        nodes=str(shape.nodes),
        processes=str(shape.processes_per_node),
        master_port=str(job.launch.master_port),
    )
    return (
        EmittedFile(path=paths.script, text=submit, executable=True),
        EmittedFile(path="launch/slurm.sbatch", text=batch, executable=True),
    )


def directives(job: JobSpec, shape: NodeShape, *, in_plan_dir: bool) -> str:
    """The `#SBATCH` lines: the plan's, then the job's. Raises InputError for an option that Slurm would misread."""
    chosen = {name.replace("_", "-"): value for name, value in job.launch.slurm}
    for name, value in chosen.items():
        _check_option(name, value)
    lines = {"job-name": _job_name(job), "nodes": str(shape.nodes), "ntasks-per-node": "1"}
    if job.cluster.gpu.device is DeviceKind.CUDA and not _GPU_OPTIONS & chosen.keys():
        lines["gpus-per-node"] = str(shape.processes_per_node)
    if not _CPU_OPTIONS & chosen.keys():
        lines["exclusive"] = ""  # one task a node otherwise gets one core for all its ranks
    if in_plan_dir:
        lines["output"] = "logs/slurm-%j.out"  # the start script submits from the plan folder
    lines |= chosen
    return "\n".join(f"#SBATCH --{name}" + (f"={shlex.quote(value)}" if value else "") for name, value in lines.items())


def _job_name(job: JobSpec) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", job.model.name).strip("-")[:60] or "meshplan"


def _check_option(name: str, value: str) -> None:
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
