"""What the job file leaves unsaid about the user's own script: whose loop it runs, where it starts, its config.

Owns looking at the script's text, which is read and never run here.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

from planner.errors import InputError
from planner.jobfile.launch_schema import LaunchSection
from planner.spec import ScriptKind

_MAX_SCRIPT_BYTES = 1 << 20
_TRAINER = re.compile(r"\b(\w*Trainer|TrainingArguments|HfArgumentParser)\b")
_TRAINER_PACKAGES = re.compile(r"^\s*(from|import)\s+(transformers|trl)\b", re.MULTILINE)
_ACCELERATE = re.compile(r"^\s*(from\s+accelerate\b|import\s+accelerate\b)", re.MULTILINE)
_TRAINER_ARGUMENTS = re.compile(r"--(per[_-]device[_-]train[_-]batch[_-]size|output[_-]dir)\b")


def script_kind(section: LaunchSection, *, folder: Path) -> ScriptKind:
    """What the file says or, left out, what the script's own imports show."""
    if section.consumer is not None:
        return section.consumer
    command = section.command or ""
    text = _script_text(command, folder=folder)
    runs_trainer = bool(_TRAINER_PACKAGES.search(text) and _TRAINER.search(text))
    if runs_trainer or (not text and _TRAINER_ARGUMENTS.search(command)):
        return ScriptKind.HUGGINGFACE
    launched = re.match(r"(\S*/)?accelerate\s+launch\b", command)
    return ScriptKind.ACCELERATE if launched or _ACCELERATE.search(text) else ScriptKind.DEEPSPEED


def start_folder(section: LaunchSection, *, folder: Path) -> Path:
    """Where the command starts: launch.folder (the job file's without it) or, where the script is not there but beside
    the job file or in the current folder, that one."""
    start = Path(os.path.normpath(folder / (section.folder or ".")))
    name = next((word for word in shlex.split(section.command or "") if word.endswith(".py")), "")
    if not name:
        return start
    places = (start, Path(os.path.normpath(folder)), Path.cwd())
    return next((place for place in places if (place / name).is_file()), start)


def _script_text(command: str, *, folder: Path) -> str:
    """The text of the script or module that the command names; "" when it is not here (on the cluster, say)."""
    words = shlex.split(command)
    for index, word in enumerate(words):
        is_module = word in ("-m", "--module") and index + 1 < len(words)
        name = words[index + 1].replace(".", "/") + ".py" if is_module else word
        if not name.endswith(".py"):
            continue
        path = folder / name
        if path.is_file() and path.stat().st_size <= _MAX_SCRIPT_BYTES:
            return path.read_text(encoding="utf-8", errors="replace")
        return ""
    return ""


def own_config_json(section: LaunchSection, *, folder: Path) -> str:
    """The user's own DeepSpeed config as canonical JSON; "" without one."""
    if section.deepspeed_config is None:
        return ""
    value = section.deepspeed_config
    if isinstance(value, str):
        value = _read_config(folder / value)
    return json.dumps(value, sort_keys=True)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise InputError(
            f"launch.deepspeed_config: {path} cannot be read",
            why=str(problem),
            fix="name a JSON file; `planner check FILE --fix` mends what DeepSpeed alone would forgive",
        ) from None
    if not isinstance(value, dict):
        raise InputError(
            f"launch.deepspeed_config: {path} holds no config",
            why="a DeepSpeed config is one JSON object",
            fix="name the file that deepspeed.initialize reads",
        )
    return value
