"""What `planner check` is asked and what it answers: records only, no work."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from planner.spec._record import record


class ConfigReader(StrEnum):
    """Who reads the configuration."""

    DEEPSPEED = "deepspeed"
    HUGGINGFACE = "huggingface"


@record
class CheckRequest:
    """`config`: a path, or the configuration in base64. Sizes of 0, empty words and None: not told.

    `trainer_args`: a path or the arguments themselves. `client_optimizer`: the class of the script's own optimizer,
    `none` for surely none. `write`: correct the file; `out_path` None: in place. `stdin`: what `-` stands for.
    """

    config: str
    world_size: int = 0
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    sequence_parallel_size: int = 1
    consumer: ConfigReader | None = None
    deepspeed_version: str = ""
    trainer_args: str = ""
    accelerate_config: Path | None = None
    client_optimizer: str = ""
    model: str = ""
    gpu: str = ""
    gpu_memory_gib: float = 0.0
    native_moe: bool = False
    write: bool = False
    out_path: Path | None = None
    stdin: bytes = b""


@record
class CheckedFinding:
    """One finding as users see it. `file`, `line`, `text`: where it is. `patch`: a merge patch (RFC 7396), or empty.

    `changes`: of a finding that was corrected, what was written, as `key: old -> new`.
    """

    file: str
    code: str
    severity: str
    key: str
    line: int
    text: str
    message: str
    why: str
    fix: str
    patch: Mapping[str, Any]
    changes: tuple[str, ...] = ()


@record
class CheckResult:
    """`notes`: what the file leaves to others, no fault. `batch`: (name, value) of the split DeepSpeed derives;
    `data_parallel_size`: the ranks it counts, 0 unknown.

    `mended`: codes and keys of what was corrected; `written`: the corrected file, None when none was asked for or
    nothing was to be corrected. `plan`: the plan.yaml beside the file that told ranks, splits and release.
    """

    label: str
    ok: bool
    consumer: ConfigReader
    releases: tuple[str, ...]
    findings: tuple[CheckedFinding, ...]
    notes: tuple[CheckedFinding, ...]
    batch: tuple[tuple[str, int], ...] = ()
    data_parallel_size: int = 0
    mended: tuple[CheckedFinding, ...] = ()
    written: Path | None = None
    lost_comments: bool = False
    plan: Path | None = None
