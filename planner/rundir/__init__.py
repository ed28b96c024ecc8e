"""The plan folder: every file name in it, writing that is whole or not at all, the trial records, the lock.

It owns names and durability. What the files say belongs to others: `jobfile` (job.yaml), `emit` (DeepSpeed's config and
the launch files), `report`, `search` (the Optuna study, which is derived from the trials and rebuilt when lost).
"""

from planner.rundir import names
from planner.rundir.atomic import write_whole
from planner.rundir.filesystem import network_filesystem
from planner.rundir.folder import RunDir
from planner.rundir.names import trial_log_name
from planner.rundir.plan_file import render_plan
from planner.rundir.problems import explain_os_error, is_folder, is_there

__all__ = [
    "RunDir",
    "explain_os_error",
    "is_folder",
    "is_there",
    "names",
    "network_filesystem",
    "render_plan",
    "trial_log_name",
    "write_whole",
]
