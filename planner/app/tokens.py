"""The use case `tokens`: text and JSONL to the token file that the reference trainer reads, in a child program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from planner.app.requests import TokensRequest
from planner.errors import InputError
from planner.spec import DeviceKind
from planner.trial.environment import worker_environment
from planner.trial.program import death_with_parent

_HEADS = ("error: ", "why: ", "fix: ")


def make_tokens(request: TokensRequest, *, show: Callable[[str], None]) -> dict[str, Any]:
    """Counts and settings of the file that was made; `show` is given a line of progress now and then.

    Raises InputError for what cannot be read. Stopped, it keeps what it has, and the same request goes on from there.
    """
    command = [sys.executable, "-m", "planner.runtime.tokens", "--tokenizer", str(request.tokenizer)]
    command += ["--out", str(request.out_path), "--field", request.field, "--token-bytes", str(request.token_bytes)]
    command += ["--", *map(str, request.files)]
    cores = os.environ.get("RAYON_NUM_THREADS")
    environment = worker_environment(DeviceKind.CPU, os.environ) | {"TOKENIZERS_PARALLELISM": "true"}
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment | ({"RAYON_NUM_THREADS": cores} if cores else {}),
        start_new_session=True,
        preexec_fn=death_with_parent(os.getpid()),
    )
    try:
        said = _listen(process, show)
        output, _ = process.communicate()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if process.returncode != 0:
        raise _problem(said, process.returncode)
    answer: dict[str, Any] = json.loads(output)
    return answer


def _listen(process: subprocess.Popen[str], show: Callable[[str], None]) -> list[str]:
    """Pass progress on; what is left is what the child said at its end."""
    said: list[str] = []
    assert process.stderr is not None  # noqa: S101 - asked for as a pipe
    for line in process.stderr:
        if "tokens  " in line and "left" in line:
            show(line.rstrip())
        else:
            said.append(line.rstrip())
    return said


def _problem(said: list[str], exit_code: int) -> Exception:
    found = {head: line.removeprefix(head) for head in _HEADS for line in said if line.startswith(head)}
    if len(found) == len(_HEADS):
        return InputError(found["error: "], why=found["why: "], fix=found["fix: "])
    return RuntimeError(f"the tokenizing program ended with exit code {exit_code}: " + "\n".join(said[-20:]))
