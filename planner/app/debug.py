"""One file to send with a bug report: what was asked, what with, how it ended, what the logs said last. No secrets.

Owns what goes in. What counts as a secret is `planner.redaction`'s; of the environment only variables that steer the
tools below the planner are copied at all.
"""

from __future__ import annotations

import io
import os
import platform
import shlex
import sys
import time
import traceback
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from planner import __version__
from planner.app.requests import PlanRequest
from planner.errors import PlannerError
from planner.redaction import hide_secrets, secret_values, sounds_secret
from planner.rundir import RunDir, names, write_whole
from planner.trial import installed_packages, probe_machine

OUTSIDE_NAME = f"meshplan-{names.DEBUG}"  # where there is no plan folder to put it in
MAX_LOGS = 30
MAX_LOG_BYTES = 32 << 10  # of each log, its end
MAX_FILE_BYTES = 512 << 10  # of every other file, its end
_STEERING = (
    "ACCELERATE_", "CUDA", "DEEPSPEED", "DS_", "FI_", "GLOO_", "KMP_", "LANG", "LC_", "LD_LIBRARY_PATH", "MESHPLAN_",
    "MKL_", "NCCL_", "NUMEXPR_", "NVIDIA_", "OMP_", "OPENBLAS_", "PATH", "PYTHON", "PYTORCH_", "SLURM_", "TERM",
    "TMPDIR", "TORCH", "TRITON_", "UCX_", "VIRTUAL_ENV", "XDG_CONFIG_HOME",
)  # fmt: skip
_FOLDER_FILES = (names.JOB, names.PLAN, names.DS_CONFIG, names.TASK, names.LAUNCH, names.TRIALS)
_README = """\
Made by `planner plan --debug`. It holds the job, the command line, the versions, this machine, the ends of the logs and
how the run ended. Passwords in URLs, values of variables whose names sound secret (keys, tokens, passwords), and the
environment beyond the variables in environment.txt are left out. Look it over before you send it: paths, host names and
the model's configuration are in it.
"""


def write_debug_file(
    request: PlanRequest, *, words: tuple[str, ...], problem: BaseException | None, environment: Mapping[str, str]
) -> Path:
    """Write the file into the plan folder, or the current one where there is none; its path.

    `words`: the command line. `problem`: how the planning ended, None: well. Raises InputError when it cannot be
    written.
    """
    secrets = secret_values(environment)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", compression=zipfile.ZIP_DEFLATED) as archive:
        for name, text in _entries(request, words=words, problem=problem, environment=environment):
            archive.writestr(name, hide_secrets(text, secrets))
    path = _place(request.out_dir)
    write_whole(path, packed.getvalue())
    return path


def _place(out_dir: Path) -> Path:
    try:
        return RunDir.open(out_dir).file(names.DEBUG)
    except PlannerError:
        return Path.cwd() / OUTSIDE_NAME


def _entries(
    request: PlanRequest, *, words: tuple[str, ...], problem: BaseException | None, environment: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    yield "README.txt", _README
    yield "run.txt", _run_text(words, problem)
    yield "machine.txt", _machine_text()
    yield "packages.txt", "\n".join(installed_packages()) + "\n"
    yield "environment.txt", _environment_text(environment)
    yield "job-file.yaml", _tail(request.job_path, MAX_FILE_BYTES)
    for name in _FOLDER_FILES:
        if (request.out_dir / name).exists():
            yield f"plan/{name}", _tail(request.out_dir / name, MAX_FILE_BYTES)
    for log in _latest_logs(request.out_dir / names.LOGS_DIR):
        yield f"plan/{names.LOGS_DIR}/{log.name}", _tail(log, MAX_LOG_BYTES)


def _run_text(words: tuple[str, ...], problem: BaseException | None) -> str:
    ended = "it ended well\n" if problem is None else "".join(traceback.format_exception(problem))
    lines = (
        f"command: {shlex.join(words)}",
        f"folder: {Path.cwd()}",
        f"written: {time.strftime('%Y-%m-%dT%H:%M:%S%z')}",
        f"meshplan {__version__}, Python {sys.version}, {platform.platform()}",
        "",
        ended,
    )
    return "\n".join(lines)


def _machine_text() -> str:
    machine = probe_machine()
    versions = (f"{name} {version}" for name, version in machine.versions)
    return "\n".join((machine.describe(), f"fingerprint {machine.fingerprint}", *versions, *machine.notes)) + "\n"


def _environment_text(environment: Mapping[str, str]) -> str:
    shown = (name for name in sorted(environment) if name.startswith(_STEERING) and not sounds_secret(name))
    return "".join(f"{name}={environment[name]}\n" for name in shown)


def _latest_logs(folder: Path) -> list[Path]:
    try:
        logs = [path for path in folder.iterdir() if path.is_file()]
        return sorted(logs, key=lambda path: path.stat().st_mtime)[-MAX_LOGS:]
    except OSError:
        return []  # no logs, or none that may be read: the rest still tells something


def _tail(path: Path, max_bytes: int) -> str:
    """The end of a file as text; what cannot be read says why, in its place."""
    try:
        if not path.is_file():
            return f"not a file: {path}\n"
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - max_bytes, 0))
            return file.read(max_bytes).decode("utf-8", errors="replace")
    except (OSError, ValueError) as problem:
        return f"cannot be read: {problem}\n"
