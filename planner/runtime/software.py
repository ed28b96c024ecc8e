"""What torch and DeepSpeed are built for, as one JSON document: a child program of `planner probe`.

    python -m planner.runtime.software

Asks without opening a device. Each question is asked by itself: a package that cannot be imported is a line under
`problems`, with the last line of what it raised, and the rest is answered.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from planner.runtime.result_channel import result_channel

_LONGEST = 300
_NO_OPERATORS = ("deepspeed_not_implemented",)  # a placeholder of its CPU accelerator


def describe_software() -> dict[str, Any]:
    """Everything that can be told."""
    answer: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for name, question in (("torch", _torch), ("deepspeed", _deepspeed), ("transformers", _transformers)):
        try:
            answer.update(question())
        except BaseException as problem:  # a broken installation raises anything, SystemExit included
            if isinstance(problem, KeyboardInterrupt):
                raise
            problems[name] = f"{type(problem).__name__}: {problem}".strip().splitlines()[-1][:_LONGEST]
    return {**answer, "problems": problems}


def _torch() -> dict[str, Any]:
    import torch

    built_for_gpus = bool(torch.version.cuda or torch.version.hip)
    return {
        "torch_cuda": torch.version.cuda or "",
        "torch_hip": torch.version.hip or "",
        "architectures": _or(torch.cuda.get_arch_list, []) if built_for_gpus else [],
        "gpus": _or(torch.cuda.device_count, 0),
        "nccl": _or(_nccl, "") if built_for_gpus else "",
        "cudnn": str(_or(torch.backends.cudnn.version, "") or "") if built_for_gpus else "",
    }


def _nccl() -> str:
    import torch

    return ".".join(str(part) for part in torch.cuda.nccl.version())


def _deepspeed() -> dict[str, Any]:
    import deepspeed  # noqa: F401 - that it imports is part of the answer
    from deepspeed.git_version_info import installed_ops
    from deepspeed.ops.op_builder.all_ops import ALL_OPS

    prebuilt = {name for name, there in installed_ops.items() if there}
    buildable = {
        name: bool(_or(partial(op.is_compatible, verbose=False), False))
        for name, op in ALL_OPS.items()
        if name not in _NO_OPERATORS
    }
    return {
        "ops": {
            "prebuilt": sorted(prebuilt),
            "buildable": sorted(name for name, can in buildable.items() if can and name not in prebuilt),
            "not_buildable": sorted(name for name, can in buildable.items() if not can and name not in prebuilt),
        }
    }


def _transformers() -> dict[str, Any]:
    import transformers

    return {"transformers": transformers.__version__}


def _or(question: Callable[[], Any], otherwise: Any) -> Any:
    """The answer, or `otherwise` where this build has none."""
    try:
        return question()
    except Exception:  # what a build lacks it says by any error
        return otherwise


def main() -> int:
    """Print the document."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    with result_channel() as channel, contextlib.suppress(BrokenPipeError):
        os.write(channel, (json.dumps(describe_software()) + "\n").encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
