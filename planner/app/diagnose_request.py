"""What `planner diagnose` is asked and what it answers: records only, no work."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.spec._record import record


@record
class DiagnoseRequest:
    """`paths`: logs, folders of rank logs, snapshots, `-`. Sizes of 0, empty words and None: not told.

    `note`: the user's own words about the run. `apply`: write the changed configuration; `fix_number` (from 1) names
    the fix, 0 the best that a configuration can hold; `out_path` None: in place of `config`, beside `plan_dir`.
    """

    paths: tuple[Path, ...]
    plan_dir: Path | None = None
    config: Path | None = None
    model: str = ""
    gpu: str = ""
    seq_len: int = 0
    world_size: int = 0
    gpus_per_node: int = 0
    activation_checkpointing: str = ""
    note: str = ""
    apply: bool = False
    fix_number: int = 0
    out_path: Path | None = None


@record
class AppliedFix:
    """`left_to_do`: what of the change no configuration file can hold."""

    path: Path
    number: int
    change: Mapping[str, Any]
    left_to_do: Mapping[str, Any]
    lost_comments: bool = False


@record
class DiagnoseResult:
    """`document`: the one of `--json`, which people's view is made from too."""

    document: Mapping[str, Any]
    applied: AppliedFix | None = None
