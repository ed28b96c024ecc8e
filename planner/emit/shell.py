"""Text that is safe in a shell script: quoting, comments, and the pieces that every start script shares.

Owns how a value becomes script text; the order of the pieces is in the skeletons under `launch/`.
"""

from __future__ import annotations

import re
import shlex
import string

from planner import __version__
from planner.emit.files import LaunchPaths
from planner.emit.topology import stage_groups
from planner.errors import InputError
from planner.resources import find_data_dir
from planner.spec import Allocator, Candidate, DeviceKind, JobSpec
from planner.spec.tuning import ALLOCATOR_ENVIRONMENT

_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class Skeleton(string.Template):
    """A script with slots `@@{name}`: `$HOME` and `"$@"` are left alone. Slots are filled with text already quoted."""

    delimiter = "@@"


def fill_skeleton(skeleton: str, /, **slots: str) -> str:
    """The file `launch/<skeleton>` with every slot filled; a slot without a value is a bug (KeyError)."""
    text = (find_data_dir("launch") / skeleton).read_text(encoding="utf-8")
    return Skeleton(text).substitute(slots)


def comment(text: str) -> str:
    """One comment line, whatever the text holds: a line break inside it would start a command."""
    shown = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    return f"# {shown}".rstrip()


def header(job: JobSpec, candidate: Candidate, paths: LaunchPaths, *, start: str) -> str:
    """The opening comment: who made the script, from what, what it starts, and how to start it."""
    layout, batch = candidate.layout, candidate.batch
    made_with = f" with: {shlex.join(paths.made_with)}" if paths.made_with else ""
    lines = (
        f"Made by meshplan {__version__}{made_with}",
        f"Model {job.model.name}, plan {candidate.key}",
        f"{layout.world_size} ranks = data {layout.data_parallel_size} x tensor {layout.tensor_parallel_size} "
        f"x pipeline {layout.pipeline_parallel_size}",
        f"{batch.global_batch_size} sequences a step = micro-batch {batch.micro_batch_size} "
        f"x accumulation {batch.gradient_accumulation_steps} x data {batch.data_parallel_size}",
        *(f"In this order, which decides who holds what: {words}" for words in stage_groups(job, candidate)),
        f"Start: {start}",
    )
    return "\n".join(comment(line) for line in lines)


_CALLER_LINES = (
    "# Folders named in the options, as --export's, are found from here.",
    'export MESHPLAN_CALLED_FROM="${MESHPLAN_CALLED_FROM:-$PWD}"',
)


def plan_dir_text(paths: LaunchPaths, *, stay: bool, folder: str = "") -> str:
    """Set PLAN_DIR and go there or, for a program of the user's (`stay`), to `folder`; without one, stay where it is.

    No `$(…)` is used: command substitution would cut a line break off the end of a folder's name.
    """
    if paths.plan_dir:
        lines = [f"export PLAN_DIR={shlex.quote(paths.plan_dir)}", *([] if stay else ['cd -- "$PLAN_DIR"'])]
        return "\n".join([*([] if stay else _CALLER_LINES), *lines, *script_dir_lines(folder)])
    up = "/.." * paths.script.count("/")
    lines = [
        *([] if stay else _CALLER_LINES),
        "# The plan is where this script lies, wherever it was copied to.",
        "unset CDPATH",
        *(["start_dir=$PWD"] if stay and not folder else []),
        "script=${BASH_SOURCE[0]}",
        "[[ $script == */* ]] || script=./$script",
        f'cd -- "${{script%/*}}"{up}',
        "export PLAN_DIR=$PWD",
        *(['cd -- "$start_dir"'] if stay and not folder else []),
        *script_dir_lines(folder),
    ]
    return "\n".join(lines)


def script_dir_lines(folder: str) -> list[str]:
    """Go where the user's program starts; nothing without a folder."""
    if not folder:
        return []
    return [
        "# The training script starts here; SCRIPT_DIR names another copy of its folder.",
        "SCRIPT_DIR=${SCRIPT_DIR:-}",
        f"[[ -n $SCRIPT_DIR ]] || SCRIPT_DIR={shlex.quote(folder)}",
        'cd -- "$SCRIPT_DIR"',
    ]


