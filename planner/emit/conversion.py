"""The script that brings a checkpoint of another layout to a plan (by the trainer's own converter, or DeepSpeed's), and
the one that picks the plan for the nodes that are left."""

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


_CONVERSION = """
# A run that goes on may have been saved under another plan's layout: made fit once, by the first node. Meanwhile it
# touches logs/converting, so that the other nodes' supervisors wait for it.
for word in "$@"; do
  if [[ $word == --resume && ${NODE_RANK:-0} == 0 && -f $folder/launch/convert-checkpoint.sh ]]; then
    mkdir -p "$folder/logs"
    while kill -0 $$ 2>/dev/null && touch "$folder/logs/converting"; do sleep 5; done >/dev/null 2>&1 &
    beat=$!
    converted=0
    bash "$folder/launch/convert-checkpoint.sh" || converted=$?
    kill "$beat" 2>/dev/null || true
    wait "$beat" 2>/dev/null || true
    rm -f "$folder/logs/converting"
    if (( converted )); then exit "$converted"; fi
    break
  fi
done
"""


def render_surviving(
    job: JobSpec, candidate: Candidate, *, paths: LaunchPaths, nodes: tuple[int, ...], converts: bool
) -> EmittedFile:
    """The script that starts the plan for the nodes that are alive. `nodes`: those that there is a plan for, the whole
    plan's first; `converts`: checkpoints of one plan have to be converted for another. A program of the user's own
    finds its checkpoints itself, so nothing is converted for it here."""
    by_itself = converts and not job.launch.command and bool(job.training.checkpoint_dir)
    text = fill_skeleton(
        "launch-surviving.sh",
        header=header(job, candidate, paths, start=f"bash {shlex.quote(paths.script)} NODES_ALIVE"),
        counts=" ".join(map(str, nodes)),
        script=shlex.quote(paths.script),
        plan_dir=plan_dir_text(paths, stay=True),
        conversion=_CONVERSION if by_itself else "",
    )
    return EmittedFile(path=paths.script, text=text, executable=True)
