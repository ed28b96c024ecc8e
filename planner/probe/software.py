"""The software a training process would run: installed versions, what a child that imports torch said, and nvcc.

Owns reading; imports neither torch nor DeepSpeed. Leaves starting `planner.runtime.software` to the caller.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from planner import __version__
from planner.probe.records import SoftwareState

_PACKAGES = (
    *("torch", "deepspeed", "transformers", "accelerate", "optuna", "triton", "flash-attn", "bitsandbytes", "peft"),
    *("nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-ml-py", "mpi4py"),
)
_NVCC = re.compile(r"release (\d+\.\d+)")
_NVCC_TIMEOUT_S = 20.0


def read_software(said: str, *, environment: Mapping[str, str], problem: str = "") -> SoftwareState:
    """`said`: what `planner.runtime.software` printed; `problem`: why it printed nothing useful, "" when it did."""
    state = parse_software(said)
    if state is None:
        problem = problem or "the child that imports torch and DeepSpeed gave no answer"
        state = SoftwareState(python="")
    return replace(
        state,
        python=platform.python_version(),
        versions=_versions(),
        toolkit_cuda=_toolkit(environment),
        unseen=(f"what torch and DeepSpeed were built for: {problem}",) if problem else (),
    )


def parse_software(said: str) -> SoftwareState | None:
    """The child's answer alone, as far as it is one; None for other words."""
    answer = _parsed(said)
    if not answer:
        return None
    ops, problems, gpus = answer.get("ops"), answer.get("problems"), answer.get("gpus")
    operators = ops if isinstance(ops, dict) else {}
    return SoftwareState(
        python="",
        torch_cuda=_word(answer, "torch_cuda"),
        torch_hip=_word(answer, "torch_hip"),
        nccl=_word(answer, "nccl"),
        cudnn=_word(answer, "cudnn"),
        architectures=_words(answer.get("architectures")),
        torch_sees_gpus=gpus if isinstance(gpus, int) else None,
        ops_prebuilt=_words(operators.get("prebuilt")),
        ops_buildable=_words(operators.get("buildable")),
        ops_not_buildable=_words(operators.get("not_buildable")),
        problems=tuple((str(name), str(words)) for name, words in problems.items())
        if isinstance(problems, dict)
        else (),
    )


def _parsed(said: str) -> dict[str, Any]:
    lines = said.strip().splitlines()
    try:
        answer = json.loads(lines[-1]) if lines else {}
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _versions() -> tuple[tuple[str, str], ...]:
    found = [("meshplan", __version__)]
    for package in _PACKAGES:
        try:
            found.append((package, importlib.metadata.version(package)))
        except importlib.metadata.PackageNotFoundError:
            continue  # not installed
    return tuple(found)


def _toolkit(environment: Mapping[str, str]) -> str:
    """The CUDA release of nvcc, which builds DeepSpeed's operators when they are first used; "" without one."""
    home = environment.get("CUDA_HOME") or environment.get("CUDA_PATH")
    program = shutil.which("nvcc", path=f"{home}/bin" if home else environment.get("PATH"))
    program = program or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if program is None:
        return ""
    try:
        answer = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=_NVCC_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    found = _NVCC.search(answer.stdout)
    return found[1] if found else ""


def _word(answer: Mapping[str, Any], key: str) -> str:
    value = answer.get(key)
    return value if isinstance(value, str) else ""


def _words(value: Any) -> tuple[str, ...]:
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()