def python_text(paths: LaunchPaths) -> str:
    """Choose the interpreter: PYTHON, else the one that made the plan where it exists, else python3."""
    if not paths.python:
        return "PYTHON=${PYTHON:-python3}"
    return "\n".join(
        [
            "# PYTHON if it is set; else the interpreter that made this plan, on machines that have it; else python3.",
            "if [[ -z ${PYTHON:-} ]]; then",
            f"  PYTHON={shlex.quote(paths.python)}",
            "  [[ -x $PYTHON ]] || PYTHON=python3",
            "fi",
        ]
    )


def environment_text(job: JobSpec, candidate: Candidate, *, processes: int, nodes: int = 1) -> str:
    """The environment, each variable with its reason. The job's own come last and win.

    An allocator option is set only where the plan chose it: else what the trials measured was torch's default.
    """
    on_cuda = job.cluster.gpu.device is DeviceKind.CUDA
    lines = [
        f"# Threads of one rank: the cores of a node shared by its {processes} ranks, as in the trials.",
        "cores=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)",
        "if read -r quota period 2>/dev/null </sys/fs/cgroup/cpu.max && [[ $quota != max ]]; then",
        "  limit=$(( (quota + period - 1) / period ))  # what a container may use of them",
        "  if (( cores > limit )); then cores=$limit; fi",
        "fi",
        f'export OMP_NUM_THREADS="${{OMP_NUM_THREADS:-$(( cores > {processes} ? cores / {processes} : 1 ))}}"',
        "# Said out loud, because DeepSpeed guesses its device from what is installed.",
        f"export DS_ACCELERATOR={job.cluster.gpu.device}",
    ]
    if on_cuda:
        lines += [
            "# A failing collective says why; a healthy one stays silent.",
            'export NCCL_DEBUG="${NCCL_DEBUG:-WARN}"',
        ]
        if candidate.tuning.allocator is Allocator.DEFAULT:
            lines += [
                "# The allocator is torch's own, as in the trials: PYTORCH_ALLOC_CONF stays as it is. With its",
                "# expandable_segments the run may need less than the plan says, never more.",
            ]
    if on_cuda and nodes > 1:
        lines += [
            "# Any interface but the loopback and a container's bridge. Where NCCL still picks a wrong one,",
            "# name yours, a list where nodes differ: NCCL_SOCKET_IFNAME=eth_a,eth_b (in launch.environment).",
            'export NCCL_SOCKET_IFNAME="${NCCL_SOCKET_IFNAME:-^lo,docker0}"',
        ]
    if candidate.tuning.allocator is Allocator.EXPANDABLE_SEGMENTS:
        lines += [
            "# The plan's allocator: what is free need not lie together, so less of it is lost between blocks.",
            *(f"export {name}={value}" for name, value in ALLOCATOR_ENVIRONMENT),
        ]
    if job.launch.python_path:
        lines += [
            "# The job's own modules are imported from here.",
            f"export PYTHONPATH={shlex.quote(':'.join(job.launch.python_path))}${{PYTHONPATH:+:$PYTHONPATH}}",
        ]
    if job.launch.environment:
        lines.append("# From the job file.")
    return "\n".join([*lines, *(f"export {name}={shlex.quote(value)}" for name, value in job_environment(job))])


def job_environment(job: JobSpec) -> tuple[tuple[str, str], ...]:
    """The job's own variables. Raises InputError for a name that no shell takes or a value that none can hold."""
    for name, value in job.launch.environment:
        if not _VARIABLE_NAME.match(name):
            raise InputError(
                f"launch.environment: {name!r} is no name for an environment variable",
                why="a name is letters, digits and underscores, and starts with no digit",
                fix="rename the variable in the job file",
            )
        if "\0" in value:
            raise InputError(
                f"launch.environment: the value of {name} holds a NUL character",
                why="no process can be given such a value",
                fix="remove the character from the job file",
            )
    return job.launch.environment
