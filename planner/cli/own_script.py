"""`plan JOB.yaml -- train.py ARGUMENTS`: the user's own training script, typed instead of written into the job file.

Owns telling it from job files after a plain `--`, and the settings of the job file that it stands for.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

_JOB_SUFFIXES = (".yaml", ".yml")


def split_script(words: list[str], *, app_name: str) -> tuple[list[str], tuple[str, ...]]:
    """The words for the verb, and the script with its arguments; () when there is none.

    Only `plan` takes a script, and a job file after `--` (whose name starts with a dash, say) is a job file.
    """
    is_plan = app_name == "plan" or words[:1] == ["plan"]
    if not is_plan or "--" not in words:
        return words, ()
    index = words.index("--")
    script = words[index + 1 :]
    if not script or script[0].endswith(_JOB_SUFFIXES):
        return words, ()
    return words[:index], tuple(script)


def script_overrides(script: tuple[str, ...], *, folder: Path) -> tuple[str, ...]:
    """The script as `key=value` settings; its path starts where the planner was called."""
    if not script:
        return ()
    return (f"launch.command={json.dumps(shlex.join(script))}", f"launch.folder={json.dumps(str(folder))}")
