"""The script that brings a checkpoint of another layout to a plan: the trainer's own converter, or DeepSpeed's."""

from __future__ import annotations

import shlex

from planner.emit.files import EmittedFile, LaunchPaths
from planner.emit.shell import fill_skeleton, header, plan_dir_text, python_text
from planner.spec import Candidate, JobSpec


def render_conversion(job: JobSpec, candidate: Candidate, *, paths: LaunchPaths) -> EmittedFile:
    """The script `paths.script` (inside the plan folder): for a program of the user's own DeepSpeed's converter, which
    is told the checkpoint folder; for the reference trainer the one that knows it from `task.json`."""
    own_program = bool(job.launch.command)
    argument = " CHECKPOINT_DIR" if own_program else ""
    slots = {
        "header": header(job, candidate, paths, start=f"bash {shlex.quote(paths.script)}{argument}"),
        "python": python_text(paths),
    }
    if own_program:
        text = fill_skeleton("convert-universal.sh", **slots, script=shlex.quote(paths.script))
    else:
        text = fill_skeleton("convert-checkpoint.sh", **slots, plan_dir=plan_dir_text(paths, stay=False))
    return EmittedFile(path=paths.script, text=text, executable=True)
