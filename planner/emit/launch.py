"""Start scripts for torchrun, the deepspeed launcher, Slurm and Kubernetes, as texts.

Owns which files a launcher needs and how the world is laid over nodes. The scripts' shape is in the skeletons under
`launch/`; the shared pieces are in `shell`, the program that is started in `program`.
"""

from __future__ import annotations

import re
import shlex

from planner.emit.agent import agent_text, meeting_agent
from planner.emit.files import EmittedFile, LaunchPaths
from planner.emit.hostfile import render_hostfile
from planner.emit.kubernetes import render_kubernetes
from planner.emit.program import TRAINER_OPTIONS, Program, program_of
from planner.emit.shell import environment_text, fill_skeleton, header, job_environment, plan_dir_text, python_text
from planner.emit.slurm import render_slurm
from planner.emit.topology import NodeShape, node_shape, stage_groups
from planner.errors import NotExpressible
from planner.spec import Candidate, JobSpec, Launcher


def render_launch(
    job: JobSpec, candidate: Candidate, *, launcher: Launcher, paths: LaunchPaths | None = None
) -> tuple[EmittedFile, ...]:
    """The files that start `candidate` with `launcher`: the start script first, then those it reads.

    Raises NotExpressible when the launcher cannot carry the plan, InputError when the job's launch section is wrong.
    """
    places = paths if paths is not None else LaunchPaths()
    unordered = node_order_refusal(job, launcher)
    if job.cluster.groups and unordered:
        raise NotExpressible(
            "a pipeline over several kinds of nodes cannot be started this way",
            why=unordered,
            fix="use launch.launcher: torchrun, deepspeed or slurm, or plan one group of nodes alone",
        )
    shape = node_shape(job, candidate)
    program = program_of(job, candidate)
    if launcher in (Launcher.SLURM, Launcher.SRUN):
        return render_slurm(job, candidate, places, shape=shape, program=program, launcher=launcher)
    if launcher is Launcher.KUBERNETES:
        return render_kubernetes(job, candidate, places, shape=shape, program=program)
    if launcher is Launcher.DEEPSPEED:
        return _deepspeed(job, candidate, places, shape, program)
    return (_torchrun(job, candidate, places, shape, program),)


def node_order_refusal(job: JobSpec, launcher: Launcher) -> str:
    """Why this launcher, or the job's own script, cannot run a pipeline whose nodes differ; "" where it can."""
    if launcher in (Launcher.SRUN, Launcher.KUBERNETES):
        return f"{launcher} numbers the nodes itself, and which stages a node holds depends on its number"
    if job.launch.command:
        return "nothing tells the job's own script how many layers each stage holds"
    return ""


def _torchrun(
    job: JobSpec, candidate: Candidate, paths: LaunchPaths, shape: NodeShape, program: Program
) -> EmittedFile:
    slots = _common_slots(job, candidate, paths, shape, program)
    if shape.nodes == 1:
        return _script(paths, fill_skeleton("torchrun.sh", **slots, agent=agent_text(shape, program)))
    # The supervisor, a pipeline's order of nodes, and accelerate need to know which node is which.
    numbered = program.supervised or program.uses_accelerate or bool(job.cluster.groups)
    meeting, agent = meeting_agent(shape, program, numbered=numbered)
    text = fill_skeleton(
        "torchrun-nodes.sh",
        **slots,
        script=shlex.quote(paths.script),
        nodes=str(shape.nodes),
        node_groups="".join(f"  {words}\n" for words in stage_groups(job, candidate)),
        last_node=str(shape.nodes - 1),
        node_rank_use="needed" if numbered else "left out, they agree on it",
        unplaced="-z ${MASTER_ADDR:-} || -z ${NODE_RANK:-}" if numbered else "-z ${MASTER_ADDR:-}",
        master_port=str(job.launch.master_port),
        meeting=meeting,
        agent=agent,
    )
    return _script(paths, text)


def _deepspeed(
    job: JobSpec, candidate: Candidate, paths: LaunchPaths, shape: NodeShape, program: Program
) -> tuple[EmittedFile, ...]:
    if program.uses_accelerate:
        raise NotExpressible(
            "the deepspeed launcher cannot start a launch.command of accelerate launch",
            why="each of the two starts the ranks itself",
            fix="use launch.launcher: torchrun, slurm or kubernetes, which call accelerate launch once a node",
        )
    slots = _common_slots(job, candidate, paths, shape, program)
    slots |= {"program": program.deepspeed_words, "master_port": str(job.launch.master_port)}
    if shape.nodes == 1:
        counts = {"processes": slots["processes"], "last_process": str(shape.processes_per_node - 1)}
        devices = fill_skeleton("deepspeed-devices.sh", **counts).rstrip("\n")
        return (_script(paths, fill_skeleton("deepspeed.sh", **slots, devices=devices)),)
    if not program.plain_arguments:
        raise NotExpressible(
            "the arguments of launch.command cannot be started on several nodes by the deepspeed launcher",
            why="it passes them through a remote shell without quoting them",
            fix="use launch.launcher: torchrun or slurm, or arguments of letters, digits and _@%+=:,./-",
        )
    text = fill_skeleton(
        "deepspeed-nodes.sh",
        **slots,
        nodes=str(shape.nodes),
        node_groups="".join(f"In this order: {words}\n" for words in stage_groups(job, candidate)),
    )
    files = [_script(paths, text), EmittedFile(path="launch/deepspeed_env", text=_deepspeed_environment(job))]
    if job.launch.hosts:
        files.append(EmittedFile(path="hostfile", text=render_hostfile(job.launch.hosts[: shape.nodes])))
    return tuple(files)


def _deepspeed_environment(job: JobSpec) -> str:
    """`name=value` lines that the launcher exports on every node, in double quotes but otherwise as they are."""
    for name, value in job_environment(job):
        if re.search(r'["$`\\\n\r!]', value):
            raise NotExpressible(
                f"the value of launch.environment.{name} cannot be carried to other nodes by the deepspeed launcher",
                why="it hands values to a remote shell between double quotes, without escaping what they hold",
                fix="use launch.launcher: torchrun or slurm, or set the variable on the nodes",
            )
    # One thread: this file is written before it is known how many cores the nodes have.
    fixed = (("OMP_NUM_THREADS", "1"), ("DS_ACCELERATOR", job.cluster.gpu.device.value))
    return "".join(f"{name}={value}\n" for name, value in (*fixed, *job_environment(job)))


def _common_slots(
    job: JobSpec, candidate: Candidate, paths: LaunchPaths, shape: NodeShape, program: Program
) -> dict[str, str]:
    options = f" {TRAINER_OPTIONS}" if program.in_plan_dir else ""
    place = "" if program.in_plan_dir or program.folder else ", from the folder that the script's path starts from"
    return {
        "header": header(job, candidate, paths, start=f"bash {shlex.quote(paths.script)}{options}{place}"),
        "plan_dir": plan_dir_text(paths, stay=not program.in_plan_dir, folder=program.folder),
        "environment": environment_text(job, candidate, processes=shape.processes_per_node, nodes=shape.nodes),
        "python": python_text(paths),
        "processes": str(shape.processes_per_node),
        "program": program.torchrun_words,
        "supervisor": program.supervisor_words(shape.nodes, '"$NODE_RANK"'),
    }


def _script(paths: LaunchPaths, text: str) -> EmittedFile:
    return EmittedFile(path=paths.script, text=text, executable=True)
