"""The name of every file in a plan folder; nobody else spells one."""

from __future__ import annotations

PLAN = "plan.yaml"
DS_CONFIG = "ds_config.json"
TASK = "task.json"  # what the reference trainer runs
LAUNCH = "launch.sh"
LAUNCH_DIR = "launch"  # files for other launchers
JOB = "job.yaml"
TRIALS = "trials.jsonl"
STUDY_SQLITE = "study.db"
STUDY_JOURNAL = "study.journal"  # in place of study.db on a network file system
REPORT_HTML = "report.html"
REPORT_MARKDOWN = "report.md"
LOGS_DIR = "logs"
DEBUG = "debug.zip"  # all that a bug report needs, made on demand

FALLBACKS_DIR = "fallbacks"  # one folder each: the plan's own files with less memory
SURVIVE_DIR = "survive"  # one folder a number of nodes: the plan for what is left of the cluster
SURVIVE_SCRIPT = "launch/launch-surviving.sh"  # starts the plan for the nodes that are alive
SUPERVISOR = "supervisor.json"  # how the runs of this plan ended, and with which fallback

IDENTITY = ".meshplan.json"  # format and job hash: written first, so that a folder is known from its first moment
LOCK = ".meshplan.lock"
TEMPORARY_PREFIX = ".meshplan-tmp-"  # files being written; what a kill left behind is removed by the next planner


def run_name(number: int) -> str:
    """The folder under `LOGS_DIR` of one start of the training's ranks."""
    return f"run-{number:04d}"


def trial_log_name(number: int) -> str:
    """The log of one trial, a file under `LOGS_DIR`. A trial run again after a kill writes the same file."""
    return f"trial-{number:04d}.log"
